#!/usr/bin/env bats
# env/defaults.env: every knob has a type that scripts/lib/knob.bash knows, and a default of that type.

setup() {
  load ../test_helper # fail
  load rules_helper
  rules::files 'env/*.env' scripts/lib/knob.bash
}

# type_of KNOB
type_of() { sed -n "/^#: /{h; n; /^$1=/{x; s/^#: //; s/, for .*//p; }; }" env/defaults.env; }

# libraries COMMAND...: with our libraries and a clean environment.
libraries() {
  # shellcheck disable=SC2016  # expanded by that shell
  env -i PATH="$PATH" bash -c 'source scripts/lib/regress.bash; cli::begin; trap - EXIT; knob::read; eval "$1"' scripts/any "$1"
}

@test "every knob has a type line directly above it, and its default is of that type" {
  awk '/^[A-Z][A-Z0-9_]*=/ { knobs++; if (above !~ /^#: ./) { print FNR ": " $0; wrong = 1 } } { above = $0 } END { exit wrong || knobs < 70 }' env/defaults.env
  [[ $(grep -c '^#: ' env/defaults.env) == $(grep -cE '^[A-Z][A-Z0-9_]*=' env/defaults.env) ]]
  # shellcheck disable=SC2016  # expanded by that shell
  run libraries 'for name in "${KNOB_NAMES[@]}"; do
    (knob::has_type "${KNOB_TYPE[$name]}" "${KNOB_DEFAULT[$name]}") || { echo "$name"; exit 1; }
  done; echo "${#KNOB_NAMES[@]}"'
  printf '# checked %s knobs\n' "$output" >&3
  [[ $status == 0 && $output == "$(grep -cE '^[A-Z][A-Z0-9_]*=' env/defaults.env)" ]]
}

@test "every line of every profile is a knob with a value of its type" {
  for file in "${FILES[@]}"; do
    [[ $file == env/*.env && $file != env/defaults.env ]] || continue
    # shellcheck disable=SC2016  # expanded by that shell
    run libraries "env::_read_file ${file}"'; knob::check "${!ENV_ORIGIN[@]}"; echo "${#ENV_ORIGIN[@]}"'
    [[ $status == 0 && $output == "$(grep -cE '^[A-Z]' "$file")" ]] || {
      printf '%s: %s\n' "$file" "$output"
      return 1
    }
  done
}

@test "each target of make reads the knobs that are tagged with it, and no others" {
  # A batch job of Slurm runs other targets, whose knobs it gets; and any command may say which cluster is meant (all).
  .venv/bin/python tests/bats/rules/knob_readers.py >"${BATS_TEST_TMPDIR}/read"
  run awk '
    FNR == NR { targets[$1]; for (i = 2; i <= NF; i++) read[$1, $i] = 1; next }
    /^#: / { tag = $0; sub(/.*, for /, "", tag); gsub(/\[[^]]*\]/, "", tag); next }
    match($0, /^[A-Z][A-Z0-9_]*=/) {
      knob = substr($0, 1, RLENGTH - 1)
      checked += split(tag, tagged, " ")
      if (tag == "all") next
      delete has
      for (i in tagged) has[tagged[i]]
      if ("submit" in has || "up" in has || "prepare" in has || "snapshot" in has) has["slurm"]
      for (target in has) if (!((target, knob) in read) && target != "slurm") print target " does not read " knob
      for (target in targets) if ((target, knob) in read && !(target in has)) print target " reads " knob
    }
    END { print checked " tags" }' "${BATS_TEST_TMPDIR}/read" env/defaults.env
  printf '# checked %s\n' "${lines[-1]}" >&3
  [[ $output =~ ^[1-9][0-9][0-9]" tags"$ ]] || fail "$output"
}

@test "no command line that we print or document is one that make refuses" {
  rules::files '*.md' '*.py' '*.bash' '*.sh' 'jobspecs/*.yaml' 'suites/*.yaml' 'ci/*.yml'
  mapfile -t commands < <(grep -v CHANGELOG.md <<<"$(printf '%s\n' "${FILES[@]}")" | grep -v '^\(tests\|[a-z]*/tests\)/' |
    xargs -d '\n' grep -ohE "\bmake( [a-z]+)+( [A-Z_]+=('[^']*'|[^ ()\`'\",;|…]*…?))+" | sort -u)
  # shellcheck disable=SC2016  # expanded by that shell
  run libraries 'checked=0
    while read -r _ line; do
      (MAKE_GOALS="" MAKE_GIVEN=""
        while [[ $line =~ ^([a-z]+)\ (.*) ]]; do MAKE_GOALS+="${MAKE_GOALS:+ }${BASH_REMATCH[1]}" line=${BASH_REMATCH[2]}; done
        while [[ $line =~ ^([A-Z_]+)=(\047[^\047]*\047|[^ ]*)( (.*))?$ ]]; do
          declare "${BASH_REMATCH[1]}=${BASH_REMATCH[2]}"
          MAKE_GIVEN+=" ${BASH_REMATCH[1]}" line=${BASH_REMATCH[4]}
        done
        typed::check) || exit 1
      checked=$((checked + 1))
    done < <(printf "%s\n" '"$(printf '%q ' "${commands[@]}")"')
    echo "${checked} command lines"'
  printf '# checked %s\n' "$output" >&3
  [[ $status == 0 && $output =~ ^[1-9][0-9]+" command lines"$ ]]
}

@test "ONLY takes the checks that verify has" {
  in_python=$(.venv/bin/python -c '
import sys
sys.path[:0] = ["py", "judge"]
from verl_regress.session.checks import CHECKS
print(*(check.name for check in CHECKS))')
  [[ -n $in_python && $(type_of ONLY) == "list of ${in_python} or empty" ]] ||
    fail "The tag of ONLY in env/defaults.env is '$(type_of ONLY)', but CHECKS has ${in_python}."
}
