"""What the nodes can do together, before a job needs it. Standard library only: the nodes get it on stdin (doctor/boot.py)."""
