#!/usr/bin/env bats
# The long container and fault tests, of which CI runs a third each time (TEST_TURN, scripts/dev/test.sh).

setup() { load rules_helper; }

fail() {
  printf '%s\n' "$*"
  return 1
}

@test "each test that takes turns is in exactly one of the three turns, and each turn has some of both suites" {
  for suite in container faults; do
    tests=(tests/bats/"$suite"/*.bats)
    all=0
    for turn in 0 1 2; do
      some=$(.venv/bin/bats --count --filter-tags "turn:${turn}" "${tests[@]}")
      ((some > 0)) || fail "turn:${turn} has no test in tests/bats/${suite}"
      all=$((all + some))
    done
    tags=$(cat "${tests[@]}" | grep -cE '^# bats .*turn:')
    printf '# %s: %d tests take turns\n' "$suite" "$all" >&3
    [[ $all == "$tags" ]] || fail "${tags} tests of ${suite} have a tag turn:, and ${all} one of turn:0, turn:1 and turn:2"
  done
}
