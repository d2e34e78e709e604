"""What runs on the worker, in the job's Ray entrypoint: the launcher, its queue, the proof of the code, the log and the record of the end."""
