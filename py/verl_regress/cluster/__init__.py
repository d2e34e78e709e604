"""The Ray cluster: its API, its nodes and their packages, and the processes and private calls of Ray that we depend on."""
