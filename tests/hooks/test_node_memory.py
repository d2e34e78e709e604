"""The kernel's counters of a container's memory, as version 2 and version 1 of control groups write them."""

import re

import pytest

import node_memory

V2 = {
    "/proc/self/cgroup": "0::/pod/a\n",
    "/sys/fs/cgroup/pod/a/memory.events": "low 0\noom 3\noom_kill 2\n",
    "/sys/fs/cgroup/pod/a/memory.max": "1572864000\n",
    "/sys/fs/cgroup/pod/a/memory.peak": "1500000000\n",
}
V1 = {
    "/proc/self/cgroup": "4:memory:/docker/4d66\n0::/docker/4d66\n",  # hybrid; in the container its own group is the root
    "/sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "/sys/fs/cgroup/memory/memory.max_usage_in_bytes": "1500000000\n",
}


@pytest.mark.parametrize(
    ("files", "counted"),
    [(V2, (2, 1572864000, 1500000000)), (V1, (2, None, 1500000000)), ({}, (None, None, None))],
)
def test_the_counters(monkeypatch, files, counted):
    monkeypatch.setattr(node_memory, "_read", lambda file: files.get(re.sub("/+", "/", file), ""))
    found = node_memory.counters()
    assert (found["kills"], found["limit"], found["peak"]) == counted
