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
        [[ $words != *" hostname "* ]] || { echo 10.0.0.1 && exit; }
        cat >/dev/null
        node=${words#*--node=}
        cat "${BOX}/${node%% *}" || exit 1
        ;;
    esac
SH
  for node in head worker-0; do facts '' >"${BOX}/${node}"; done
}

# facts LISTENER: what a probe prints that found LISTENER on Ray's port.
facts() {
  local listeners=''
  [[ -z $1 ]] || listeners="\"6379\": \"$1\""
  printf '{"trains": false, "network": {"pairs": {}, "choices": {"Gloo": "10.0.0.1"}, "names": [], "listeners": {%s}, "proxies": []}' "$listeners"
  PYTHONPATH="${REPO}/py" "${REPO}/.venv/bin/python" -c 'from verl_regress.doctor.command import GROUPS
print(*(f", \"{name}\": {{\"error\": \"not asked\"}}" for name in GROUPS if name != "network"), sep="", end="}\n")'
}

doctor() { sandbox::run WORKERS=1 "$@"; }

@test "make doctor: a table of what was tried, seen and means, and exit 9 for an alarm" {
  doctor scripts/11_doctor.sh
  assert_status 0
  facts 'process 7 (nc)' >"${BOX}/head"
  doctor scripts/11_doctor.sh
  assert_status 9
  [[ $(tr -s ' ' <<<"$output") == *"VR-NET-08 alarm head find who listens on Ray's own ports: process 7 (nc) listens on port 6379"* ]] || fail 'no such alarm'
  # shellcheck disable=SC2016  # expanded in the sandbox
  sandbox::lines WORKERS=1 JSON=1 <<<'doctor::run >"${TMPDIR}/said"'
  assert_status 9
  [[ $(jq -r '.checks[] | select(.status == "alarm") | .code' "${BOX}/tmp/said") == VR-NET-08 ]] || fail 'no such alarm'
}

@test "the gate says only what is wrong, and SKIP_DOCTOR goes on without that check" {
  facts 'process 7 (nc)' >"${BOX}/head"
  doctor scripts/11_doctor.sh --gate
  assert_error 9 "VR-NET-08, head: process 7 (nc) listens on port 6379, so Ray does not start there, or another cluster answers: end that process, or choose another node; the port of the GCS is GCS_PORT; SKIP_DOCTOR=VR-NET-08 goes on without this check."
  doctor SKIP_DOCTOR=VR-NET-08 scripts/11_doctor.sh --gate
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
