#!/usr/bin/env bats
# docs/shared-root.md says what the shared root must be able to do, and marks what `make check` tries of it.

setup() { load rules_helper; }

@test "what docs/shared-root.md marks is what the trial of the shared root tries, and each has its sentence" {
  local trial="${BATS_TEST_TMPDIR}/trial" words="${BATS_TEST_TMPDIR}" rows
  grep -v '^#' scripts/lib/lifecycle/shared.bash >"$trial"
  rows=$(sed -nE 's/^\| ✓ ([^|]*) \|.*/\1/p' docs/shared-root.md)
  # shellcheck disable=SC2016  # Markdown's
  run grep -vE ' \(`[a-z]+`(, `[a-z]+`)*\)$' <<<"$rows"
  [[ -z $output ]] # else they are rows without a word
  sed -E 's/.* \((.*)\)$/\1/' <<<"$rows" | grep -oE '[a-z]+' | sort >"${words}/marked"
  grep -oP '\bproblem \K[a-z]+' "$trial" | sort -u >"${words}/tried"
  sed -nE 's/^    ([a-z]+)\).*/\1/p' "$trial" | sort >"${words}/refused"
  printf '# %d things\n' "$(wc -l <"${words}/tried")" >&3
  (($(wc -l <"${words}/tried") > 0))
  diff "${words}/marked" "${words}/tried"
  diff "${words}/refused" "${words}/tried"
}
