"""Regression sessions, `make bisect` and `make history`: what to run, what was seen from outside, the checks, and the report."""
