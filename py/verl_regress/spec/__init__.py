"""From a JobSpec and a Ray base config to the plan of a job. Pure: it reads the shared root, and asks neither Ray nor the network."""
