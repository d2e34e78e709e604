#!/usr/bin/env bats
# House rules for Python that ruff, mypy and import-linter do not have, each with its reason.

setup() { load rules_helper; }

@test "sys.path changes in deps.use alone: an ordinary import finds everything else" {
  rules::files 'py/*.py' 'judge/verl_verdict/*.py' 'rehearsal/verl_rehearsal/*.py' 'scripts/*.py' 'maintain/*.py'
  rules::leave_out '^py/(deps|run)\.py$'
  rules::none 'sys\.path(\.(append|insert|extend)\(|(\[.*\])? *\+?= )'
}

@test "/proc is read in one module, which treats PID namespaces and ended processes" {
  rules::files 'py/verl_regress/*.py'
  rules::leave_out '^py/verl_regress/base/processes\.py$'
  rules::none '"/proc[/"]'
}

@test "the rehearsal imports neither hooks, helper nor judge: pip installs it alone" {
  rules::files 'rehearsal/*.py'
  rules::none "^ *(import|from) (verl_regress|verl_verdict|$(printf '%s\n' py/hooks/*.py | sed 's,.*/,,; s,\.py$,,' | paste -sd '|'))\\b"
  rules::files 'py/hooks/*.py'
  rules::none '^ *(import|from) verl_rehearsal\b'
}

@test "no two classes have one name: it says what the class is without its module" {
  rules::files 'py/*.py' 'judge/verl_verdict/*.py' 'rehearsal/*.py' 'ci/*.py'
  rules::leave_out '(^|/)tests/'
  rules::once classes '^ *class \K\w+(?=[(:])'
}
