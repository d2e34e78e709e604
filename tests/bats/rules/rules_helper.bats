#!/usr/bin/env bats
# The rules can fail: a check that finds no files, or misses a violation, would be a green light for nothing.

setup() { load rules_helper; }

@test "the rules themselves: a violation is found with its line, a rule-ok is not" {
  FILES=("${BATS_TEST_TMPDIR}/sinner.bash")
  printf '# ray stop\ntrue # ray stop\nray stop # rule-ok: for this test\nray stop\n' >"${FILES[0]}"
  run rules::none 'ray stop'
  [[ $status == 1 && $output == "${FILES[0]}:4:ray stop" ]]
  run rules::files '*.no-such-kind'
  [[ $status == 1 ]]
}

@test "the rules themselves: a name that two classes have is found in both places" {
  FILES=("${BATS_TEST_TMPDIR}/a.py" "${BATS_TEST_TMPDIR}/b.py")
  printf 'class Run:\n    class Step(int):\n        """A class Page: no more."""\n' >"${FILES[0]}"
  printf 'class Page: ...\nclass Run(int): ...\n' >"${FILES[1]}"
  run rules::once classes '^ *class \K\w+(?=[(:])'
  [[ $status == 1 && $output == "${FILES[0]}:1:Run"$'\n'"${FILES[1]}:2:Run" ]]
  run rules::once classes '^ *class \KStep'
  [[ $status == 0 ]]
}
