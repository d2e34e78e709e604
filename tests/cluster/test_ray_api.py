import threading

import pytest
from shared_fixtures import HOOKS, FakeRay, node_row, python
from wording import THEIRS, said

from verl_regress.base.errors import BadInput, Exit, RegressError
from verl_regress.cluster import ray_api
from verl_regress.cluster.ray_api import RayApi, Unreachable


@pytest.fixture
def api(ray):
    return RayApi(ray.address)


@pytest.fixture
def elsewhere():
    fake = FakeRay()
    yield fake
    fake.goes_away()


def sentence(ray, problem):
    return (
        f"Ray does not answer at {ray.address} as seen from the head ({problem}): bring the cluster up with 'make up'."
    )


def test_rays_answers_are_parsed(api, ray):
    ray.knows({"submission_id": "job", "status": "RUNNING", "job_id": "01"})
    ray.answers["/api/jobs/"][1].append({"submission_id": None, "type": "DRIVER"})
    ray.has_nodes(node_row("head", "10.0.0.1", CPU=0.0), node_row("worker-0", "10.0.0.2", state="DEAD"))
    assert api.ask("/api/version") == {"ray_version": "2.60.0"}
    assert api.job("job") == {"submission_id": "job", "status": "RUNNING", "job_id": "01"}
    assert api.jobs() == {"job": api.job("job")}
    assert api.job("../a b") is None
    assert ray.seen[-1][0] == "/api/jobs/..%2Fa%20b"
    head, worker = api.nodes()
    assert (head.name, head.address, head.is_head) == ("head", "10.0.0.1", True)
    assert (head.alive, head.resources) == (True, {"CPU": 0.0})
    assert (worker.name, worker.is_head, worker.alive, worker.resources) == ("worker-0", False, False, {})


def test_actors_are_asked_for_by_rays_own_job_id(api, ray):
    ray.knows({"submission_id": "job", "job_id": "01"}, {"submission_id": "young", "job_id": None})
    path = "/api/v0/actors?limit=1000&detail=1&filter_keys=job_id&filter_predicates=%3D&filter_values=01"
    ray.answers[path] = (200, {"data": {"result": {"result": [{"class_name": "Worker"}]}}})
    assert api.actors("job") == [{"class_name": "Worker"}]
    assert api.actors("young") == api.actors("nobody") == []


@pytest.mark.parametrize(
    ("mode", "path", "header"),
    [("token", True, "Bearer secret"), ("disabled", True, None), (None, True, None), ("token", False, None)],
)
def test_the_token_goes_along_where_the_node_has_one(api, ray, tmp_path, monkeypatch, mode, path, header):
    (tmp_path / "token").write_text("secret\n")
    if mode:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    if path:
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    api.ask("/api/version")
    assert ray.seen[-1][1].get("Authorization") == header


def test_a_token_in_the_environment_goes_before_the_file(monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "as KubeRay passes it\n")
    assert ray_api.token() == "as KubeRay passes it"
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    assert ray_api.token() == "as KubeRay passes it"
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert ray_api.token() is None


@pytest.fixture
def with_token(ray, tmp_path, monkeypatch):
    (tmp_path / "token").write_text("secret\n")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


# promise: sends Ray's token to an address that a JobSpec names
# promise: gives your token or secrets to another user of the shared root who writes the JobSpec
@pytest.mark.usefixtures("with_token", "sdk")
def test_an_address_that_a_jobspec_names_gets_no_token(ray, monkeypatch):
    """Before: whoever listened there got it, and with it every node."""
    monkeypatch.setattr(ray_api, "HEAD", "http://127.0.0.1:8265")
    api = RayApi(ray.address)
    job = {"entrypoint_num_cpus": 1.0, "entrypoint_resources": {}, "runtime_env": {}, "metadata": {}}
    for send in (
        lambda: api.job("job"),
        lambda: api.stop("job"),
        lambda: api.submit(submission_id="job", entrypoint="x", **job),
        lambda: api.submit_by_command("job", ["true"]),
    ):
        with pytest.raises(BadInput) as caught:
            send()
        assert str(caught.value) == (
            f"{ray.address} (from the JobSpec's ray.address, or address of the Ray base config) is not this cluster's head, the "
            "only one that gets its Ray token: use http://127.0.0.1:8265."
        )
    assert ray.seen == []


@pytest.mark.usefixtures("with_token")
@pytest.mark.parametrize(("gcs", "gets_it"), [("127.0.0.1:6379", True), ("127.0.0.2:6379", False), ("auto", False)])
def test_a_job_sends_the_token_to_the_host_of_its_gcs(ray, monkeypatch, gcs, gets_it):
    monkeypatch.setattr(ray_api, "HEAD", ray.address.replace("127.0.0.1", "localhost"))
    monkeypatch.setenv("RAY_ADDRESS", gcs)
    if gets_it:
        assert RayApi(ray.address).ask("/api/version") == {"ray_version": "2.60.0"}
    else:
        with pytest.raises(BadInput):
            RayApi(ray.address).ask("/api/version")
    assert [headers.get("Authorization") for _, headers in ray.seen] == (["Bearer secret"] if gets_it else [])


@pytest.mark.usefixtures("with_token")
def test_no_redirect_is_followed(api, ray, elsewhere):
    """Before: the token went along, to any host."""
    ray.answers["/api/version"] = (302, b"")
    ray.redirects["/api/version"] = elsewhere.address + "/api/version"
    with pytest.raises(Unreachable) as caught:
        api.ask("/api/version")
    assert "(HTTP Error 302: " in str(caught.value)
    assert (len(ray.seen), elsewhere.seen) == (1, [])


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_job_goes_along_no_redirect(ray, elsewhere, sdk, code):
    """Before: with 307 and 308 its description went to any host, and what answered there was taken for Ray."""
    sdk.on_submit = lambda **job: sdk.client._do_request("POST", "/api/jobs/", json=job)
    ray.answers["/api/jobs/"] = (code, b"")
    there = ray.redirects["/api/jobs/"] = elsewhere.address + "/api/jobs/"
    with pytest.raises(RegressError) as caught:
        RayApi(ray.address).submit(submission_id="job", entrypoint="x")
    assert str(caught.value) == (
        f"Ray refused the job: HTTP {code} redirects it to {there}, and no redirect is followed: set ray.address of the JobSpec, or "
        "address of the Ray base config, to the head's own address"
    )
    assert elsewhere.seen == []


def test_no_proxy_is_used_for_our_own_head(ray):
    """In a separate process: the environment is read once."""
    program = f"from verl_regress.cluster.ray_api import RayApi; print(RayApi({ray.address!r}).ask('/api/version'))"
    ended = python("-c", program, env={"PYTHONPATH": str(HOOKS.parent), "http_proxy": "http://127.0.0.1:1"})
    assert (ended.stdout, ended.stderr) == ("{'ray_version': '2.60.0'}\n", "")


@pytest.mark.parametrize("code", [401, 403])
def test_a_token_that_is_refused(api, ray, code):
    ray.answers["/api/version"] = (code, b"no")
    with pytest.raises(RegressError) as caught:
        api.ask("/api/version")
    assert caught.value.status is Exit.UNREACHABLE
    assert str(caught.value) == (
        f"Ray at {ray.address} refuses our token (HTTP {code}): the cluster was started with another one; 'make down up FORCE=1' starts it with ours and ends its jobs."
    )


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((500, b"no"), "HTTP Error 500: Internal Server Error"),
        ((200, b""), THEIRS),
        ((None, b"SSH-2.0-OpenSSH\r\n"), "SSH-2.0-OpenSSH\r\n"),
    ],
)
def test_an_answer_that_cannot_be_used(api, ray, answer, problem):
    ray.answers["/api/version"] = answer
    with pytest.raises(Unreachable) as caught:
        api.ask("/api/version")
    assert (str(caught.value), caught.value.status) == (said(sentence(ray, problem)), Exit.UNREACHABLE)


def test_nothing_listens_at_the_address(api, ray):
    ray.goes_away()
    for ask in (api.nodes, api.jobs, lambda: api.job("job")):
        with pytest.raises(Unreachable) as caught:
            ask()
        assert str(caught.value) == sentence(ray, "[Errno 111] Connection refused")


def test_a_server_that_never_answers(ray):
    hung = threading.Event()
    ray.answers["/api/version"] = (200, lambda: hung.wait(30) and b"")
    with pytest.raises(Unreachable) as caught:
        RayApi(ray.address, timeout=0.2).ask("/api/version")
    hung.set()
    assert str(caught.value) == sentence(ray, "timed out")
