"""The scripts of the nodes where our own scripts do not run: Bash that starts Ray as scripts/lib/cluster.bash does.

The head starts without CPUs and GPUs, waits for the workers, submits the job from inside, follows it, and ends with its
exit status (the table in the README). They give each other time to pull the image, too. A worker runs until the head's Ray is gone. They
meet in the cluster's directory on the shared root, where Ray's logs and marks are: a worker announces itself only once this head answers.
"""

import json
from shlex import quote

from verl_regress.export.job import HELPER, Export

_PULL_SECONDS = 7200  # for the image
_HEAD = """\
set -euo pipefail
dir={dir} deadline=$((SECONDS + {patience}))
run() {{ python3 {helper} --shared-root {root} "$@"; }}
mkdir -p "$dir"
rm -f -- "$dir"/*.start "$dir"/*.address
mark=$(date +%s)-$$
printf '%s\\n' "$mark" >"$dir/head.start"
env VERL_REGRESS_NODE=head ray start --head --node-name=head --node-ip-address="$address" --port={port} --dashboard-host=127.0.0.1 \\
  --dashboard-port=8265 --num-cpus=0 --num-gpus=0 --object-store-memory={store} --labels="start=$mark"
nodes=("head=$address")
for ((i = 0; i < {workers}; i++)); do
  until [[ -s $dir/worker-$i.address ]]; do
    ((SECONDS < deadline)) || {{ echo "error   worker-$i did not start within {patience} s (CLUSTER_TIMEOUT and 7200 s for the image)." >&2; exit 8; }}
    sleep 1
  done
  nodes+=("worker-$i=$(<"$dir/worker-$i.address")")
done
run await-nodes --deadline {timeout} --log-dir "$dir" --gcs-port {port}{expected} "${{nodes[@]}}"
{submit}
status=0
run wait "$job" --deadlines={deadlines} >/dev/null || status=$?
exit "$status"
"""

_WORKER = """\
set -euo pipefail
dir={dir} deadline=$((SECONDS + {patience})) mark=$(date +%s)-$$
until ray health-check --address "$head:{port}" >/dev/null 2>&1; do
  ((SECONDS < deadline)) || {{ echo "error   the head did not answer at $head:{port} within {patience} s (CLUSTER_TIMEOUT and 7200 s for the image)." >&2; exit 8; }}
  sleep 1
done
printf '%s\\n' "$mark" >"$dir/$name.start"
python3 {helper} --shared-root {root} list-packages --cluster {cluster} --node "$name"
printf '%s\\n' "$address" >"$dir/$name.tmp"
mv -- "$dir/$name.tmp" "$dir/$name.address"
exec env {unset}VERL_REGRESS_NODE="$name" ray start --block --address="$head:{port}" --node-name="$name" --node-ip-address="$address" \\
  --object-store-memory={store} --labels="start=$mark" --resources={resources}{counted}
"""


def head(export: Export, request_dir: str, values: dict[str, str]) -> str:
    """The head's script, after lines that set `address`.

    `request_dir` has the request's files; `values` are the job's secrets: by name the Bash word that expands to the value.
    """
    site = export.site
    wanted = f" --worker-gpus {site.gpus_per_worker}" if export.vendor and "GPU" not in site.declared else ""
    knobs = site.knobs
    limits = (
        knobs["PENDING_TIMEOUT"],
        knobs["START_TIMEOUT"],
        knobs["STALL_TIMEOUT"],
        knobs["UNREACHABLE_TIMEOUT"],
    )
    piped, taken = (f"{secrets_on_stdin(values)} | ", "--secrets ") if values else ("", "")
    return _HEAD.format(
        **_common(export),
        timeout=site.knobs["CLUSTER_TIMEOUT"],
        workers=len(site.workers),
        expected=wanted,
        submit=f"job=$({piped}run submit-exported {taken}{request_dir})",
        deadlines=",".join(limits),
    )


def worker(export: Export) -> str:
    """A worker's script, after lines that set `name`, `address` and `head`."""
    site = export.site
    return _WORKER.format(
        **_common(export),
        cluster=export.name,
        unset="".join(f"-u {name} " for name in site.unset),
        resources=quote(json.dumps(dict(site.resources))),
        counted="".join(f" --num-{name.lower()}s={count}" for name, count in site.declared.items()),
    )


def secrets_on_stdin(values: dict[str, str]) -> str:
    """Bash that prints the secrets as `submit-exported --secrets` reads them. printf is the shell's own: no process list shows them."""
    printed = [f"printf '{name}=%s\\0' {word}" for name, word in values.items()]
    return "{ " + "; ".join([*printed, "printf '\\0'"]) + "; }"


def _common(export: Export) -> dict[str, str | int]:
    knobs = export.site.knobs
    return {
        "dir": quote(f"{export.root}/ray/{export.name}"),
        "helper": quote(HELPER),
        "root": quote(export.root),
        "patience": int(knobs["CLUSTER_TIMEOUT"]) + _PULL_SECONDS,
        "port": knobs["GCS_PORT"],
        "store": knobs["OBJECT_STORE_BYTES"],
    }
