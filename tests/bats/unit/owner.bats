#!/usr/bin/env bats
# Who owns a cluster, and what is never ended by accident: every message, with an engine that returns what the test wrote into files.

# bats file_tags=slow

setup() {
  load ../test_helper
  sandbox::make
  cp -r "${REPO}"/docker-compose*.yaml "${REPO}/jobspecs" "${REPO}/Makefile" "$HERE"
  for tool in od flock; do ln -sf "$(command -v "$tool")" "${BOX}/bin/${tool}"; done
  ln -sf "$(real_python)" "${BOX}/bin/python3"
  WORK="${BOX}/work dir"
  MINE=(CLUSTER_NAME=mine WORKERS=1 NODE_IMAGE=node:1 CLUSTER_TIMEOUT=3 WORKDIR="$WORK")
  mkdir -p "$WORK"
  printf '00000000000000aa' >"${WORK}/id"
  stub docker - <<'SH'
    case "$*" in
      'inspect --format {{.Name}}|'*) cat "${BOX}/containers" 2>/dev/null || true ;;
      'inspect --format {{.State.Running}} {{'*) cat "${BOX}/now" 2>/dev/null ;;
      inspect*) cat "${BOX}/alive" 2>/dev/null || echo true ;;
      'compose version'*) echo 2.40.3 ;;
      'version '*) echo 20.10 ;;
      'ps --all --filter label=verl-regress.cluster=mine '*) cat "${BOX}/owners" 2>/dev/null || true ;;
      'ps --all --no-trunc '*'config-hash'*) cat "${BOX}/states" 2>/dev/null || true ;;
      "$(cat "${BOX}/fails" 2>/dev/null || echo nothing)"*) echo 'Cannot connect to the Docker daemon.' >&2 && exit 1 ;;
      'ps --all --no-trunc --filter label=verl-regress.cluster=mine '*'{{.ID}}') printf 'mine-head\tid1\nmine-worker-0\tid2\n' ;;
      'ps --all --no-trunc --filter label=verl-regress.cluster=mine '*'{{.Names}}') printf 'mine-head\tmine-head\nmine-worker-0\tmine-worker-0\n' ;;
      'network ls --quiet --filter label=verl-regress.cluster=mine') echo net1 ;;
      'network inspect '*) echo mine ;;
      'image inspect '*) echo image1 ;;
      'compose --project-directory '*)
        cat >/dev/null
        [[ $* != *'config --hash *' ]] || cat "${BOX}/hashes"
        ;;
      'exec '*' live '*) cat "${BOX}/live" 2>/dev/null; cat >/dev/null ;;
      exec*) sh -c "$(cat "${BOX}/exec" 2>/dev/null)" ;;
    esac
SH
}

# cluster_of ID USER WORKDIR [NODE...]: these nodes run, and have that owner.
cluster_of() {
  local owner="$1|$2|$3" node
  shift 3
  (($#)) || set -- head worker-0
  : >"${BOX}/containers"
  : >"${BOX}/states"
  printf '%s\n' "$owner" >"${BOX}/owners"
  for node in "$@"; do
    printf '/mine-%s|true|since|10.0.0.1 |mine|%s\n' "$node" "$owner" >>"${BOX}/containers"
    printf 'mine-%s\tmine-%s running hash1|image1\n' "$node" "$node" >>"${BOX}/states"
  done
  printf '%s hash1\n' head worker-0 >"${BOX}/hashes"
}
ours() { cluster_of 00000000000000aa me "$WORK" "$@"; }
theirs() { cluster_of 00000000000000bb alice /home/a/verl-regress/workdir; }

mine() { sandbox::run "${MINE[@]}" "$@"; }
in_lib() { sandbox::lines "${MINE[@]}" "$@"; }

THEIRS="The cluster mine belongs to another checkout: /home/a/verl-regress/workdir of user alice"
CURE="set another CLUSTER_NAME (and DASHBOARD_PORT), or run 'make down' in that checkout (docs/lifecycle.md says what to do if it was moved)."

UNKNOWN='The containers mine-head mine-worker-0 name no owner (an older version made them, or another tool): rename or remove them, or set another CLUSTER_NAME (and DASHBOARD_PORT).'

@test "another user who can only read this WORKDIR gets one sentence from each command" {
  ((EUID == 0)) || skip 'only root can give a file to another user'
  mkdir -p "${WORK}/locks"
  mkdir -m 700 "${WORK}/secrets"
  # root without the capability to write and read everything
  stub bash "exec $(type -P setpriv) --bounding-set=-all $(type -P bash) \"\$@\""
  chown -R nobody "$WORK"
  for verb in cluster::lock cluster::ensure_directories; do
    sandbox::verb "${MINE[@]}" "$verb"
    assert_error 2 "${WORK} belongs to nobody, and $(id -un) cannot write there (WORKDIR, from the command line or environment): run this as nobody, or in a checkout of your own with another CLUSTER_NAME and DASHBOARD_PORT."
  done
  sandbox::verb "${MINE[@]}" dashboard::need_token
  assert_error 1 "${WORK}/secrets/mine.token, which has Ray's token, is not readable for $(id -un): run this as nobody, who brought mine up, or 'make up' if it is missing."
}

@test "the id is readable for all users and belongs to the owner of WORKDIR" {
  local owner=$EUID
  rm "${WORK}/id"
  if ((EUID == 0)); then
    owner=4242
    chown "$owner" "$WORK"
  fi
  # shellcheck disable=SC2016  # expanded in the script
  in_lib <<<'owner::ensure_id; echo "id $OWNER_ID ${OWNER_WORDS[*]}"'
  assert_status 0
  [[ $(<"${WORK}/id") =~ ^[0-9a-f]{16}$ ]] || fail "$(<"${WORK}/id")"
  assert_line "id $(<"${WORK}/id") --owner=$(id -un):$(<"${WORK}/id") --owner-workdir=${WORK}"
  [[ $(stat --format '%a %u' "${WORK}/id") == "644 ${owner}" ]] || fail "$(stat --format '%a %u' "${WORK}/id")"
}

@test "who we are before WORKDIR has an id, without a user name, or with another id" {
  # shellcheck disable=SC2016  # expanded in the script
  local who='echo "[${OWNER_ID}] [${OWNER_USER}] [${OWNER_WORDS[*]}]"'
  in_lib <<<"$who"
  assert_line "[00000000000000aa] [$(id -un)] [--owner=$(id -un):00000000000000aa --owner-workdir=${WORK}]"
  rm "${WORK}/id"
  stub id '[[ $* != -un ]] || exit 1; echo 4242'
  in_lib OWNER_ID=x <<<"$who"
  assert_status 0
  assert_line '[] [4242] []'
  printf '00000000000000AA' >"${WORK}/id"
  in_lib <<<"$who"
  assert_error 1 "${WORK}/id does not hold the 16 hex digits that 'make up' wrote there: remove it; 'make up' then writes a new one, or says which one the cluster has."
}

# promise: changes or removes another checkout's cluster, even with `FORCE=1`
@test "every script is refused on another's cluster, and nothing is run on its nodes" {
  local script tried=0
  theirs
  for script in 00_prereq_check 01_up 02_down 12_install_py_deps 20_start_head 21_start_workers 30_prepare_data_and_model \
    31_snapshot_verl_code 40_submit_ppo_epoch1 41_submit_grpo_epoch1 42_submit_sft_minimal 44_submit_sdk 52_wait 53_fidelity \
    54_stop 55_debug 56_resume 57_retry 60_verify 70_gc; do
    mine FORCE=1 "scripts/${script}.sh"
    assert_error 2 "${THEIRS}: ${CURE}"
    tried=$((tried + 1))
  done
  refute_called 'docker exec'
  refute_called 'docker rm'
  refute_called ' up --detach'
  printf '# %d scripts refused\n' "$tried" >&3
}

# promise: removes a container or network without our label
@test "neither id nor path alone makes it ours; without a label the owner is unknown" {
  cluster_of 00000000000000aa me /moved/from/here
  in_lib <<<'owner::need_own'
  assert_error 2 "The cluster mine belongs to another checkout: /moved/from/here of user me: ${CURE}"
  cluster_of 00000000000000bb me "$WORK"
  in_lib <<<'owner::need_own'
  assert_error 2 "The cluster mine was brought up from this WORKDIR under the id 00000000000000bb, which ${WORK}/id does not hold any more: type 'echo 00000000000000bb >${WORK// /\\ }/id' to have it back, or set another CLUSTER_NAME (and DASHBOARD_PORT) if that cluster is another machine's."
  cluster_of '' '' ''
  in_lib <<<'prereq::owner'
  assert_error 2 "${UNKNOWN}"
  printf '/mine-%s|true|since|10.0.0.1 ||||\n' head worker-0 >"${BOX}/containers" # without our label
  rm "${BOX}/owners" "${BOX}/states"
  for script in 00_prereq_check 01_up; do
    mine "scripts/${script}.sh"
    assert_error 2 "${UNKNOWN}"
  done
  ours
  in_lib <<<'prereq::owner'
  assert_status 0
  assert_line 'ok      the cluster mine is ours, or not there yet'
  rm "${BOX}"/{containers,owners}
  in_lib <<<'prereq::owner'
  assert_line 'ok      the cluster mine is ours, or not there yet'
}

@test "status, jobs and logs name the owner and show our jobs without that cluster" {
  theirs
  mkdir -p "${WORK}/shared/jobs/ours"/{config,state,logs}
  printf '{"workload": "ppo", "code_id": "codeA", "owner": {"user": "%s", "id": "00000000000000aa"}}' "$(id -un)" >"${WORK}/shared/jobs/ours/config/resolved.json"
  printf '{"exit_code": 0, "reason": "the trainer ended"}' >"${WORK}/shared/jobs/ours/state/ended"
  printf 'our own log\n' >"${WORK}/shared/jobs/ours/logs/driver.log"
  find "${WORK}/shared" | sort >"${BOX}/before"
  for script in 50_status 58_jobs 51_logs; do
    mine "scripts/${script}.sh"
    assert_status 0
    assert_line "        ${THEIRS}, so its Ray is not asked: these are this checkout's own jobs."
    [[ $output =~ ours.*SUCCEEDED || $output == *'our own log'* ]] || fail 'not our job'
  done
  refute_called 'docker exec'
  diff "${BOX}/before" <(find "${WORK}/shared" | sort)
}

# promise: removes or recreates a node while jobs run or wait
@test "make up with other settings is refused if there are jobs, else applied" {
  ours
  mine SHM_SIZE=3gb scripts/01_up.sh
  assert_status 0
  refute_called ' up --detach' # nothing to do
  printf '%s hash2\n' head worker-0 >"${BOX}/hashes"
  printf 'ppo-1 RUNNING\nppo-2 QUEUED\n' >"${BOX}/live"
  local what='head, worker-0 (SHM_SIZE was 3gb, is 2gb (from env/defaults.env))'
  mine scripts/01_up.sh
  assert_error 2 "Recreating ${what} would end ppo-1 (RUNNING), ppo-2 (QUEUED): give SHM_SIZE=3gb again, wait for them, or end them with FORCE=1."
  refute_called ' up --detach'
  mine FORCE=1 scripts/01_up.sh
  assert_status 0
  assert_line "warning Recreating ${what} ends ppo-1 (RUNNING), ppo-2 (QUEUED): FORCE=1"
  assert_called ' up --detach'
  rm "${BOX}/live"
  mine SHM_SIZE=4gb scripts/01_up.sh
  assert_status 0
  assert_line 'changed recreated head, worker-0: SHM_SIZE was 2gb, is 4gb (from the command line or environment)'
  refute_text 'brought up'
}

# promise: removes or recreates a node while jobs run or wait
@test "make up with fewer WORKERS is refused if there are jobs, else removes workers" {
  ours head worker-0 worker-1 worker-2
  printf '%s hash1\n' head worker-0 worker-1 worker-2 >"${BOX}/hashes"
  mine WORKERS=3 scripts/01_up.sh
  assert_status 0
  printf '%s hash1\n' head worker-0 >"${BOX}/hashes"
  printf 'ppo-1 RUNNING\n' >"${BOX}/live"
  mine scripts/01_up.sh
  assert_error 2 'Removing worker-1, worker-2 (WORKERS was 3, is 1 (from the command line or environment)) would end ppo-1 (RUNNING): give WORKERS=3 again, wait for them, or end them with FORCE=1.'
  refute_called 'docker rm'
  rm "${BOX}/live"
  mine scripts/01_up.sh
  assert_status 0
  assert_called 'docker rm --force mine-worker-1 mine-worker-2'
  assert_line 'changed removed worker-1, worker-2: WORKERS was 3, is 1 (from the command line or environment)'
}

@test "a container that was killed or removed is brought back, jobs or not" {
  ours
  printf 'mine-head\tmine-head exited hash1|image1\n' >"${BOX}/states"
  printf 'ppo-1 RUNNING\n' >"${BOX}/live"
  mine scripts/01_up.sh
  assert_status 0
  assert_called ' up --detach'
  assert_line 'changed containers brought up: mine-head mine-worker-0'
}

# promise: removes a container or network without our label
# promise: removes or recreates a node while jobs run or wait
@test "make down with live jobs is refused and names them; FORCE=1 says which it ends" {
  local secrets="${WORK}/shared/secrets" shown='job-1 (QUEUED), job-2 (QUEUED)'
  ours
  mkdir -p "$secrets"/{mine,other}/job-1
  printf 'job-%d QUEUED\n' 1 2 >"${BOX}/live"
  mine scripts/02_down.sh
  assert_error 2 "Taking mine down would end ${shown}: wait for them, stop them ('make stop JOB=…'), or end them with FORCE=1."
  refute_called 'docker rm'
  [[ -e ${secrets}/mine/job-1 ]]
  mine FORCE=1 scripts/02_down.sh
  assert_status 0
  assert_line "warning Taking mine down ends ${shown}: FORCE=1"
  : >"$CALLS"
  rm "${BOX}/live"
  mine scripts/02_down.sh
  assert_status 0
  assert_called 'docker rm --force id1 id2'
  assert_called 'docker network rm net1'
  [[ $(grep -cE '^docker (network )?rm ' "$CALLS") == 2 ]]
  assert_line "changed removed 2 containers (mine-head mine-worker-0) and 1 network; ${WORK}/shared is as it was"
  [[ ! -e ${secrets}/mine && -e ${secrets}/other/job-1 ]] # nothing of another cluster
  rm "${BOX}"/{containers,owners}
  mine scripts/02_down.sh
  assert_line 'skip    nothing has the label verl-regress.cluster=mine'
}

# promise: removes or recreates a node while jobs run or wait
@test "if it is unknown which jobs are live, nothing is taken down without FORCE=1" {
  ours
  ln -sf /bin/false "${BOX}/bin/tar"
  mine scripts/02_down.sh
  assert_error 1 'Nothing says which jobs are live on mine (the reason is above): fix that, or set FORCE=1.'
  refute_called 'docker rm'
  mine FORCE=1 scripts/02_down.sh
  assert_status 0
  assert_line 'warning nothing says which jobs are live on mine, and FORCE=1 goes on'
}

@test "a changed knob of Ray's start is reported, another GCS_PORT refused" {
  ours
  in_lib WORKER_CPUS=64 <<<$'cluster_knobs::keep ray GCS_PORT OBJECT_STORE_BYTES\ncluster_knobs::keep worker-0 OBJECT_STORE_BYTES WORKER_CPUS\ncluster::tell_unused_knobs'
  assert_status 0
  refute_text warning
  in_lib WORKER_CPUS=8 <<<'cluster::tell_unused_knobs'
  assert_line "warning WORKER_CPUS was 64, is 8 (from the command line or environment): Ray runs and keeps the old value; 'make down up' applies the new one."
  in_lib WORKER_CPUS=64 OBJECT_STORE_BYTES=99999999 <<<'cluster::tell_unused_knobs'
  [[ $(grep -c 'OBJECT_STORE_BYTES was' <<<"$output") == 1 && $output != *WORKER_CPUS* ]] || fail 'not once'
  local runs=$'cluster::_running() { echo " gcs_server raylet dashboard.py "; }\ncluster::ensure_head'
  in_lib GCS_PORT=6380 <<<"$runs"
  assert_error 2 "GCS_PORT was 6379, is 6380 (from the command line or environment), and Ray runs with the old port: give GCS_PORT=6379 again, or run 'make down up'."
  in_lib <<<"$runs"
  assert_status 0
  assert_line 'ok      head: Ray runs, with the GCS on port 6379'
}

# bats test_tags=slow
@test "a command that waits for the lock names the holder, also at the deadline" {
  mkdir -p "${WORK}/locks"
  local holder='01_up of user alice (pid 7 on host1, since 2026-11-23T05:00:00Z)'
  printf '%s\n' "$holder" >"${WORK}/locks/mine"
  ours
  exec {held}>>"${WORK}/locks/mine"
  flock "$held"
  mine scripts/02_down.sh {held}>&-
  assert_status 1
  assert_line "        waiting for ${holder}, which is changing the cluster mine"
  assert_line "error   ${holder} has been changing the cluster mine for 3 s (lock ${WORK}/locks/mine): wait for it to end, or end it there; or raise CLUSTER_TIMEOUT."
  refute_called 'docker rm'
  exec {held}>&-
  in_lib <<<$'cluster::lock\ncat "${WORKDIR}/locks/mine"'
  local signed='lines of user [a-z0-9]+ \(pid [0-9]+ on [^ ]+, since 20[0-9T:-]+Z\)'
  [[ $output =~ $signed ]] || fail 'the holder is not in the file'
}

# bats test_tags=slow
@test "a node that goes away during a command gives one sentence, and not 137" {
  local sentence="error   The node 'head' went away while 'tar' ran there (container mine-head): bring the cluster up with 'make up', then run this again."
  ours
  for said in 'exit 1' 'exit 137'; do
    printf '%s\n' "$said" >"${BOX}/exec"
    printf 'true later\n' >"${BOX}/now" # it was restarted
    in_lib <<<'node::exec_in head tar -x </dev/null'
    assert_status 8
    assert_line "$sentence"
    refute_text 137
    : >"${BOX}/now"
    in_lib <<<'node::exec head tar -x'
    assert_line "$sentence"
  done
  printf 'true since\n' >"${BOX}/now"
  printf '%s\n' 'echo "Error response of mine" >&2; exit 137' >"${BOX}/exec"
  in_lib <<<'node::exec head tar -x'
  assert_status 137
  assert_line 'Error response of mine'
}

@test "what a refusal for a lost id says to type makes the cluster ours again" {
  local script
  ours
  rm "${WORK}/id"
  for script in 00_prereq_check 01_up 02_down; do
    mine "scripts/${script}.sh"
    assert_status 2
    [[ ! -e ${WORK}/id ]] || fail "${script} made another id"
  done
  bash -c "$(sed -n "s/^error .* type '\(echo .*\)' to have it back.*/\1/p" <<<"$output")"
  in_lib <<<'owner::need_own'
  assert_status 0
}

@test "a paused container does not run, and make up lets it go on" {
  ours
  echo false >"${BOX}/alive"
  sed -i 's/worker-0|true/worker-0|false/' "${BOX}/containers"
  in_lib <<<'node::exec worker-0 true'
  assert_error 8 "The node 'worker-0' is not running (container mine-worker-0, from CLUSTER_NAME=mine): bring the cluster up with 'make up'."
  sed -i 's/worker-0 running/worker-0 paused/' "${BOX}/states"
  sed -i "s/^      'ps --all --no-trunc .*'{{.ID}}')/      'ps --quiet --filter status=paused '*) echo id2 ;;\n&/" "${BOX}/bin/docker"
  in_lib <<<'compose::ensure_up'
  assert_status 0
  assert_line 'changed containers brought up: mine-worker-0'
  [[ $(grep -nE '^docker unpause id2$|^docker compose .* up ' "$CALLS" | cut -d: -f2 | cut -d' ' -f2 | paste -sd' ') == 'unpause compose' ]] || fail "$(<"$CALLS")"
}

# interrupted WORD...: a submission whose helper prints the first WORD and, after SIGINT, the others.
interrupted() {
  ours
  printf 'doctor::gate() { :; }\n' >>"${HERE}/scripts/lib/doctor.bash" # the pipe below answers one command
  rm -f "${BOX}"/{go,under-way}
  mkfifo "${BOX}/go" "${BOX}/under-way"
  printf '%s\n' "cat >/dev/null; printf '${1:+$1\\n}'; echo >'${BOX}/under-way'; read -r _ <'${BOX}/go'; printf '${2:+$2\\n}'" >"${BOX}/exec"
  sed -i 's/^      exec\*) sh/      *"test -d "*) ;;\n      exec*) sh/' "${BOX}/bin/docker"
  # Opening a pipe that has no other end would wait forever.
  run timeout 60 env -i HOME="${BOX}/home dir" PATH="${BOX}/bin" TMPDIR="${BOX}/tmp" PROFILE=cpu NO_COLOR=1 CLUSTER_NAME=mine WORKERS=1 \
    WORKDIR="$WORK" BOX="$BOX" HERE="$HERE" "${BOX}/bin/python3" -c '
import os, signal, subprocess, time
box = os.environ["BOX"]
def undo():
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell in the background ignores it
job = subprocess.Popen(["bash", os.environ["HERE"] + "/scripts/40_submit_ppo_epoch1.sh"], start_new_session=True, preexec_fn=undo)
open(box + "/under-way").read()  # to its end: whoever writes to a pipe without a reader dies of it
for _ in range(3):
    os.killpg(job.pid, signal.SIGINT)  # as a terminal does it
    time.sleep(0.02)
with open(box + "/go", "w") as go:
    go.write("\n")
raise SystemExit(job.wait())'
  assert_status 130
}

# promise: leaves a job behind on Ctrl-C without naming it
@test "Ctrl-C during a submission names the job and what to do, or that there is none" {
  local named="        ppo-1 was being submitted: 'make wait JOB=ppo-1' follows it, 'make stop JOB=ppo-1' ends it"
  interrupted ppo-1 ppo-1
  assert_line '        interrupted while the job was being submitted: waiting for its id'
  assert_line "$named"
  interrupted ppo-1 ''
  assert_line "$named"
  interrupted '' ''
  assert_line '        nothing was submitted'
}
