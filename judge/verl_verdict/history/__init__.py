"""Many runs in the order of time, and where a metric changes."""
