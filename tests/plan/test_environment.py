"""The variables of a job, and what its ray.init refuses, which is refused before the job is submitted."""

import json
import re
import shlex

import pytest
from hermetic import REPO
from shared_fixtures import CONFIG, SPEC, record, write

RAY = "ray_kwargs: {ray_init: {num_cpus: null, runtime_env: {}}}\n"
NEW = "is refused: Ray takes it for a new cluster only, and the job's cluster runs already; leave it out."


@pytest.fixture
def planned(submit, shared):
    """A dry run with these overrides, of a verl that has ray_kwargs."""
    write(shared.snapshots / "codeA" / "verl" / "trainer" / "config" / "ppo_trainer.yaml", CONFIG + RAY)
    record(shared.snapshots / "codeA")
    return lambda *texts, **more: submit("DRY_RUN=1", f"OVERRIDES={' '.join(texts)}", **more)


@pytest.mark.parametrize(
    ("override", "name", "value"),
    [
        ("ray_kwargs.ray_init.num_cpus=32", "num_cpus", "32"),
        ("ray_kwargs.ray_init.num_cpus=0", "num_cpus", "0"),
        ("+ray_kwargs.ray_init.resources={a: 1}", "resources", "{'a': 1}"),
        ("+ray_kwargs.ray_init.object_store_memory=1000", "object_store_memory", "1000"),
        ("+ray_kwargs.ray_init.local_mode=True", "local_mode", "True"),
        ("+ray_kwargs.ray_init._system_config={a: 1}", "_system_config", "{'a': 1}"),
    ],
)
def test_an_argument_for_a_new_cluster_is_refused(planned, override, name, value):
    spec = f"{SPEC}trainer_overrides: [{json.dumps(override)}]\n"
    assert planned(spec=spec).is_refusal(f"ray_kwargs.ray_init.{name}={value} (from my/ppo.yaml) {NEW}")


def test_an_address_is_refused(planned):
    assert planned("+ray_kwargs.ray_init.address=local").is_refusal(
        "ray_kwargs.ray_init.address=local (from OVERRIDES) is refused: the job finds its cluster by itself; leave it out."
    )


@pytest.mark.parametrize(("name", "origin"), [("HF_HOME", "verl-regress"), ("MINE", "my/ppo.yaml")])
def test_a_variable_that_the_job_has_too_is_refused(planned, name, origin):
    key = f"ray_kwargs.ray_init.runtime_env.env_vars.{name}"
    assert planned(f"+{key}=/data/hf", spec=f"{SPEC}env_vars: {{MINE: x}}\n").is_refusal(
        f"{key}=/data/hf (from OVERRIDES) is refused: the job has this variable, too (from {origin}), and Ray takes none from both; leave it "
        "out, and write it under env_vars of the JobSpec."
    )


def test_what_ray_takes_is_accepted(planned):
    texts = (
        "ray_kwargs.ray_init.num_cpus=null", "+ray_kwargs.ray_init.address=auto", "+ray_kwargs.ray_init._system_config={}",
        "+ray_kwargs.ray_init.runtime_env.env_vars.OTHER=1", "+ray_kwargs.ray_init.local_mode=False",
    )  # fmt: skip
    assert planned(*texts).status == 0
    own = '{RAY_OVERRIDE_JOB_RUNTIME_ENV: "1", MINE: x}'
    mine = "+ray_kwargs.ray_init.runtime_env.env_vars.MINE=y"
    assert planned(mine, spec=f"{SPEC}env_vars: {own}\n").status == 0
    dollar = planned(mine, spec=f"{SPEC}env_vars: {{MINE: $HOME/x}}\n")
    assert dollar.status == 0  # Ray does not get what the hook env_vars sets


def test_a_library_that_is_preloaded_is_trusted_as_pythonpath_is(planned, shared):
    library = write(shared.user_code / "mine.so", "")
    spec = f"{SPEC}env_vars: {{LD_PRELOAD: '/elsewhere.so {library}'}}\n"
    assert planned(spec=spec).status == 0
    library.chmod(0o666)
    assert planned(spec=spec).is_refusal(
        f"LD_PRELOAD={library} (from my/ppo.yaml) is refused, because {library} can be changed by every user (mode 0666), and what is there "
        f"decides what your job does: type 'chmod go-w {library}', or name one of your own."
    )


def test_the_job_of_make_acceptance_is_taken(submit):
    """It has a secret, and records which hosts it asks for."""
    step = (REPO / "scripts" / "lib" / "acceptance.bash").read_text()
    lines = re.search(r"printf '%s\\n' ('secrets:'.*) >>", step)[1]
    assert submit("DRY_RUN=1", spec="\n".join([SPEC.rstrip(), *shlex.split(lines)])).status == 0
