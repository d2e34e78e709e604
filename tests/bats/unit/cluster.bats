#!/usr/bin/env bats
# Rendering and waiting, without an engine: compose's services, the last line of a script, waiting for a condition.

setup() {
  load ../test_helper
  sandbox::make
}

@test "the worker services come from WORKERS, their names from CLUSTER_NAME" {
  sandbox::lines WORKERS=3 CLUSTER_NAME=mine <<<'compose::render this'
  assert_status 0
  assert_line 'services:'
  assert_line '  worker-0:'
  assert_line '  worker-2:'
  assert_line '    container_name: mine-worker-2'
  refute_text 'worker-3'
}

@test "with SHARED_GROUP the processes of every node are in that group" {
  sandbox::lines WORKERS=2 SHARED_GROUP=42000 <<<'compose::render this'
  assert_status 0
  [[ $(grep -xc '    group_add: \["42000"\]' <<<"$output") == 3 ]] || fail 'not three nodes'
  sandbox::lines WORKERS=2 <<<'compose::render this'
  refute_text group_add
}

@test "root gives a shared root to the owner of WORKDIR, but none that a group shares" {
  ((EUID == 0)) || skip 'only root gives files away'
  local shared="${BOX}/work dir/shared"
  ln -s "$(type -P od)" "${BOX}/bin/od"
  mkdir -p "$shared"
  chown 4242:4242 "${BOX}/work dir"
  chown 4343:4343 "$shared"
  mkdir "${shared}/jobs"
  sandbox::lines SHARED_GROUP=42000 <<<$'cluster::ensure_directories\ncluster::ensure_token'
  assert_status 0
  [[ $(stat -c %u:%g "$shared" "${BOX}/work dir/cache" | paste -sd' ') == '4343:4343 4242:4242' ]] || fail "$(stat -c %u:%g "$shared")"
  sandbox::lines <<<$'cluster::ensure_directories\ncluster::ensure_token'
  [[ $(stat -c %u:%g "$shared") == 4242:4242 ]] || fail "$(stat -c %u:%g "$shared")"
}

@test "Ray is started with every variable of the node, but for two with PROFILE=rocm" {
  # shellcheck disable=SC2016  # expanded when the stub runs
  stub docker '[[ $1 != inspect ]] || echo true'
  sandbox::lines CLUSTER_NAME=mine PROFILE=rocm NODE_IMAGE=mine:1 <<<'cluster::_start_worker worker-0 head:6379'
  assert_status 0
  assert_called 'worker-0.log env --unset=ROCR_VISIBLE_DEVICES --unset=CUDA_VISIBLE_DEVICES VERL_REGRESS_RAY=mine VERL_REGRESS_NODE=worker-0 VERL_REGRESS_OWNER= RAY_NUM_REDIS_GET_RETRIES=600 python3 /private/common/code/verl_regress/'
  assert_called '/ray_start.py start --node-name=worker-0 '
  sandbox::lines CLUSTER_NAME=mine <<<'cluster::_start_worker worker-1 head:6379'
  assert_called 'worker-1.log env VERL_REGRESS_RAY=mine '
  sandbox::lines CLUSTER_NAME=mine PROFILE=npu WORKER_GPUS=2 <<<'cluster::_start_worker worker-2 head:6379'
  assert_called '--resources={"worker_node": 100, "NPU": 2}'
}

@test "the nodes whose packages are not listed since their start list them at the end" {
  stub docker - <<'STUB'
case "$*" in
  inspect*) echo true ;;
  *' await-nodes '*) echo worker-1 ;;
esac
STUB
  sandbox::lines CLUSTER_NAME=mine <<<'cluster::await_ready'
  assert_status 0
  [[ $(grep -c 'list-packages' "$CALLS") == 1 ]] || fail "$(<"$CALLS")"
  assert_called ' list-packages --cluster mine --node worker-1'
}

# head_with_ray VERSION: a head whose Python has that Ray.
head_with_ray() {
  fake_ray "${BOX}/site" "$1"
  stub docker - <<STUB
case "\$*" in
  inspect*) echo true ;;
  *' python3 - ray '*) PYTHONPATH="\${BOX}/site" "$(real_python)" "\${@:9}" ;;
  *' stop '*) echo 0 ;;
esac
STUB
}

@test "a head whose Ray is too old for the token is refused before Ray is started" {
  head_with_ray 2.51.2
  sandbox::lines NODE_IMAGE=mine:1 <<<'cluster::ensure_head'
  assert_error 1 "The head has Ray 2.51.2, which ignores Ray's token (2.52 and later know it), so that any process in its network could run code on the nodes: use a NODE_IMAGE with Ray 2.52 or later."
  refute_called '--head'
  head_with_ray 2.52.0
  sandbox::lines NODE_IMAGE=mine:1 <<<'cluster::ensure_head'
  assert_status 0
  assert_called 'ray_start.py start --node-name=head '
}

@test "a head without one part of its Ray is started again, with nothing for a job" {
  local part all='agent gcs_server raylet dashboard.py'
  stub docker - <<'STUB'
case "$*" in
  inspect*) echo true ;;
  *' python3 - running '*) cat "${BOX}/running" ;;
  *' python3 - ray '*) echo 2.60.0 ;;
  *' stop '*) echo 3 ;;
esac
STUB
  echo "$all" >"${BOX}/running"
  sandbox::verb cluster::ensure_head
  assert_line 'ok      head: Ray runs, with the GCS on port 6379'
  refute_called 'ray_start.py start '
  for part in gcs_server raylet dashboard.py; do
    : >"$CALLS"
    echo "${all/ ${part}/}" >"${BOX}/running"
    sandbox::verb cluster::ensure_head
    assert_line 'changed head: Ray started'
    assert_called 'ray_start.py start --node-name=head '
    assert_called ' --num-cpus=0 --num-gpus=0'
  done
  : >"$CALLS"
  echo ray-start >"${BOX}/running"
  sandbox::verb cluster::ensure_head
  assert_line 'ok      head: Ray is being started'
  refute_called 'ray_start.py start '
}

@test "make up leaves a worker of the cluster alone, and starts the others" {
  stub docker - <<'STUB'
case "$*" in
  inspect*) echo true ;;
  *worker-[0-9]' sh -c '*' hostname -i') words=($*); echo "10.0.0.${words[1]##*-}" ;;
  *' hostname -i') echo fd00::9 ;;
  *worker-2' sh -c '*' python3 - running '*) ;;
  *' python3 - running '*) echo agent raylet ;;
  *' nodes --log-dir '*) printf '%s\n' head=fd00::9 worker-0=10.0.0.0 worker-1=10.0.0.77 ;;
  *' stop '*) echo 3 ;;
esac
STUB
  sandbox::lines WORKERS=3 WORKER_CPUS=64 <<<'cluster_knobs::keep worker-0 WORKER_CPUS'
  sandbox::lines WORKERS=3 WORKER_CPUS=4 <<<$'cluster::ensure_workers\ncluster::tell_unused_knobs'
  assert_status 0
  grep -qx WORKER_CPUS=64 "${BOX}/work dir/clusters/mvp11/worker-0" # what each was started with
  grep -qx WORKER_CPUS=4 "${BOX}/work dir/clusters/mvp11/worker-2"
  assert_line "warning WORKER_CPUS was 64, is 4 (from the command line or environment): Ray runs and keeps the old value; 'make down up' applies the new one."
  assert_line 'ok      worker-0: Ray is ALIVE in this cluster'
  assert_line 'changed worker-1: Ray starting'
  assert_line 'changed worker-2: Ray starting'
  refute_called '--node-name=worker-0'
  assert_called '--address=[fd00::9]:6379'
  [[ $(grep -cE 'ray_start.py start --node-name=worker-[12] ' "$CALLS") == 2 ]] || fail "$(<"$CALLS")"
}

@test "make up does not restart a worker if it is unknown whether it is in the cluster" {
  stub docker - <<'STUB'
case "$*" in
  inspect*) echo true ;;
  *' hostname -i') echo 10.0.0.1 ;;
  *' python3 - running '*) echo agent raylet ;;
  *' nodes --log-dir '*) echo 'error   Ray does not answer.' >&2; exit 8 ;;
esac
STUB
  sandbox::lines WORKERS=2 <<<'cluster::ensure_workers'
  assert_error 8 'Ray does not answer.'
  refute_called ' start --node-name='
  sed -i "s/\*' hostname -i') echo 10.0.0.1/*worker-0' sh -c '*' hostname -i') exit 8/; s/\(nodes --log-dir '\*) \).*/\1echo worker-0=10.0.0.1 ;;/" "${BOX}/bin/docker"
  sandbox::lines WORKERS=1 <<<'cluster::ensure_workers'
  assert_status 8
  refute_called ' start --node-name='
}

@test "if Ray counts a worker's GPUs, it must find GPUS_PER_WORKER of them" {
  stub docker - <<'STUB'
case "$*" in
  inspect*) echo true ;;
  *'hostname -i') echo 10.0.0.1 ;;
esac
STUB
  sandbox::lines WORKERS=1 WORKER_GPUS= GPUS_PER_WORKER=8 <<<'cluster::await_ready'
  assert_status 0
  assert_called 'await-nodes --deadline 120 --log-dir /private/ray/mvp11 --gcs-port 6379 --worker-gpus 8 head=10.0.0.1 worker-0=10.0.0.1'
  : >"$CALLS"
  sandbox::lines WORKERS=1 WORKER_GPUS=4 <<<'cluster::await_ready'
  assert_called 'await-nodes --deadline 120'
  refute_called '--worker-gpus'
}

@test "wait::until: a condition that is met, a deadline, an early abort" {
  sandbox::lines <<'LINES'
wait::until 5 - true && printf 'held\n'
wait::until 0 - false || printf 'deadline %d\n' "$?"
wait::until 5 true false || printf 'abort %d\n' "$?"
LINES
  assert_status 0
  assert_line 'held'
  assert_line 'deadline 1'
  assert_line 'abort 2'
}

@test "the last line of a script is its result, with the table's words" {
  sandbox::lines <<<"cli::die 5 'It is so.'"
  assert_error 5 'It is so.'
  [[ ${lines[-1]} =~ ^'error   lines: exit 5 (not schedulable in time) after '[0-9.]+' s'$ ]] || fail 'the last line'
  sandbox::lines <<<':'
  [[ ${lines[-1]} =~ ^'==      lines: done in '[0-9.]+' s'$ ]] || fail 'the last line'
}

@test "exit handlers run, last first, however the script ends" {
  sandbox::lines <<'LINES'
cli::temp_dir dir
printf '%s\n' "$dir" >"${HOME}/dir"
cli::on_exit printf 'first\n'
cli::on_exit printf 'second %s\n' 'with spaces'
false
LINES
  assert_status 1
  [[ $output == *$'second with spaces\nfirst'* ]]
  [[ ! -e $(<"${BOX}/home dir/dir") ]]
}

@test "what a subshell registers runs once when it ends, and its caller's does not" {
  sandbox::lines <<'LINES'
cli::on_exit printf 'the script ends\n'
makes() { cli::temp_dir dir && printf '%s\n' "$dir" && cli::on_exit printf 'the subshell ends\n'; [[ -e $dir ]] || exit 1; exit "$1"; }
for status in 0 7; do
  made=$(makes "$status") || [[ $? == "$status" ]]
  [[ ! -e ${made%%$'\n'*} && $made == *$'\nthe subshell ends' ]]
done
cli::part makes 0
(makes 3) || [[ $? == 3 ]]
cli::await_parts
printf 'it goes on\n'
LINES
  assert_status 0
  [[ $(grep -cxF 'the script ends' <<<"$output") == 1 && $output == *$'it goes on\nthe script ends\n'* && -z $(ls "${BOX}/tmp") ]] || fail 'cleaned up at the wrong time'
}

@test "the token is made once, for its owner alone, and printed nowhere" {
  stub od 'cat >/dev/null; printf " 0a 1b\n"'
  mkdir "${BOX}/work dir"
  printf 0123456789abcdef >"${BOX}/work dir/id"
  sandbox::lines WORKDIR="${BOX}/work dir" <<<$'cluster::ensure_directories\ncluster::ensure_token\ncluster::ensure_token'
  assert_status 0
  [[ $(stat -c '%a' "${BOX}/work dir/secrets/mvp11.token") == 600 && $(stat -c '%a' "${BOX}/work dir/secrets") == 700 ]]
  refute_text '0a1b'
  [[ $(grep -c 'made Ray' <<<"$output") == 1 ]]
}

@test "a token that was lost is the one that a node has" {
  local token
  token=$(printf '0a1b%.0s' {1..16})
  mkdir -p "${BOX}/work dir"/{cache,secrets,shared}
  printf 0123456789abcdef >"${BOX}/work dir/id"
  stub docker - <<STUB
case \$* in
  inspect*) echo true ;;
  'exec mvp11-worker-0 '*'cat -- "\$RAY_AUTH_TOKEN_PATH"') printf ${token} ;;
  exec*) exit 1 ;;
esac
STUB
  sandbox::lines WORKDIR="${BOX}/work dir" <<<'cluster::ensure_token'
  assert_status 0
  assert_line "changed wrote Ray's token for mvp11 again, as worker-0 has it (${BOX}/work dir/secrets/mvp11.token, mode 600)"
  [[ $(<"${BOX}/work dir/secrets/mvp11.token") == "$token" ]]
  refute_text "$token"
}

@test "a new token that cannot be written leaves no token behind" {
  mkdir -p "${BOX}/work dir"/{cache,secrets,shared}
  printf 0123456789abcdef >"${BOX}/work dir/id"
  stub docker 'exit 1'
  stub od 'exit 1'
  sandbox::lines WORKDIR="${BOX}/work dir" <<<'cluster::ensure_token'
  assert_status 1
  refute_text "made Ray's token"
  [[ ! -e ${BOX}/work\ dir/secrets/mvp11.token ]]
}
