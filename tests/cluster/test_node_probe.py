"""What a node says before the helper is there."""

import socket
from importlib import metadata

import pytest

from verl_regress.cluster import node_probe


@pytest.mark.parametrize(
    ("version", "oldest", "older"),
    [
        ("2.53.1", "2.54", True),
        ("2.9.0", "2.54", True),
        ("2.54.0", "2.54", False),
        ("2.54.0rc1", "2.54", False),
        ("2.100.0", "2.54", False),
        ("10.0", "2.54", False),
        ("unknown", "2.54", True),
    ],
)
def test_which_release_is_older(monkeypatch, capsys, version, oldest, older):
    monkeypatch.setattr(metadata, "version", {"ray": version}.__getitem__)
    assert node_probe.main(["ray", oldest]) == 0
    assert capsys.readouterr().out == (f"{version} older\n" if older else f"{version}\n")


def test_a_python_without_ray(monkeypatch, capsys):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(node_probe.sys, "executable", "/opt/python3")
    assert node_probe.main(["ray", "2.54"]) == 1
    assert capsys.readouterr() == ("", "error   /opt/python3 has no package 'ray'.\n")


def test_ports_that_are_taken(capsys, unused_address):
    free = unused_address.rpartition(":")[2]
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = str(server.getsockname()[1])
        assert node_probe.main(["ports", free, taken]) == 0
    assert capsys.readouterr().out == f"{taken}\n"
