"""A pytest plugin (tests/shared_fixtures.py loads it): a unit test uses nothing of the machine, and one that tries to fails.

- The whole run, and every process that a test starts, gets a clean environment: none of the user's knobs, tokens or
  sockets, an empty HOME, an engine that does not exist, and the run's own WORKDIR.
- A socket connects only to an address that this process has bound itself.
- docker, ssh and the like (tests/off_limits/) are first on PATH, and fail.
- At the end of the run, no process and no new file in the checkout is left.

A test fails even if the code under test swallows the error.
"""

import os
import shutil
import socket
import tempfile
import time
from pathlib import Path

import pytest

REPO = Path(__file__).parents[1]
# What a test may see of the user's environment.
KEPT = ("FUZZ_SCALE", "FUZZ_SEED", "GSM8K_DIR", "PATH", "PYTEST_", "TERM", "TMPDIR", "TZ")
OFF_LIMITS = REPO / "tests" / "off_limits"

_bound = set()  # addresses that this process has bound, including closed ones
_reached = []  # what the running test tried to reach


class Run:
    """What one run of pytest has of its own; made by pytest_configure."""

    def __init__(self):
        self.environment = dict(os.environ)
        self.directory = Path(tempfile.mkdtemp(prefix="verl-regress-pytest-"))
        self.log = self.directory / "off-limits"
        self.unused = socket.socket()  # bound but never listened on: connections are refused
        self.unused.bind(("127.0.0.1", 0))
        self.files = _files()

    def isolate(self):
        for name in [name for name in os.environ if not name.startswith(KEPT)]:
            del os.environ[name]
        (self.directory / "home").mkdir()
        os.environ |= {
            "DASHBOARD_PORT": str(self.unused.getsockname()[1]),
            "DOCKER_HOST": f"unix://{self.directory}/no-engine.sock",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self.directory / "hypothesis"),
            "HOME": str(self.directory / "home"),
            "LC_ALL": "C.UTF-8",
            "OFF_LIMITS_LOG": str(self.log),
            "PATH": f"{OFF_LIMITS}{os.pathsep}{os.environ['PATH']}",
            "WORKDIR": str(self.directory / "workdir"),
        }

    def end(self):
        self.unused.close()
        os.environ.clear()
        os.environ.update(self.environment)
        shutil.rmtree(self.directory)


def pytest_configure(config):
    config.guard = pytest.MonkeyPatch()
    for name, guarded in (("bind", _bind), ("connect", _connect), ("connect_ex", _connect_ex), ("sendto", _sendto)):
        config.guard.setattr(socket.socket, name, guarded)
    config.hermetic = Run()
    config.hermetic.isolate()


def pytest_unconfigure(config):
    config.hermetic.end()
    config.guard.undo()


@pytest.fixture
def unused_address(pytestconfig):
    """An address on which nothing listens, or can listen, while the tests run."""
    return "http://{}:{}".format(*pytestconfig.hermetic.unused.getsockname())


@pytest.fixture(autouse=True)
def reaches_nothing(pytestconfig):
    """Fails a test that tried to use something of the machine."""
    _reached.clear()
    yield
    log = pytestconfig.hermetic.log
    if log.exists():
        _reached.extend(log.read_text().splitlines())
        log.unlink()
    if _reached:
        pytest.fail("a unit test reaches nothing of the machine:\n" + "\n".join(_reached), pytrace=False)


@pytest.fixture(autouse=True, scope="session")
def leaves_nothing(pytestconfig, tmp_path_factory):
    """Fails a run that leaves processes, or new files in the checkout."""
    yield
    run = pytestconfig.hermetic
    marks = [str(run.directory).encode(), str(tmp_path_factory.getbasetemp()).encode()]
    end = time.monotonic() + 5
    while (left := _processes(marks)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left, f"the tests left these processes: {left}"
    files = sorted(_files() - run.files)
    assert not files, f"the tests left these files in the checkout, or another process made them meanwhile: {files}"


def _processes(marks):
    """Process ids and command lines of other processes with one of `marks` in their environment or command line."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command, environment = _words(path)
        except OSError:  # it has ended, or is not ours
            continue
        if int(path.name) != os.getpid() and any(mark in command + environment for mark in marks):
            found[int(path.name)] = command.replace(b"\0", b" ").decode(errors="replace")[:200]
    return found


def _words(path):
    """The command line and the environment of a process.

    Popen returns when exec closes its pipe, and the kernel shows the new program's command line and environment a
    moment later. Zombies and threads of the kernel have none, and no program: OSError, not a second for each of them.
    """
    (path / "exe").readlink()
    end = time.monotonic() + 1
    while True:
        words = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
        if any(words) or time.monotonic() > end:
            return words
        time.sleep(0.001)


def _files():
    """The files in the checkout, except those of tools and clusters."""
    found = set()
    for folder, folders, files in os.walk(REPO):
        kept = (".git", "build", ".venv", "workdir") if folder == str(REPO) else ()
        folders[:] = [name for name in folders if name not in kept and not name.endswith(("_cache", "__pycache__"))]
        found.update(str(Path(folder, name).relative_to(REPO)) for name in files)
    return found


_real = {name: getattr(socket.socket, name) for name in ("bind", "connect", "connect_ex", "sendto")}


def _bind(self, address):
    _real["bind"](self, address)
    _bound.add(_endpoint(self.getsockname()))


def _connect(self, address):
    _must_be_ours(address)
    return _real["connect"](self, address)


def _connect_ex(self, address):
    _must_be_ours(address)
    return _real["connect_ex"](self, address)


def _sendto(self, data, *args):
    _must_be_ours(args[-1])
    return _real["sendto"](self, data, *args)


def _endpoint(address):
    """What identifies an address: the path of a socket, or its port on this machine; a remote one is itself."""
    if not isinstance(address, tuple):
        return address
    host, port = address[:2]
    return port if host in ("", "0.0.0.0", "::", "::1", "localhost") or str(host).startswith("127.") else (host, port)


def _must_be_ours(address):
    if _endpoint(address) not in _bound:
        message = f"a unit test connected to {address!r}, which is not its own"
        _reached.append(message)
        pytest.fail(message)
