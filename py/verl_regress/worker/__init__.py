"""The worker's side of a job, its Ray entrypoint: launcher, queue, proof of the code, log, and record of the end."""
