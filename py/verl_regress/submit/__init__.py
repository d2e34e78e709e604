"""From a request to a submitted job: `make submit`, and `make resume` and `make retry` for further attempts."""
