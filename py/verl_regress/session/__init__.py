"""A regression session of `make verify`: the evidence gathered from outside, the checks on it, and the report."""
