"""The secrets of a job: the file in which their values travel, and taking them out of text."""
