#!/usr/bin/env bats
# What the first script of one `make up` sees, and what the scripts after it take from that, with a stub of an engine.

setup() {
  load ../test_helper
  sandbox::make
  cp -r "${REPO}"/docker-compose*.yaml "$HERE"
  for tool in od make df; do ln -sf "$(command -v "$tool")" "${BOX}/bin/${tool}"; done
  WORK="${BOX}/work dir"
  mkdir -p "${WORK}"/{clusters/mine,locks,cache/verl-0.9.1,shared}
  printf '00000000000000aa' >"${WORK}/id"
  : >"${WORK}/locks/mine"
  mkdir "${WORK}/secrets"
  echo token >"${WORK}/secrets/mine.token"
  printf '%s\n' 'writable 1' 'running dashboard.py gcs_server raylet' 'missing ' 'layout 1' 'gcs 1' \
    'joined head=10.0.0.1 worker-0=10.0.0.2' 'alive:head 10.0.0.1: CPU 0, GPU 0' 'alive:worker-0 10.0.0.2: CPU 64, GPU 4, worker_node 100' \
    'clock 1' >"${BOX}/head"
  : >"${BOX}/others"
  printf '%s\n' 'writable 1' 'running agent raylet' 'missing ' 'clock 1' >"${BOX}/worker-0"
  printf '/mine-%s\n' "head|true|since|10.0.0.1 |mine|00000000000000aa|me|${WORK}" "worker-0|true|since|10.0.0.2 |mine|00000000000000aa|me|${WORK}" >"${BOX}/containers"
  stub docker - <<'SH'
    now() { sed "s/^clock .*/clock $(date +%s)/" "${BOX}/$1"; }
    case "$*" in
      'inspect --format {{.Name}}|'*) cat "${BOX}/containers" ;;
      inspect*) echo true ;;
      'compose version'*) echo 2.40.3 ;;
      'version '*) echo 20.10 ;;
      'ps --all --no-trunc '*'config-hash'*) printf 'mine-%s\tmine-%s|running|hash1|image1\n' head head worker-0 worker-0 ;;
      'ps --all --format '*) sed 's/.*|mine|/x mine\t/' "${BOX}/containers" && cat "${BOX}/others" ;;
      'image inspect '*) echo image1 ;;
      'compose --project-directory '*) cat >/dev/null && printf '%s hash1\n' head worker-0 ;;
      'exec mine-head '*' look '*) now head ;;
      'exec mine-worker-0 '*' look '*) now worker-0 ;;
      *' python3 - running '*) cat >/dev/null && echo dashboard.py gcs_server raylet ;;
      *' nodes --log-dir '*) printf '%s\n' head=10.0.0.1 worker-0=10.0.0.2 ;;
      *' date +%s') date +%s ;;
    esac
SH
}

# up: `make up` in the sandbox.
up() {
  printf 'exec make --no-print-directory up\n' >"${HERE}/scripts/make_up.sh"
  sandbox::run CLUSTER_NAME=mine WORKERS=1 NODE_IMAGE=node:1 DASHBOARD_PORT=65535 MIN_MEMORY_GIB=0 MIN_DISK_GIB=0 WORKDIR="$WORK" scripts/make_up.sh
}

# calls PATTERN: how many calls of the engine match.
calls() { grep -cE -- "$1" "$CALLS" || true; }

@test "make up with nothing to do asks each node once, and the head then also Ray whether all are ALIVE" {
  up
  assert_status 0
  assert_line 'ok      /private is writable from head worker-0'
  assert_line 'ok      head: Ray answers on port 6379'
  assert_line "skip    worker-0: the helper's packages (all there)"
  assert_line 'ok      worker-0: Ray is ALIVE in this cluster'
  assert_line 'ok      head is ALIVE at 10.0.0.1: CPU 0, GPU 0'
  assert_line 'ok      worker-0 is ALIVE at 10.0.0.2: CPU 64, GPU 4, worker_node 100'
  assert_line 'ok      the clocks of 2 nodes differ by at most 5 s'
  [[ $(calls '^docker exec') == 2 && $(calls 'run.py .* look ') == 2 ]] || fail "$(<"$CALLS")"
  [[ $(calls '^docker inspect') == 1 && $(calls '^docker ps') == 2 && $(calls '^docker network') == 1 && $(calls '^docker image') == 2 ]] || fail "$(<"$CALLS")"
}

# bats test_tags=slow
@test "a fact that calls for a change is asked again before acting" {
  local fact
  for fact in head/gcs:'python3 - running mine' head/running:'python3 - running mine' worker-0/running:'python3 - running mine' \
    head/joined:' nodes --log-dir ' worker-0/missing:'deps.py missing' head/layout:' layout' worker-0/writable:'writable /private worker-0' \
    worker-0/clock:'mine-worker-0 date'; do
    cp "${BOX}/${fact%%/*}" "${BOX}/kept"
    sed -i "/^$(basename "${fact%%:*}") /d" "${BOX}/${fact%%/*}"
    : >"$CALLS"
    up
    cp "${BOX}/kept" "${BOX}/${fact%%/*}"
    assert_status 0
    assert_called "${fact#*:}"
  done
  sed -i 's/^missing .*/missing PyYAML>=6.0/' "${BOX}/worker-0"
  : >"$CALLS"
  up
  assert_called 'mine-worker-0 python3 /private/common/code/verl_regress/'
}

# bats test_tags=slow
@test "an owner is that of this cluster's containers, whatever other clusters are called" {
  printf 'y %s\t00000000000000bb|alice|/a\n' mine2 'mine foo' 'mine 2' >"${BOX}/others"
  up
  assert_status 0
  assert_line "ok      the cluster mine is ours (${WORK})"
  printf 'y mine\t00000000000000bb|alice|/a\n' >"${BOX}/others"
  up
  assert_status 2
  [[ $output == *'The cluster mine belongs to another checkout: /a of user alice: '* ]] || fail "$output"
}

# bats test_tags=slow
@test "clocks that differ are reported from what the nodes said" {
  # shellcheck disable=SC2016  # expanded in the stub
  sed -i 's/now worker-0 ;;/now worker-0 | sed "s|^clock .*|clock $(($(date +%s) + 100))|" ;;/' "${BOX}/bin/docker"
  up
  assert_status 0
  [[ $output =~ 'warning The clocks of the nodes differ by '(99|100|101)' s (head +'[01]', worker-0 +'(100|101)')' ]] || fail "$output"
  refute_called 'mine-worker-0 date'
}

# bats test_tags=slow
@test "Ray is asked at the end unless the head said that these nodes and no others are ALIVE, and that nothing is left to do" {
  local change
  for change in '/^alive:head /d' '/^alive:worker-0 /d' 's/^alive:worker-0 10.0.0.2:/alive:worker-0 10.0.0.20:/' \
    '/^joined /s/$/ worker-1=10.0.0.3/'; do
    cp "${BOX}/head" "${BOX}/kept"
    sed -i "$change" "${BOX}/head"
    : >"$CALLS"
    up
    cp "${BOX}/kept" "${BOX}/head"
    assert_status 0
    assert_called ' await-nodes '
  done
}

# bats test_tags=slow
@test "the head gets the number of GPUs that Ray should have counted on a worker, if Ray counts them" {
  up
  refute_called ' --worker-gpus '
  : >"$CALLS"
  printf 'exec make --no-print-directory up WORKER_GPUS= GPUS_PER_WORKER=8\n' >"${HERE}/scripts/make_up.sh"
  sandbox::run CLUSTER_NAME=mine WORKERS=1 NODE_IMAGE=node:1 DASHBOARD_PORT=65535 MIN_MEMORY_GIB=0 MIN_DISK_GIB=0 WORKDIR="$WORK" scripts/make_up.sh
  [[ $(calls ' look --node head .*--worker-gpus 8$') == 1 ]] || fail "$(<"$CALLS")"
}

# bats test_tags=slow
@test "a cluster that does not run completely, or belongs to another checkout, is not asked" {
  sed -i 's/worker-0|true/worker-0|false/' "${BOX}/containers"
  up
  refute_called ' look '
  sed -i 's/00000000000000aa/00000000000000bb/; s/false/true/' "${BOX}/containers"
  : >"$CALLS"
  up
  assert_status 2
  refute_called ' look '
}

# in_turn FIRST BETWEEN SECOND [VARIABLE=VALUE]: runs FIRST and SECOND as scripts of one make process, and BETWEEN as a command
# between them.
in_turn() {
  # shellcheck disable=SC2016  # expanded in the scripts that are written here
  local begin='source "$(dirname "$0")/lib/regress.bash"; cli::begin; env::load; '
  printf '%s%s\n' "$begin" "$1" >"${HERE}/scripts/first.sh"
  printf '%s%s\n' "$begin" "$3" >"${HERE}/scripts/second.sh"
  printf 'bash scripts/first.sh; %s; bash scripts/second.sh\n' "$2" >"${HERE}/scripts/both.sh"
  sandbox::run CLUSTER_NAME=mine WORKERS=1 WORKDIR="$WORK" "${4:-REGRESS_LOOK=1}" scripts/both.sh
}

TAKE='look::take; look::await_nodes'
KNOWS='cluster::lock; look::knows head:gcs && echo knows || echo asks'

# bats test_tags=slow
@test "recorded facts are valid for the scripts of one make process, until something changes" {
  in_turn "$TAKE" true "$KNOWS"
  assert_line knows
  : >"$CALLS"
  in_turn "$TAKE" true "$KNOWS" REGRESS_LOOK=
  assert_line asks
  [[ $(calls ' look ') == 0 && $(calls '^docker inspect') == 2 ]] || fail "$(<"$CALLS")" # one for each script
  in_turn "${TAKE}; log::changed something" true "$KNOWS"
  assert_line asks
  [[ ! -e ${WORK}/clusters/mine/.look ]]
  in_turn "$TAKE" true "log::changed something; ${KNOWS}"
  assert_line asks
}

# bats test_tags=slow
@test "recorded facts are not valid for another make process, after ten seconds, or after another command held the lock" {
  local file="${WORK}/clusters/mine/.look"
  in_turn "$TAKE" "sed -i 's/^[0-9]* [0-9]*/1 2/' '${file}'" "$KNOWS"
  assert_line asks
  [[ $status == 0 && ! -e $file ]] || fail 'they were left'
  in_turn "$TAKE; LOOK[since]=\$((EPOCHSECONDS - 11))" true "$KNOWS"
  assert_line asks
  in_turn "$TAKE" "touch -d '+1 second' '${WORK}/locks/mine'" "$KNOWS"
  assert_line asks
}

# bats test_tags=slow
@test "no facts are read while another command holds the lock, and none are passed on if one took it meanwhile" {
  in_turn "exec 8>>'${WORK}/locks/mine'; flock 8; ${TAKE}; echo 'went on'" true "$KNOWS"
  assert_line 'went on'
  assert_line asks
  refute_called ' look '
  in_turn "${TAKE}; touch -d '+1 second' '${WORK}/locks/mine'" true "$KNOWS"
  assert_line asks
}

# bats test_tags=slow
@test "the next script knows all that the first one saw, also after that one took the lock; an answer that is cut off harms nothing" {
  # shellcheck disable=SC2016  # expanded in the scripts
  local say='for name in "${!LOOK[@]}"; do echo "${name}=${LOOK[$name]}"; done | sort' file="${WORK}/clusters/mine/.look"
  # shellcheck disable=SC2016  # the same
  in_turn 'look::see early echo no; '"${TAKE}"'; look::see seen echo a "b  c"; look::see seen echo other; cluster::lock
    [[ ${LOOK_DIR} == "${TMPDIR}"/* && ! -v LOOK[early] ]] && '"${say} >'${BOX}/first'" "printf 'half\0' >>'${file}'" "${say} >'${BOX}/second'; ${KNOWS}"
  assert_status 0
  assert_line knows
  diff "${BOX}/first" "${BOX}/second"
  for fact in 'seen=a b  c' 'head:running=dashboard.py gcs_server raylet' 'worker-0:writable=1' 'head:joined=head=10.0.0.1 worker-0=10.0.0.2'; do
    grep -qxF -- "$fact" "${BOX}/first" || fail "no ${fact} in $(<"${BOX}/first")"
  done
  grep -qxE 'helper=[0-9a-f]{12}' "${BOX}/first"
  grep -qxE 'worker-0:clock=-?[0-9]{1,2}' "${BOX}/first" # how far it is ahead of ours
}

# bats test_tags=slow
@test "a node that fails to answer is not known; a cluster without a lock's file is free; one that lacks a node is not asked" {
  rm "${WORK}/locks/mine"
  mv "${BOX}/worker-0" "${BOX}/kept"
  in_turn "${TAKE}; echo 'went on'" true 'look::knows head:gcs && echo knows; look::knows worker-0:writable || echo asks'
  mv "${BOX}/kept" "${BOX}/worker-0"
  for line in 'went on' knows asks; do assert_line "$line"; done
  sed -i 's/worker-0|true/worker-0|false/' "${BOX}/containers"
  : >"$CALLS"
  in_turn "${TAKE}; echo 'went on'" true true
  assert_line 'went on'
  refute_called ' look '
}

# bats test_tags=slow
@test "a question that fails ends no script, and an answer is taken only once" {
  in_turn "look::_ask() { return 1; }; ${TAKE}; echo 'went on'" true "${TAKE}; look::forget; look::await_nodes; look::knows head:gcs || echo forgotten"
  assert_status 0
  assert_line 'went on'
  assert_line forgotten
}

# bats test_tags=slow
@test "when another command held the lock, the containers are looked up again" {
  in_turn "$TAKE" "touch -d '+1 second' '${WORK}/locks/mine'; sed -i 's/worker-0|true/worker-0|false/' '${BOX}/containers'" \
    'transport::is_listed worker-0 && echo before; cluster::lock; transport::is_listed worker-0 || echo gone'
  assert_line before
  assert_line gone
}

@test "facts are those of one make process, known by its id and when it started, for ten seconds" {
  # shellcheck disable=SC2016  # expanded in the script
  printf '%s\n' 'source "$(dirname "$0")/lib/regress.bash"' 'ours=$(look::_maker) && unset EPOCHSECONDS && EPOCHSECONDS=1000' \
    '[[ $ours == "$PPID $(sed "s/.*) //" "/proc/${PPID}/stat" | cut -d" " -f20)" ]] && echo named # proc(5): starttime is the 22nd field' \
    'for maker in "$ours" "1 2"; do for seconds in 990 989 x ""; do ! look::_is_ours "$maker" "$seconds" || echo "${maker} ${seconds}"; done; done' \
    '! look::_is_ours || echo nothing' 'echo "ours $ours"' >"${HERE}/scripts/maker.sh"
  sandbox::run scripts/maker.sh
  assert_status 0
  [[ $output =~ ^named$'\n'(.*)" 990"$'\nours '(.*)$ && ${BASH_REMATCH[1]} == "${BASH_REMATCH[2]}" ]] || fail 'others are taken'
}
