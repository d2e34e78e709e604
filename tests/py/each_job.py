"""Runs one command on many jobs at once, each in a process of its own that may neither wait nor take much memory.

    python each_job.py SHARED_ROOT MEMORY COMMAND OPTIONS… -- JOB…

Prints for each, as JSON, its exit status and what it wrote; the status is text if it ended in another way than the command line does.
"""

import json
import os
import resource
import signal
import sys
import tempfile
import traceback
from pathlib import Path

from verl_regress import cli
from verl_regress.cluster import nodes
from verl_regress.jobs import debug, logs, stop, watch  # before the fork: each takes its time
from verl_regress.store import retention

NOWHERE = "http://127.0.0.1:1"
SECONDS = 60


def run(words, output):
    """In the child."""
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    signal.alarm(SECONDS)
    status = 255
    try:
        status = cli.main(words)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main():
    root, memory, *words = sys.argv[1:]
    at = words.index("--")
    assert all((debug, logs, stop, watch, retention))
    nodes.ADDRESS = NOWHERE
    debug._LOCAL_LOGS = Path("/nowhere")
    resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    children = {}
    for job in words[at + 1 :]:
        output = tempfile.TemporaryFile()  # noqa: SIM115  # until the child has ended
        pid = os.fork()
        if pid == 0:
            named = [job] if job else []
            run(["--shared-root", root, words[0], *named, *words[1:at]], output)
        children[job] = (pid, output)
    said = {}
    for job, (pid, output) in children.items():
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        output.seek(0)
        said[job] = (status, output.read().decode("utf-8", "replace"))
    print(json.dumps(said))


if __name__ == "__main__":
    main()
