"""py/hooks/egress.py: every host that a process asks for, and which of them is named on stderr."""

import json

import pytest
from shared_fixtures import HOOKS, environment, python


@pytest.fixture
def asked(tmp_path):
    """Runs a program with the hook; returns the hosts of its report, None without one, and what it printed on stderr."""

    def run(program, **variables):
        env = environment(HOOKS, job_dir=tmp_path, **{"VERL_REGRESS_OFFLINE": "1", **variables})
        ended = python("-c", f"import socket\nsocket.setdefaulttimeout(0.01)\n{program}", env=env)
        assert ended.returncode == 0, ended.stderr
        [*reports] = tmp_path.glob("state/reports/egress-*.json")
        hosts = [host for report in reports for host in json.loads(report.read_text())["asked"]]
        for report in reports:
            report.unlink()
        return hosts or None, ended.stderr

    return run


# The audit events alone, as Python raises them: a test opens no connection.
def event(name, *arguments):
    return f"import sys\nsys.audit({name!r}, {', '.join(map(repr, arguments))})\n"


def test_a_connection_that_leaves_is_recorded_once_and_named(asked):
    found, said = asked(event("socket.connect", None, ("192.0.2.1", 80)) * 3)
    assert found == ["192.0.2.1:80"]
    assert said == (
        "verl-regress: this process asks for 192.0.2.1:80, which is no node of this cluster, and this installation has no way out (make unkit): "
        "leave out what asks for it, or have what it fetches on the shared root.\n"
    )


def test_a_name_that_is_looked_up_counts_whether_it_is_found_or_not(asked):
    found, said = asked(
        event("socket.getaddrinfo", "hub.example.org", 443, 0, 0, 0) + event("socket.gethostbyname", "a.example.org")
    )
    assert found == ["hub.example.org:443", "a.example.org"]
    assert "hub.example.org:443" in said


def test_an_address_as_nodes_have_it_is_recorded_and_not_named(asked):
    found, said = asked(
        event("socket.connect", None, ("10.0.0.7", 6379)) + event("socket.getaddrinfo", b"worker-0", 1, 0, 0, 0)
    )
    assert (found, said) == (["10.0.0.7", "worker-0"], "")


def test_many_ports_of_a_node_leave_room_for_what_leaves(asked):
    ports = "".join(event("socket.connect", None, ("10.0.0.7", port)) for port in range(1, 120))
    assert asked(ports + event("socket.gethostbyaddr", "192.0.2.1"))[0] == ["10.0.0.7", "192.0.2.1"]


def test_a_datagram_counts_when_it_is_sent(asked):
    udp = "import sys\nudp = socket.socket(type=socket.SOCK_DGRAM)\n"
    away = ("192.0.2.1", 9)
    assert asked(f"{udp}sys.audit('socket.connect', udp, {away})\n") == (None, "")
    for sends in ("sendto", "sendmsg"):
        assert asked(f"{udp}sys.audit('socket.{sends}', udp, {away})\n")[0] == ["192.0.2.1:9"]


@pytest.mark.parametrize(
    "peer", [("127.0.0.1", 80), ("::1", 80, 0, 0), ("localhost", 80), "/run/a.socket", (0, 0), ("", 80), b"\0abstract"]
)
def test_what_stays_on_the_machine_is_not_recorded(asked, peer):
    assert asked(event("socket.connect", None, peer)) == (None, "")


def test_a_report_that_cannot_be_written_refuses_no_connection(asked):
    assert asked(event("socket.connect", None, ("10.0.0.7", 1)), VERL_REGRESS_JOB_DIR="/dev/null/no") == (None, "")
