"""`secrets`: which secrets a job needs, for the script that reads their values on the user's machine."""

import argparse
import sys
from collections.abc import Iterable

from verl_regress.base import documents
from verl_regress.base.jobspec import JobSpec, Secret, secrets_in
from verl_regress.jobs import find
from verl_regress.secrets import secret_files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`secrets --spec-name FILE`, the JobSpec on stdin, or `secrets --job JOB`."""
    parser.add_argument("--spec-name", help="the JobSpec's file as the user knows it")
    parser.add_argument("--job", help="a job that was submitted: the secrets of its JobSpec")


def run(args: argparse.Namespace) -> int:
    """Print the secrets that a JobSpec names: name and file (empty: the variable of that name), each ended by a NUL."""
    if args.job:
        found = secrets_in(find.asked_for(args).read_config("job_spec.json") or {})
    else:
        text = documents.text_of(sys.stdin.buffer.read(), args.spec_name)
        found = secret_files.named(JobSpec.from_document(documents.parse(text, args.spec_name, "jobspec")))
    show(found)
    return 0


def show(secrets: Iterable[Secret]) -> None:
    """Print their names and files, each ended by a NUL."""
    for secret in secrets:
        sys.stdout.write(f"{secret.name}\0{secret.file or ''}\0")
