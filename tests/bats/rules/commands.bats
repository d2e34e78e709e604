#!/usr/bin/env bats
# What every script does as a command, and what its header says.

setup() { load rules_helper; }

@test "every script prints its help, and refuses an unknown argument before it begins" {
  rules::files 'scripts/*.sh' 'maintain/*.sh'
  for file in "${FILES[@]}"; do
    name=$(basename "$file" .sh)
    run env -i PATH="$PATH" HOME="$BATS_TEST_TMPDIR" "./${file}" --help </dev/null
    [[ $status == 0 && $output == "${name}: "* ]] || {
      printf '%s --help: exit %d, %s\n' "$file" "$status" "$output"
      return 1
    }
    run env -i PATH="$PATH" HOME="$BATS_TEST_TMPDIR" NO_COLOR=1 WORKERS=0 "./${file}" --hlep </dev/null
    [[ $status == 2 && $output == "error   '--hlep' is not an argument of ${file##*/}: see --help."* ]] || {
      printf '%s --hlep: exit %d, %s\n' "$file" "$status" "$output"
      return 1
    }
  done
}

@test "the knobs that a script's header names are there" {
  rules::files 'scripts/*.sh' 'maintain/*.sh'
  named=0
  for file in "${FILES[@]}"; do
    while read -r knob; do
      grep -q "^${knob}=" env/defaults.env || {
        printf '%s: %s\n' "$file" "$knob"
        return 1
      }
      named=$((named + 1))
    done < <(sed -n '/^# Knobs: /,/^[^#]\|^#$/{ /^#/!q; s/^# *\(Knobs:\)\{0,1\}//; s/([^)]*)//g; p; }' "$file" | grep -oE '[A-Z][A-Z0-9_]+' || true)
  done
  printf '# %d knobs named\n' "$named" >&3
  ((named > 100))
}
