"""The thin helper of verl-regress: validate a JobSpec, plan a submission, talk to Ray, judge the result."""

__version__ = "1.3.0"  # the one home of the version; CHANGELOG.md must agree, and `make version` prints it
