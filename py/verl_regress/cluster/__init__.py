"""The Ray cluster: its API, its nodes and their packages, and the private parts of Ray that we depend on."""
