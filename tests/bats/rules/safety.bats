#!/usr/bin/env bats
# docs/safety.md makes promises; each names the test that proves it.

setup() { load rules_helper; }

@test "every row of docs/safety.md names a test that exists" {
  rules::files docs/safety.md
  rows=0
  while IFS='|' read -r _ never _ held _; do
    [[ $held =~ ^' `'(tests/[A-Za-z0-9_/.]+)'`: '(.+)' '$ ]] || {
      printf 'no test: %s\n' "$never"
      return 1
    }
    grep -qF -e "@test \"${BASH_REMATCH[2]}\"" -e "def ${BASH_REMATCH[2]}(" "${BASH_REMATCH[1]}" || {
      printf '%s has no test: %s\n' "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"
      return 1
    }
    rows=$((rows + 1))
  done < <(grep '^|' docs/safety.md | tail -n +3)
  printf '# %d promises\n' "$rows" >&3
  ((rows >= 30))
}
