# bench: what is timed and compared. A row is a function row::NAME that runs both sides in turns; each run is a line "row, side,
# number" in BENCH_RUNS. The side "ours" is ours, the others are what you would type without us.
# shellcheck shell=bash

readonly BENCH_DIR="${REPO_DIR}/build/bench"
readonly BENCH_RUNS="${BENCH_DIR}/runs.tsv"
readonly BENCH_LOG="${BENCH_DIR}/log"
readonly BENCH_ROUNDS=5 BENCH_SESSIONS=2 # for rows of seconds, and for the rows of whole sessions
# A resource that no node has: such a job is accepted, waits, and does not use the machine while something is timed.
readonly BENCH_NO_PLACE='{"worker_node": 1000}'

# bench::time ROW SIDE COMMAND...: one run; its seconds are in BENCH_TOOK afterwards. A command that fails ends the bench, because its
# time means nothing.
bench::time() {
  local row=$1 side=$2 began took
  shift 2
  began=${EPOCHREALTIME/./}
  "$@" >>"$BENCH_LOG" 2>&1 </dev/null || cli::die 1 "'$*' (${side} of the row ${row}) failed: read the end of ${BENCH_LOG}."
  took=$((${EPOCHREALTIME/./} - began))
  BENCH_TOOK=$(printf '%d.%06d' $((took / 1000000)) $((took % 1000000)))
  bench::record "$row" "$side" "$BENCH_TOOK"
}

bench::record() {
  printf '%s\t%s\t%s\n' "$@" >>"$BENCH_RUNS"
  log::info "$1: $2 $3"
}

# bench::quietly COMMAND...: preparation between two runs.
bench::quietly() { "$@" >>"$BENCH_LOG" 2>&1 </dev/null || cli::die 1 "'$*' failed: read the end of ${BENCH_LOG}."; }

bench::make() { make --no-print-directory -C "$REPO_DIR" "$@"; }
bench::python() { venv::script maintain/bench.py "$@"; }
bench::in_head() { docker exec "${CLUSTER_NAME}-head" "$@"; }

# bench::own_cluster: from here on all commands use a separate cluster, next to the one that the user may have.
bench::own_cluster() {
  local name port
  read -r name port < <(env::load && printf '%s %s\n' "$CLUSTER_NAME" "$DASHBOARD_PORT")
  export CLUSTER_NAME=${name}-bench DASHBOARD_PORT=$((port + 1000)) WORKDIR=${BENCH_DIR}/workdir
  unset CODE_ID CODE_A CODE_B WORKLOAD JOBSPEC JOB WAIT JSON DRY_RUN OVERRIDES OVERRIDES_FILE SUBMISSION_ID TAR LIMIT KEEP ONLY SUITE
  unset BUDGET ALLOW SESSION TRAIN_SEED PERTURBED
}

# bench::prepare: cluster, data, model, snapshots; and the same containers and `ray start` as a user would write them.
bench::prepare() {
  bench::_forget
  bench::quietly bench::make build up prepare snapshot
  rm -rf "${BENCH_DIR}/tree"
  bench::quietly cp -a "${WORKDIR}/shared/common/code/verl/codeA" "${BENCH_DIR}/tree"
  chmod -R u+w "${BENCH_DIR}/tree"
  find "${BENCH_DIR}/tree" -name __pycache__ -prune -exec rm -rf {} +
  bench::change_tree 0
  bench::quietly bench::make snapshot CODE_ID=codeB VERL_SOURCE="path:${BENCH_DIR}/tree"
  printf 'workload: ppo\nresources: {entrypoint_resources: %s}\n' "$BENCH_NO_PLACE" >"${BENCH_DIR}/waits.yaml"
  bench::_knobs >"${BENCH_DIR}/compose.yaml" 3>"${BENCH_DIR}/worker"
  mapfile -d '' -t BENCH_WORKER <"${BENCH_DIR}/worker"
}

# What an earlier bench left would be skipped and cost no time; only data and model stay. Snapshots are read-only folders.
bench::_forget() {
  local old
  for old in "${WORKDIR}/shared"/{common/code,jobs,verify,bare} "${WORKDIR}/copy"; do
    [[ ! -d $old ]] || find "$old" -type d -exec chmod u+w {} +
    rm -rf "$old"
  done
}

# In a separate process, because the knobs would count as given: the rendered containers on 1, a worker's words on 3.
bench::_knobs() (
  env::load
  cluster::ensure_directories
  compose::need_image
  compose::run this config
  printf '%s\0' "--address=${CLUSTER_NAME}-head:${GCS_PORT}" "--resources=${WORKER_RESOURCES}" \
    "--object-store-memory=${OBJECT_STORE_BYTES}" >&3
  [[ -z $WORKER_CPUS ]] || printf '%s\0' "--num-cpus=${WORKER_CPUS}" >&3
  [[ -z $WORKER_GPUS ]] || printf '%s\0' "--num-gpus=${WORKER_GPUS}" >&3
)

bench::change_tree() { printf '# changed %s\n' "$1" >>"${BENCH_DIR}/tree/verl/trainer/main_ppo.py"; }

bench::compose_up() { docker compose --file "${BENCH_DIR}/compose.yaml" up --detach --no-build --quiet-pull; }

bench::ray_head() {
  bench::in_head ray start --head --node-name=head --port=6379 --dashboard-host=0.0.0.0 --dashboard-port=8265 --num-cpus=0 \
    --num-gpus=0 --object-store-memory=500000000 --disable-usage-stats
}

bench::ray_worker() { docker exec "${CLUSTER_NAME}-$1" ray start --node-name="$1" --disable-usage-stats "${BENCH_WORKER[@]}"; }

bench::await_alive() { bench::python alive "$DASHBOARD_PORT" "${WORKDIR}/secrets/${CLUSTER_NAME}.token" 3; }

# Head, then one worker after the other, waiting for each command: the order of a README.
bench::one_after_the_other() {
  bench::compose_up && bench::ray_head && bench::ray_worker worker-0 && bench::ray_worker worker-1 && bench::await_alive
}

# The fastest that two lines of shell can do: no command waits for another.
bench::all_at_once() {
  bench::compose_up || return 1
  bench::ray_head &
  bench::ray_worker worker-0 &
  bench::ray_worker worker-1 &
  bench::await_alive
}

# What a user types to see what `make status` shows.
bench::four_commands() {
  bench::in_head ray status && bench::in_head ray list nodes && bench::in_head ray list actors &&
    bench::in_head ray job list --address http://127.0.0.1:8265
}

# bench::take_down: nothing runs; the directories that a user would mount, and that `make down` empties, exist again.
bench::take_down() { bench::make down FORCE=1; }

row::up() {
  local round
  for ((round = 0; round < BENCH_ROUNDS; round++)); do
    bench::quietly bench::take_down
    bench::time up 'one after the other' bench::one_after_the_other
    wait
    bench::quietly bench::take_down
    bench::time up 'all at once' bench::all_at_once
    wait
    bench::quietly bench::take_down
    bench::time up ours bench::make up
  done
}

# Nodes are asked and started at once, so more of them should cost little; on this machine they share its cores.
row::up_workers() {
  local round
  for ((round = 0; round < BENCH_ROUNDS; round++)); do
    bench::quietly bench::take_down
    bench::time up_workers '2 workers' bench::make up
    bench::quietly bench::take_down
    bench::time up_workers ours bench::make up WORKERS=4
  done
}

# bench::by_turns ROW TARGET SIDE COMMAND: our `make TARGET` and the other side's command, one after the other.
bench::by_turns() {
  local round
  for ((round = 0; round < BENCH_ROUNDS; round++)); do
    bench::time "$1" ours bench::make "$2"
    bench::time "$1" "$3" "$4"
  done
}

row::up_again() {
  bench::by_turns up_again up 'docker compose up' bench::compose_up
}

row::submit() {
  local round
  for ((round = 0; round < BENCH_ROUNDS; round++)); do
    bench::time submit ours bench::make submit JOBSPEC="${BENCH_DIR}/waits.yaml"
    bench::quietly bench::make stop JOB=latest
    bench::time submit 'ray job submit' bench::in_head ray job submit --no-wait --address http://127.0.0.1:8265 \
      --entrypoint-resources "$BENCH_NO_PLACE" -- true
  done
}

row::status() {
  bench::by_turns status status 'four commands' bench::four_commands
}

row::debug() {
  bench::_a_job
  bench::by_turns debug debug 'four commands' bench::four_commands
}

# A submitted job that is over, for rows that need one.
bench::_a_job() {
  bench::quietly bench::make submit JOBSPEC="${BENCH_DIR}/waits.yaml"
  bench::quietly bench::make stop JOB=latest
}

row::snapshot() {
  local round
  for ((round = 1; round <= BENCH_ROUNDS; round++)); do
    bench::change_tree "$round"
    bench::time snapshot ours bench::make snapshot CODE_ID="bench-${round}" VERL_SOURCE="path:${BENCH_DIR}/tree"
    rm -rf "${BENCH_DIR}/workdir/copy"
    bench::time snapshot 'cp -a' cp -a "${BENCH_DIR}/tree" "${BENCH_DIR}/workdir/copy"
  done
}

# The first session runs A and B; those after it use A's runs again, and run B.
row::verify() {
  local round session side='A and B'
  for ((round = 0; round < BENCH_SESSIONS; round++)); do
    bench::time verify ours bench::make verify CODE_A=codeA CODE_B=codeB
    bench::record verify:known "$side" "$BENCH_TOOK"
    side=ours
    session=$(find "${WORKDIR}/shared/verify" -mindepth 1 -maxdepth 1 | sort | tail -n 1)
    bench::quietly bench::python bare "$session" "${WORKDIR}/shared" "round-${round}"
    bench::time verify 'its training jobs, bare' bench::bare_jobs "round-${round}"
  done
}

# The training jobs of a session as `ray job submit` runs them, one after the other: verl's own command line, no launcher.
bench::bare_jobs() {
  local name names argv
  mapfile -t names <"${WORKDIR}/shared/bare/$1/order"
  for name in "${names[@]}"; do
    mapfile -d '' -t argv <"${WORKDIR}/shared/bare/$1/${name}/argv" &&
      bench::in_head "${argv[@]}" &&
      bench::python over "$DASHBOARD_PORT" "${WORKDIR}/secrets/${CLUSTER_NAME}.token" "bare-$1-${name}" || return 1
  done
}

# bench::facts: the machine, as KEY<TAB>VALUE lines.
bench::facts() {
  printf '%s\t%s\n' \
    date "$(date -u +%Y-%m-%dT%H:%M:%SZ)" \
    commit "$(release::commit)" \
    cores "$(nproc)" \
    memory "$(awk '/^MemTotal:/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo)" \
    kernel "$(uname -sr)" \
    load "$(cut -d' ' -f1 /proc/loadavg)" \
    engine "$(docker version --format '{{.Server.Version}}')" \
    compose "$(docker compose version --short)" \
    ray "$(bench::in_head python3 -c 'from importlib.metadata import version; print(version("ray"))')" \
    python "$(bench::in_head python3 -c 'import platform; print(platform.python_version())')"
}
