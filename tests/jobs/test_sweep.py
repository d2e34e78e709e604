"""A node died with a job that had secrets: reading its state changes nothing, and the next command that acts removes them."""

import json

import pytest
from shared_fixtures import write

from verl_regress.cluster import nodes


def everything(root):
    """Path -> what a change would show in: inode, mode, owner, size, time of the last write, content."""
    found = {}
    for path in [root, *sorted(root.rglob("*"))]:
        state = path.lstat()
        content = path.read_bytes() if path.is_file() else None
        found[str(path)] = (state.st_ino, state.st_mode, state.st_uid, state.st_size, state.st_mtime_ns, content)
    return found


@pytest.fixture
def left(shared, ray, make_job):
    """The secrets file of `lost`, which Ray does not know; `over` has ended and `runs` is running."""
    ray.has_nodes()
    make_job("lost", started={"node_ip": "10.0.0.2"}).driver_log.write_text("step:1 - train/loss:0.5\n")
    over = make_job("over", started={}, ended={"exit_code": 0, "reason": "the trainer ended"})
    resolved = json.loads((over.config / "resolved.json").read_text())
    write(over.config / "resolved.json", json.dumps({**resolved, "address": ray.address, "cluster": "mine"}))
    make_job("runs", started={"node_ip": "10.0.0.2"})
    running = {"submission_id": "runs", "status": "RUNNING", "driver_info": {"node_ip_address": "10.0.0.2"}}
    ray.knows({"submission_id": "over", "status": "SUCCEEDED"}, running)
    for name in ("mine/runs", "theirs/lost"):
        write(shared.secrets / name, "{}")
    return write(shared.secrets / "mine" / "lost", "{}")


# promise: changes a job, or removes a secret, when you only ask for its state
@pytest.mark.parametrize(
    "command",
    [
        ["status", "--profile=cpu", "CLUSTER_NAME=mine"],
        ["status", "--profile=cpu", "CLUSTER_NAME=mine", "JSON=1"],
        ["jobs"],
        ["logs", "lost"],
        ["logs", "lost", "--metrics"],
        ["logs", "runs"],
        ["where", "lost"],
        ["live", "--cluster=mine"],
    ],
)
@pytest.mark.usefixtures("left")
def test_asking_changes_nothing(run, shared, command):
    before = everything(shared.path)
    assert run(*command).status == 0
    assert everything(shared.path) == before


@pytest.mark.parametrize(
    "command",
    [
        ["wait", "over", "--deadlines=1,1,1,1"],
        ["stop", "over", "--deadline=1"],
        ["gc", "--cluster=mine", "--keep=5"],
        ["await-nodes", "--deadline=1", "--log-dir=/ray/mine", "--gcs-port=1", "head=a", "worker-0=b"],
    ],
)
def test_a_command_that_acts_removes_what_is_left(run, shared, left, monkeypatch, command):
    monkeypatch.setattr(nodes, "await_all", lambda _args: None)
    outcome = run(*command)
    assert outcome.status == 0
    assert "changed removed the secrets of the job lost (LOST)\n" in outcome.err
    assert not left.exists()
    assert (shared.secrets / "mine" / "runs").exists()
    assert (shared.secrets / "theirs" / "lost").exists()


def test_without_an_answer_from_ray_they_stay_until_the_next_command(run, ray, left):
    ray.goes_away()
    outcome = run("gc", "--cluster=mine", "--keep=5")
    assert (outcome.status, left.exists()) == (0, True)
    assert "The secrets of lost jobs were not removed: Ray does not answer at " in outcome.err


@pytest.fixture
def home(tmp_path):
    """Files of the user's that are no secrets of jobs."""
    write(tmp_path / "home" / "secrets" / "thesis.tex", "x")
    return tmp_path / "home" / "secrets"


@pytest.mark.parametrize("command", [["wait", "over", "--deadlines=1,1,1,1"], ["gc", "--cluster=mine", "--keep=5"]])
def test_a_link_in_the_place_of_a_clusters_secrets_is_not_followed(run, shared, left, home, command):
    left.parent.rename(shared.secrets / "moved")
    left.parent.symlink_to(home)
    outcome = run(*command)
    assert outcome.status == 0
    assert (
        f"The secrets of lost jobs were not removed: {shared.secrets}/mine is a file or a link, which another user may have made: "
        "remove it."
    ) in outcome.err
    assert (home / "thesis.tex").exists()


@pytest.mark.usefixtures("left")
@pytest.mark.parametrize("command", [["wait", "over", "--deadlines=1,1,1,1"], ["stop", "over", "--deadline=1"]])
@pytest.mark.parametrize("cluster", ["{home}", "..", "../../home/secrets", ""])
def test_a_job_that_names_another_place_as_its_cluster_loses_no_file_of_the_users(run, shared, home, cluster, command):
    plan = shared.jobs / "over" / "config" / "resolved.json"
    write(plan, json.dumps({**json.loads(plan.read_text()), "cluster": cluster.format(home=home)}))
    before = everything(shared.secrets)
    assert "is not a name of a cluster: the job's plan was edited by hand." in run(*command).err
    assert (home / "thesis.tex").exists()
    assert everything(shared.secrets) == before
