#!/usr/bin/env bats
# A job whose data is no parquet file, submitted in both ways: how it ends, and its debug bundles; then make gc on what these jobs leave.

setup_file() {
  load container_helper
  container::use quick 18265
  container::cluster
  export FAILS=data.train_files=/etc/hostname # which every node has: the first process that verl starts fails because of it
}

setup() { load container_helper; }

job_dir() { printf '%s/shared/jobs/%s\n' "$WORKDIR" "$1"; }

# bundle_of JOB PHASE: the directory of that bundle; there is exactly one.
bundle_of() {
  local found=("$(job_dir "$1")/debug/"*"Z-$2")
  [[ ${#found[@]} == 1 && -f ${found[0]}/bundle.json ]] || fail "${#found[@]} bundles of $2"
  printf '%s\n' "${found[0]}"
}

# whole BUNDLE: it has every kind of Ray's state, with a timestamp, and no source failed.
whole() {
  local kind
  [[ $(jq -c .errors "$1/bundle.json") == '{}' ]] || fail "$(<"$1/bundle.json")"
  for kind in jobs job_info nodes actors node_facts; do
    [[ $(jq -r .asked "$1/${kind}.json") == 20*T*+00:00 ]] || fail "$1/${kind}.json"
  done
  grep -q '^# asked 20' "$1/ray_status.txt" && grep -qE '/[0-9.]+ CPU' "$1/ray_status.txt"
  [[ $(jq -c '[.answer.result[] | select(.state == "ALIVE") | .node_name] | sort' "$1/nodes.json") == '["head","worker-0","worker-1"]' ]]
}

@test "43 and 44 make the same job record, except for how it was sent" {
  OVERRIDES=$FAILS SUBMISSION_ID=sent-cli scripts/43_submit_jobspec.sh jobspecs/ppo.yaml
  OVERRIDES=$FAILS SUBMISSION_ID=sent-sdk scripts/44_submit_sdk.sh jobspecs/ppo.yaml
  JOB=sent-cli run scripts/52_wait.sh
  assert_status 3
  printf '%s\n' "$output" >"${BATS_FILE_TMPDIR}/waited"
  JOB=sent-sdk run scripts/52_wait.sh
  assert_status 3
  for job in sent-cli sent-sdk; do
    (cd "$(job_dir "$job")/config" && ls && cat -- *) | sed "s/${job}/ID/g" >"${BATS_TEST_TMPDIR}/${job}.config"
    container::api "/api/jobs/${job}" | jq -S "del(.start_time, .end_time, .job_id, .driver_info, .driver_node_id, .driver_agent_http_address, .message)" |
      sed "s/${job}/ID/g" >"${BATS_TEST_TMPDIR}/${job}.ray"
  done
  diff "${BATS_TEST_TMPDIR}/sent-cli.config" "${BATS_TEST_TMPDIR}/sent-sdk.config"
  run diff "${BATS_TEST_TMPDIR}/sent-cli.ray" "${BATS_TEST_TMPDIR}/sent-sdk.ray"
  [[ $(grep -c '^[<>]' <<<"$output") == 2 ]] || fail 'they differ in more than one line'
  assert_line '<     "submitted_via": "cli",?'
  assert_line '>     "submitted_via": "sdk",?'
}

@test "a job that fails in verl is FAILED, exit 3, and its cause is in every list" {
  output=$(<"${BATS_FILE_TMPDIR}/waited")
  why='ValueError: Unsupported file format: /etc/hostname .*, before the first step\)'
  assert_line "error   sent-cli FAILED \(the trainer ended with exit status 1: ${why}\): read .*"
  assert_line '        \| ValueError: Unsupported file format: /etc/hostname.*'
  run make --no-print-directory logs JOB=sent-cli
  assert_line 'MVP_PRECHECK_MARKER: codeA'
  run make --no-print-directory jobs
  assert_line "sent-cli +ppo +codeA +FAILED +1 +0 +20.*Z  ${why}"
  run make --no-print-directory status
  assert_line "sent-cli +codeA +FAILED +.*  ${why}"
  for script in 50_status 58_jobs; do
    cause=$(JSON=1 "scripts/${script}.sh" 2>/dev/null | jq -c '.jobs[] | select(.submission_id == "sent-cli").cause | [.type, .step]')
    [[ $cause == '["ValueError",null]' ]] || fail "${script} says ${cause}"
  done
}

@test "bundles at submission, at RUNNING and on failure, each within seconds" {
  local moments=() bundle
  for phase in submitted running failed; do
    bundle=$(bundle_of sent-cli "$phase")
    whole "$bundle"
    moments+=("$(jq -r .asked "$bundle/bundle.json")")
    printf '# %s: %s s\n' "$phase" "$(jq .seconds "$bundle/bundle.json")" >&3
    [[ $(jq '.seconds < 20' "$bundle/bundle.json") == true ]] # half a second if nothing else runs
  done
  [[ ${moments[0]} < ${moments[1]} && ${moments[1]} < ${moments[2]} ]]
  bundle=$(bundle_of sent-cli running)
  [[ $(jq -r .answer.ray.status "$bundle/job_info.json") == RUNNING ]]
  [[ $(jq -r .asked_by.ray "$bundle/bundle.json") == "http://$(container::ip head):8265" ]]
}

@test "a failed job leaves the tails of its logs, of every node, at that moment" {
  bundle=$(bundle_of sent-cli failed)
  grep -q /etc/hostname "${bundle}/logs/driver.log"
  ray_id=$(container::api /api/jobs/sent-cli | jq -r .job_id)
  compgen -G "${bundle}/logs/worker-*/worker-*-${ray_id}-*.err" >/dev/null || fail 'no log of the process that failed'
  for node in head worker-0 worker-1; do [[ -s ${bundle}/logs/${node}/raylet.out ]] || fail "$node"; done
  ended=$(jq -r .time "$(job_dir sent-cli)/state/ended")
  (($(date -d "$(jq -r .asked "$bundle/bundle.json")" +%s) - $(date -d "$ended" +%s) <= 30))
}

@test "make debug bundles a finished job, in a tar of everything but its checkpoints" {
  run make --no-print-directory debug JOB=sent-cli TAR=1
  assert_status 0
  tar=$(grep -x "${WORKDIR}/shared/jobs/sent-cli/debug/.*-asked.tar.gz" <<<"$output")
  list=$(tar -tzf "$tar")
  for part in config/resolved.json state/ended logs/driver.log; do grep -qxF "sent-cli/${part}" <<<"$list" || fail "$part"; done
  grep -qE '^sent-cli/debug/[0-9TZ]+-failed/nodes.json$' <<<"$list"
}

# listing DIR: every file there with its content, except the record of who observed the job.
listing() { (cd "$1" && find . -type f ! -path './state/observed' -print0 | sort -z | xargs -0 sha256sum); }

@test "gc removes old checkpoints and an unused snapshot; a waiting job keeps its own" {
  # Two jobs that are over, to which we add what a trainer would have left, and one that waits.
  local shared=${WORKDIR}/shared
  printf '%s\n' 'workload: ppo' 'resources: {entrypoint_resources: {worker_node: 1000}}' >"${BATS_TEST_TMPDIR}/big.yaml"
  SUBMISSION_ID=gc-waits scripts/44_submit_sdk.sh "${BATS_TEST_TMPDIR}/big.yaml"
  for job in sent-cli sent-sdk gc-waits; do
    mkdir "${shared}/jobs/${job}/checkpoints/global_step_10"
    head -c 300000 /dev/urandom >"${shared}/jobs/${job}/checkpoints/global_step_10/model.pt"
  done
  # sent-sdk ended a minute ago.
  for job in sent-cli gc-waits; do find "${shared}/jobs/${job}" -exec touch -d '2 days ago' {} +; done
  # A snapshot that no job or knob refers to, made two days ago.
  cp -a "${WORKDIR}/cache/verl/pypi-0.9.1" "${BATS_TEST_TMPDIR}/tree"
  printf 'CHANGED = 1\n' >>"${BATS_TEST_TMPDIR}/tree/verl/__init__.py"
  CODE_ID=gc-unused VERL_SOURCE="path:${BATS_TEST_TMPDIR}/tree" scripts/31_snapshot_verl_code.sh
  touch -d '2 days ago' "${shared}/common/code/verl/gc-unused/snapshot.json"
  listing "${shared}/jobs/sent-cli" | grep -v ' ./checkpoints/' >"${BATS_TEST_TMPDIR}/before"

  DRY_RUN=1 KEEP=0 run scripts/70_gc.sh
  assert_status 0
  sed -n 's/^ *would remove //p' <<<"$output" | sort >"${BATS_TEST_TMPDIR}/dry"
  freed=$(sed -n 's/^ *would free \(.*\) in all (DRY_RUN=1)$/\1/p' <<<"$output")
  [[ -f ${shared}/jobs/sent-cli/checkpoints/global_step_10/model.pt && -d ${shared}/common/code/verl/gc-unused ]]
  grep -q '^checkpoints of sent-cli (global_step_10): ' "${BATS_TEST_TMPDIR}/dry"
  grep -q '^snapshot gc-unused: ' "${BATS_TEST_TMPDIR}/dry"
  run ! grep -qE 'sent-sdk|gc-waits|snapshot codeA' "${BATS_TEST_TMPDIR}/dry"

  KEEP=0 run scripts/70_gc.sh
  assert_status 0
  diff <(sed -n 's/^changed removed //p' <<<"$output" | sort) "${BATS_TEST_TMPDIR}/dry"
  assert_line "ok      freed ${freed} in all"
  assert_line '          keep 1 \(may still run\): gc-waits'
  for job in sent-sdk gc-waits; do [[ -f ${shared}/jobs/${job}/checkpoints/global_step_10/model.pt ]] || fail "$job"; done
  [[ -z $(ls -A "${shared}/jobs/sent-cli/checkpoints") && ! -e ${shared}/common/code/verl/gc-unused ]]
  diff <(listing "${shared}/jobs/sent-cli" | grep -v ' ./state/collected$') "${BATS_TEST_TMPDIR}/before"
  JOB=sent-cli run scripts/52_wait.sh
  assert_status 3
  assert_line " +0 of \\? training steps, no checkpoint any more \\('make gc' removed them at 20.*\\)"

  KEEP=0 run scripts/70_gc.sh
  assert_status 0
  assert_line 'skip    gc \(nothing to remove\)'
  JOB=gc-waits scripts/54_stop.sh
  run scripts/31_snapshot_verl_code.sh # reads all its files
  assert_line 'skip    snapshot codeA .*'
}

@test "Ray's token is in no file that a job left, bundles and tars included" {
  token=$(<"${WORKDIR}/secrets/vrtest-quick.token")
  [[ ${#token} == 64 ]]
  for job in sent-cli sent-sdk; do
    run grep -rlF "$token" "$(job_dir "$job")"
    [[ $status == 1 ]] || fail "$job"
  done
  for tar in "$(job_dir sent-cli)"/debug/*.tar.gz; do run ! grep -qF "$token" <(tar -xzOf "$tar"); done
}
