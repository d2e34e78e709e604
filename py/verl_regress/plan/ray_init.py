"""What a job's own `ray.init` refuses, because its cluster runs already and Ray has the job's variables.

Read in Ray 2.60 (ray/_private/worker.py: init; ray/runtime_env/runtime_env.py: _merge_runtime_env).
"""

from verl_regress.base.errors import BadInput
from verl_regress.plan.compose import Composed
from verl_regress.plan.environment import Environment

_KEY = "ray_kwargs.ray_init"  # of verl's config: the arguments of ray.init
# Arguments for a new cluster: refused unless they are null, or unless they are empty.
_UNLESS_NULL = ("num_cpus", "num_gpus", "resources", "labels", "object_store_memory", "_node_name")
_UNLESS_EMPTY = ("local_mode", "_system_config", "_enable_object_reconstruction")


def check(composed: Composed, environment: Environment) -> None:
    """Raise BadInput for an argument that needs a new cluster, and for a variable that the job has, too."""
    for name in (*_UNLESS_NULL, *_UNLESS_EMPTY):
        value = composed.value(f"{_KEY}.{name}")
        if value if name in _UNLESS_EMPTY else value is not None:
            raise BadInput(
                f"{composed.named(f'{_KEY}.{name}', value)} is refused: Ray takes it for a new cluster only, and the job's cluster runs already; leave it out."
            )
    if (address := composed.value(f"{_KEY}.address")) not in (None, "auto"):
        raise BadInput(
            f"{composed.named(f'{_KEY}.address', address)} is refused: the job finds its cluster by itself; leave it out."
        )
    if environment.variables.get("RAY_OVERRIDE_JOB_RUNTIME_ENV") == "1":
        return  # then Ray takes what ray.init says
    variables = composed.value(f"{_KEY}.runtime_env.env_vars")
    variables = variables if isinstance(variables, dict) else {}
    both = next((name for name in variables if name in environment.runtime_env()["env_vars"]), None)
    if both is not None:
        raise BadInput(
            f"{composed.named(f'{_KEY}.runtime_env.env_vars.{both}', variables[both])} is refused: the job has this variable, too "
            f"(from {environment.origins.get(both, 'verl-regress')}), and Ray takes none from both; leave it out, and write it under env_vars of the JobSpec."
        )
