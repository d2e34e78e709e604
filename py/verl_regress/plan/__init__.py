"""From a JobSpec and a Ray base config to a job's plan. Pure: reads the shared root, uses neither Ray nor the network."""
