"""Real processes: those with our mark end, others do not."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from verl_regress.base import processes
from verl_regress.base.processes import MARK, main, of_cluster, running, stop

pytestmark = pytest.mark.slow

# Clusters of this run alone: other processes with our mark on this machine belong to another run or to a user's
# cluster.
HERE, THERE = f"here-{os.getpid()}", f"there-{os.getpid()}"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"


@pytest.fixture
def start():
    """start(cluster, argv…): a process with the cluster's mark (none: no mark)."""
    started = []

    def _start(cluster, *argv):
        environment = {**os.environ, **({MARK: cluster} if cluster else {})}
        started.append(subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, start_new_session=True))
        return started[-1]

    yield _start
    for process in started:
        process.kill()
        process.wait()


# promise: stops a process by its name, or runs `ray stop`
def test_only_the_marked_are_found_and_ended(start):
    own = start(HERE, sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '60'])")
    other, longer, bare = start(THERE, "sleep", "60"), start(f"{HERE}-too", "sleep", "60"), start(None, "sleep", "60")
    while "sleep" not in running(HERE):
        pass
    assert own.pid in of_cluster(HERE)
    assert running(HERE) == {Path(sys.executable).name, "sleep"}
    assert stop(HERE) == 2
    assert own.wait() == -15
    assert [other.poll(), longer.poll(), bare.poll()] == [None, None, None]
    assert stop(HERE) == 0


def test_an_unmarked_process_in_a_marked_session_is_included(start):
    """Like Ray's workers, whose title hides their environment."""
    own = start(HERE, sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '60'], env={})")
    while len(of_cluster(HERE)) < 2:
        pass
    assert stop(HERE) == 2
    assert own.wait() == -15


def test_a_zombie_is_not_found(start):
    process = start(HERE, "sleep", "60")
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert (of_cluster(HERE), processes.commands().get(process.pid)) == ({}, None)
    assert os.getpid() in processes.commands()


def test_a_session_with_another_leader_is_not_included(start):
    script = f"import subprocess; subprocess.run(['sleep', '60'], env={{'{MARK}': '{HERE}'}})"
    leader = start(None, sys.executable, "-c", script)
    while not of_cluster(HERE):
        pass
    assert stop(HERE) == 1
    assert leader.wait() == 0


def test_a_process_that_ignores_sigterm_gets_sigkill(start, monkeypatch):
    monkeypatch.setattr(processes, "_GRACE", 1.0)
    process = start(HERE, sys.executable, "-c", STUBBORN)
    process.stdout.readline()
    assert stop(HERE) == 1
    assert process.wait() == -9


def test_the_questions_that_scripts_ask(start, capsys):
    start(HERE, "sleep", "60")
    assert [main(["running", HERE]), main(["running", THERE]), main(["stop", HERE])] == [0, 0, 0]
    assert capsys.readouterr().out == "sleep\n\n1\n"


def test_a_start_at_work_is_known_by_its_flag(monkeypatch):
    lines = {1: "/opt/venv/bin/python /opt/venv/bin/ray start --head --disable-usage-stats", 2: "/ray/raylet --head"}
    monkeypatch.setattr(processes, "of_cluster", lambda cluster: lines)
    assert running(HERE) == {"python", "raylet", "ray-start"}


def test_a_program_is_known_by_its_file_and_not_by_an_argument(start, tmp_path):
    """Ray's agents get raylet's socket as an argument, and its name is raylet too."""
    script = tmp_path / "dashboard.py"
    script.write_text("import time; time.sleep(60)")
    start(HERE, sys.executable, str(script), "--raylet_socket_name=/s/raylet", "/s/raylet")
    while len(of_cluster(HERE)) < 1 or str(script) not in str(of_cluster(HERE)):
        pass
    assert running(HERE) == {Path(sys.executable).name, "dashboard.py"}


def test_a_process_that_cannot_be_ended_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(processes, "_GRACE", 0.1)
    monkeypatch.setattr(processes, "of_cluster", lambda cluster: {4242: "raylet"})
    monkeypatch.setattr(processes, "_signal", lambda pid, number: None)
    assert main(["stop", HERE]) == 1
    assert capsys.readouterr().err == "error   1 processes of Ray cannot be ended: [4242]: inspect them on that node.\n"


def test_who_listens_is_known_by_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert processes.listening([port]) == {port: os.getpid()}
    assert processes.listening([1]) == {}


def test_the_peers_of_connections_that_these_processes_open(monkeypatch):
    own, other = 1, 2  # their sockets, of which the processes have the first open
    rows = [
        ("0100007F:0016", "00000000:0000", "0A", own),  # listens at port 22
        ("0100000A:0016", "0900000A:D431", "01", own),  # so this came from outside
        ("0100000A:D432", "010200C0:0050", "02", own),
        ("0100000A:D433", "0700000A:18EB", "01", own),
        ("0100000A:D434", "0800000A:18EB", "06", own),  # over
        ("0100000A:D435", "0800000A:18EB", "01", other),
    ]
    rows6 = [
        ("B80D0120000000000000000001000000:D436", "B80D0120000000000000000002000000:01BB", "02", own),
        ("0000000000000000FFFF00000100000A:D437", "0000000000000000FFFF00000600000A:0050", "01", own),
    ]
    tables = [
        ["0:", local, peer, state, "0:0", "0:0", "0", "0", "0", str(inode + 2 * at)]
        for at, (local, peer, state, inode) in enumerate(rows + rows6)
    ]
    monkeypatch.setattr(processes, "_connections", lambda: tables)
    ours = {f"socket:[{own + 2 * at}]" for at in range(len(tables))}
    monkeypatch.setattr(processes, "_holders", lambda sockets, _pids: [(name, 7) for name in ours & sockets.keys()])
    monkeypatch.setattr(processes.sys, "byteorder", "little")
    assert processes.peers([7]) == {"192.0.2.1:80", "10.0.0.7:6379", "2001:db8::2:443", "10.0.0.6:80"}


def test_a_connection_counts_for_the_process_that_has_it():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        peer = f"127.0.0.1:{server.getsockname()[1]}"
        assert peer in processes.peers([os.getpid()])
        assert processes.peers([os.getppid()]) & {peer} == set()


def test_all_addresses_of_this_node():
    assert "127.0.0.1" in processes.addresses()


def test_neighbours_are_those_that_have_answered(tmp_path):
    table = tmp_path / "arp"
    assert processes.neighbours(table) == {}
    table.write_text(
        "IP address       HW type     Flags       HW address            Mask     Device\n"
        "10.0.0.2         0x1         0x2         02:42:0a:00:00:02     *        eth0\n"
        "10.0.0.3         0x1         0x0         00:00:00:00:00:00     *        eth0\n"
    )
    assert processes.neighbours(table) == {"10.0.0.2": "02:42:0a:00:00:02"}
