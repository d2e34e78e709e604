#!/usr/bin/env bats
# Following and stopping a job: what the head is asked, and what its answers become.

setup() {
  load ../test_helper
  sandbox::make
  # An engine whose nodes run and have the helper, and whose head answers each `wait` with the next line of `answers`.
  engine_has mine '' x head worker-{0..1}
  fake_engine <<'SH'
      *' stop '*) printf 'ppo-1\n/private/jobs/of all/ppo-1\n' ;;
      *mine-worker-0' sh -c '*' leftovers '*) cat "${BOX}/left" 2>/dev/null || echo 0 ;;
      *' leftovers '*) echo 0 ;;
      *' wait '*)
        echo >>"${BOX}/waits"
        read -ra said < <(sed -n "$(wc -l <"${BOX}/waits")p" "${BOX}/answers")
        printf '%s\n' "${said[@]:1}" | tr _ ' '
        exit "${said[0]}"
        ;;
SH
}

job() { sandbox::verb CLUSTER_NAME=mine "job::$1" "${@:2}"; }
# answers STATUS LINE...: what the head says to the next `wait`, and its exit status.
answers() { printf '%s\n' "${*// /_}" >>"${BOX}/answers"; }
asked() { grep -o "run.py .* $1 .*" "$CALLS" | grep -o " $1 .*"; }
is_started() { [[ $(grep -c /run.py "$CALLS") == "$1" ]] || fail "the helper was started $(grep -c /run.py "$CALLS") times, not $1"; }

@test "a stop asks the head once, and then all nodes for what is left of that job" {
  job stop latest
  assert_status 0
  is_started 4
  [[ $(asked stop) == ' stop latest --cluster=mine --deadline='* ]] || fail "$(asked stop)"
  printf ' leftovers /private/jobs/of all/ppo-1 --node %s\n' head worker-{0..1} | diff - <(asked leftovers | sort -u) || fail "$(asked leftovers)"
  assert_line 'ok      nothing is left of ppo-1: 3 nodes checked, 0 processes found and ended'
}

@test "a stop says what it ended, and ends with 8 if a node does not answer" {
  echo 2 >"${BOX}/left"
  job stop latest
  assert_status 0
  assert_line 'changed worker-0: ended 2 leftover processes of ppo-1'
  assert_line 'ok      nothing is left of ppo-1: 3 nodes checked, 2 processes found and ended'
  engine_has mine '' x head worker-0
  job stop latest
  assert_error 8 "What is left of ppo-1 on worker-1 is unknown, because they cannot be reached: run this again after 'make up' has restored them."
  assert_line 'ok      nothing is left of ppo-1: 2 nodes checked, 2 processes found and ended'
}

@test "following a job starts the helper once, and ends as the helper says" {
  answers 4 'job ppo-1' 4
  job follow latest
  assert_status 4
  is_started 1
}

@test "following a job ends with each status of the table that a job can have" {
  local number
  for number in {0..8}; do answers "$number" 'job ppo-1' "$number"; done
  for number in {0..8}; do
    job follow ppo-1
    assert_status "$number"
  done
}

@test "following the latest job keeps to that job when the connection is lost" {
  answers 137 'job ppo-1'
  answers 137 3 '3 containers are not running'
  answers 0 'job ppo-1' 0
  job follow latest
  assert_status 0
  assert_line "        lost the connection to the head; following 'ppo-1' again when the head is back"
  [[ $(asked wait | cut -d' ' -f1-3) == $' wait latest\n wait ppo-1\n wait ppo-1' ]] || fail "$(asked wait)"
}
