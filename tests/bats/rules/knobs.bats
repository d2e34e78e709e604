#!/usr/bin/env bats
# env/defaults.env: every knob has a type that scripts/lib/knob.bash knows, and a default of that type.

setup() {
  load rules_helper
  rules::files 'env/*.env' scripts/lib/knob.bash
}

# type_of KNOB
type_of() { sed -n "/^#: /{h; n; /^$1=/{x; s/^#: //p; }; }" env/defaults.env; }

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

@test "ONLY takes the checks that verify has" {
  in_python=$(.venv/bin/python -c '
import sys
sys.path[:0] = ["py", "judge"]
from verl_regress.session.checks import CHECKS
print(*(check.name for check in CHECKS))')
  [[ -n $in_python && $(type_of ONLY) == "list of ${in_python} or empty" ]]
}
