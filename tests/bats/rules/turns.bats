#!/usr/bin/env bats
# The long container and fault tests, of which CI runs a third each time (TEST_TURN, scripts/dev/test.sh).

setup() { load rules_helper; }

fail() {
  printf '%s\n' "$*"
  return 1
}

@test "each test that takes turns is in exactly one of the three turns, and each turn has some of both suites" {
  for suite in container faults; do
    # A tag, and in the next line its test: bats takes any other comment for a comment.
    tagged=$(grep -hA 1 'turn:' tests/bats/"$suite"/*.bats | grep -v '^--$')
    all=0
    for turn in 0 1 2; do
      some=$(grep -cxA 1 "# bats test_tags=turn:${turn}" <<<"$tagged")
      ((some > 0)) || fail "turn:${turn} has no test in tests/bats/${suite}"
      all=$((all + some))
    done
    printf '# %s: %d tests take turns\n' "$suite" "$all" >&3
    [[ $(grep -c '^@test "' <<<"$tagged") == "$all" && $(wc -l <<<"$tagged") == "$((2 * all))" ]] || fail "not a tag and a test each: ${tagged}"
  done
}
