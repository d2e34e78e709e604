"""The thin helper of verl-regress: validate a JobSpec, plan a submission, talk to Ray, judge what came of it."""
