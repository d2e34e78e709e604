#!/usr/bin/env bats
# The long container and fault tests, of which CI runs a third each time (TEST_TURN, scripts/dev/test.sh).

setup() { load rules_helper; }

fail() {
  printf '%s\n' "$*"
  return 1
}

@test "each test that takes turns is in exactly one of the three turns, and each turn has some of both suites" {
  for suite in container faults; do
    files=(tests/bats/"$suite"/*.bats)
    all=0
    for turn in 0 1 2; do
      # A tag right above its test (bats takes any other comment for a comment), or one for all tests of its file.
      one=$(grep -hxA 1 "# bats test_tags=turn:${turn}" "${files[@]}" | grep -c '^@test "' || true)
      whole=$(grep -lx "# bats file_tags=turn:${turn}" "${files[@]}" || true)
      ((one + ${#whole} > 0)) || fail "turn:${turn} has no test in tests/bats/${suite}"
      all=$((all + one + $(grep -c . <<<"$whole" || true)))
      for file in $whole; do [[ $(grep -c 'turn:' "$file") == 1 ]] || fail "${file} takes turns as a file, and its tests too"; done
    done
    printf '# %s: %d tags\n' "$suite" "$all" >&3
    [[ $(cat "${files[@]}" | grep -c 'turn:') == "$all" ]] || fail "a tag with 'turn:' in tests/bats/${suite} is neither right above a test nor one for its file"
  done
}
