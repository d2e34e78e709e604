"""The Ray cluster: what its API answers, its nodes and their packages, and the processes and private calls of Ray that we depend on."""
