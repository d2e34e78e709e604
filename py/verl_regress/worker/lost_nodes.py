"""Ends a trainer that would wait forever for a node that died.

verl 0.9.1's V1 trainer waits for rollouts that ran on such a node: nothing in the job fails, and it makes no more steps.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time

from verl_regress.base.errors import RegressError
from verl_regress.base.layout import JobDir
from verl_regress.cluster import nodes, ray_internals
from verl_regress.jobs import progress

_CHECK_EVERY = 15.0
_QUIET = 30.0  # without a step, before Ray is asked at all: it costs a process that loads Ray
_PATIENCE = 30.0  # a trainer that notices the loss ends within seconds
_ASK_SECONDS = 20.0


class Watch:
    """Watches a trainer in a daemon thread, until `stop`; `lost` has the nodes if it had to end the trainer."""

    def __init__(self, job: JobDir, trainer: subprocess.Popen[bytes]) -> None:
        self._job, self._trainer = job, trainer
        self._is_over = threading.Event()
        self.lost: tuple[str, ...] = ()
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        """From now on the trainer is left alone."""
        self._is_over.set()

    def _run(self) -> None:
        step, moved, lost_since = progress.last_step(self._job), time.monotonic(), None
        while not self._is_over.wait(_CHECK_EVERY):
            last, now = progress.last_step(self._job), time.monotonic()
            if last != step:
                step, moved, lost_since = last, now, None
            if now - moved < _QUIET:
                continue
            lost = self._lost_nodes()
            # An answer without a node, such as from a head that was just restarted, is no reason to end a trainer.
            lost_since = (lost_since or now) if lost else None
            if lost_since is not None and now - lost_since >= _PATIENCE and self._trainer.poll() is None:
                self.lost = tuple(lost)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._trainer.pid, signal.SIGKILL)
                return

    def _lost_nodes(self) -> list[str]:
        """The nodes that actors of the trainer died with, as `worker-0 (10.0.0.2)`; none if Ray does not say."""
        with contextlib.suppress(RegressError):
            return ray_internals.nodes_lost_from_gcs(
                os.environ.get("RAY_ADDRESS", ""), nodes.own_address(), self._trainer.pid, _ASK_SECONDS
            )
        return []
