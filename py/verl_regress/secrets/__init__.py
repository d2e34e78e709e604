"""The secrets of a job: the file in which their values travel, and removing them from text."""
