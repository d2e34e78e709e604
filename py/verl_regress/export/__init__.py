"""The same job as a file for another place that runs containers. Pure: each module makes one format from a plan."""
