#!/usr/bin/env bats
# The long container and fault tests, of which CI runs a third or a ninth each time (TEST_TURN, scripts/dev/test.sh).

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

@test "each test that takes turns of nine is in exactly one of them, and CI comes to each" {
  files=(tests/bats/{container,faults}/*.bats)
  for ninth in {0..8}; do
    mapfile -t found < <(grep -lxE "# bats (test|file)_tags=ninth:${ninth}" "${files[@]}")
    ((${#found[@]})) || fail "ninth:${ninth} has no test"
    for file in "${found[@]}"; do
      turn=$(sed -nE 's/^# bats file_tags=turn:([0-2])$/\1/p' "$file")
      [[ -z $turn || $turn == $((ninth % 3)) ]] || fail "${file} has the turn ${turn}, in which ninth:${ninth} never runs"
    done
  done
  all=$(cat "${files[@]}" | grep -c 'ninth:')
  one=$(grep -hxEA 1 '# bats test_tags=ninth:[0-8]' "${files[@]}" | grep -c '^@test "')
  whole=$(grep -lxE '# bats file_tags=ninth:[0-8]' "${files[@]}" | wc -l)
  printf '# %d tags\n' "$all" >&3
  [[ $all == $((one + whole)) ]] || fail "a tag with 'ninth:' is neither right above a test nor one for its file"
}
