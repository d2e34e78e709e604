#!/usr/bin/env bats
# The files that we ship as templates are valid.

setup() { load rules_helper; }

@test "every JobSpec, base config, suite and ci file has its schema and table of fields" {
  rules::files 'jobspecs/*.yaml' 'env/ray/*.yaml' 'suites/*.yaml' 'ci/*.yaml'
  run scripts/dev/specs.sh
  [[ $status == 0 && $output == *"checked ${#FILES[@]} files, 0 problems"* ]] || {
    printf '%s\n' "$output"
    return 1
  }
}
