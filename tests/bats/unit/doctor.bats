#!/usr/bin/env bats
# make doctor asks every node at once, whatever becomes of one of them, and one node judges. What the checks say: tests/doctor.

setup() {
  load ../test_helper
  sandbox::make
  ln -s "$(realpath "${REPO}/.venv/bin/python")" "${BOX}/bin/python3"
  # Nodes whose probes print what the test says, or fail; the judge is real.
  stub docker - <<'SH'
    case "$1" in
      inspect) echo true ;;
      exec)
        words=" $* "
        if [[ $words == *" judge "* ]]; then
          shift 3
          exec "$@"
        fi
        [[ ! -e ${BOX}/down ]] || exit 1
        [[ $words != *" hostname "* ]] || { echo 10.0.0.1 && exit; }
        cat >/dev/null
        node=${words#*--node=}
        cat "${BOX}/${node%% *}" || exit 1
        ;;
    esac
SH
  for node in head worker-0; do facts '' "$node" >"${BOX}/${node}"; done
}

# facts ADDRESS [HOSTNAME]: what the probe of the head, or of HOSTNAME, prints whose proxy catches ADDRESS.
facts() {
  local seen=''
  [[ -z $1 ]] || seen="[\"VR-NET-07\", \"alarm\", \"head\", \"the proxy p:3128 catches $1\"]"
  printf '{"kind": "Linux", "load": "", "seen": [%s], "network": {"hostname": "%s", "macs": [], "neighbours": {}}, "machine": {"error": "not asked"}, "shared root": {"error": "not asked"}}\n' "$seen" "${2:-head}"
}

doctor() { sandbox::run WORKERS=1 "$@"; }

@test "make doctor: a table of what was tried, seen and means, and exit 9 for an alarm" {
  doctor scripts/11_doctor.sh
  assert_status 0
  facts 10.0.0.1 >"${BOX}/head"
  doctor scripts/11_doctor.sh
  assert_status 9
  [[ $(tr -s ' ' <<<"$output") == *"VR-NET-07 alarm head find proxies that catch the nodes' addresses: the proxy p:3128 catches 10.0.0.1"* ]] || fail 'no such alarm'
  # shellcheck disable=SC2016  # expanded in the sandbox
  sandbox::lines WORKERS=1 JSON=1 <<<'doctor::run >"${TMPDIR}/said"'
  assert_status 9
  [[ $(jq -r '.checks[] | select(.status == "alarm") | .code' "${BOX}/tmp/said") == VR-NET-07 ]] || fail 'no such alarm'
}

@test "the gate says only what is wrong, and SKIP_DOCTOR goes on without that check" {
  facts 10.0.0.1 >"${BOX}/head"
  doctor scripts/11_doctor.sh --gate
  assert_error 9 "VR-NET-07, head: the proxy p:3128 catches 10.0.0.1, so requests to Ray and rollout servers go to the proxy: add these addresses to no_proxy on that node, or name them with address=IP in NODES_FILE; SKIP_DOCTOR=VR-NET-07 goes on without this check."
  doctor SKIP_DOCTOR=VR-NET-07 scripts/11_doctor.sh --gate
  assert_status 0
  doctor MAKE_GIVEN=SKIP_DOCTOR SKIP_DOCTOR=VR-NET-99 scripts/11_doctor.sh --gate
  assert_status 2
  [[ $output == *"SKIP_DOCTOR='VR-NET-99' (from the command line or environment) is not usable: did you mean VR-NET-09? Use some of "* ]] || fail 'another sentence'
}

@test "a node that goes down in the middle is a finding, and another one judges" {
  rm "${BOX}/head"
  doctor scripts/11_doctor.sh
  assert_status 9
  [[ $(tr -s ' ' <<<"$output") == *'VR-NODE-01 alarm head '* ]] || fail 'no such alarm'
  rm "${BOX}/worker-0"
  doctor scripts/11_doctor.sh
  assert_status 8
  [[ $output == *'error   No node of mvp11 runs the doctor (head'*"): bring the cluster up with 'make up'."* ]] || fail 'another sentence'
}

@test "on a cluster that is down, make doctor says so and ends" {
  touch "${BOX}/down"
  sandbox::lines WORKERS=1 <<<'timeout 60 scripts/11_doctor.sh' # it must not wait for its own progress lines
  assert_status 8
  [[ $output == *"error   No node of mvp11 runs the doctor (head: "*"): bring the cluster up with 'make up'."* ]] || fail 'another sentence'
}

@test "make doctor that is interrupted ends what it runs for the nodes" {
  sandbox::lines WORKERS=1 <<'SH'
node::address() { kill -TERM "$$"; sleep 318; } # rule-ok: it hangs
doctor::run
SH
  assert_status 143
  SECONDS=0
  while pgrep -fx 'sleep 318' >/dev/null; do ((SECONDS < 10)) || fail 'it still runs'; done
}

@test "a node whose transport hangs has a deadline, and what runs for it is ended" {
  sandbox::lines WORKERS=1 <<'SH'
node::address() { [[ $1 == worker-0 ]] || { echo 10.0.0.1 && return; }; sleep 317; } # rule-ok: it hangs
DOCTOR_REACHES=1
doctor::run || echo "status $?"
! pgrep -fx 'sleep 317'
SH
  assert_status 0
  [[ $(tr -s ' ' <<<"$output") == *'VR-NODE-01 alarm worker-0 '*'no answer in time'*'status 9'* ]] || fail 'no such alarm'
}
