"""A regression session of `make verify`: the evidence that it gathers from outside, the checks on it, and the report."""
