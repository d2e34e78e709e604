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

@test "a workload's name decides nothing outside the tables: ask a field of its entry" {
  names=$(PYTHONPATH=py .venv/bin/python -c 'from verl_regress.base.workloads import WORKLOADS; print(*WORKLOADS, sep="|")')
  rules::files 'py/*.py' 'judge/verl_verdict/*.py' 'rehearsal/verl_rehearsal/*.py'
  # The tables, which tests/test_workloads.py compares; acceptance lists what it trains.
  rules::leave_out '^(py/verl_regress/base/workloads|judge/verl_verdict/read/metrics|rehearsal/verl_rehearsal/(train|fidelity)|py/verl_regress/session/acceptance)\.py$'
  rules::none "[\"'](${names})[\"']"
  rules::files 'scripts/*.sh' 'scripts/*.bash' py/verl_regress/session/acceptance.py
  rules::none "([!=]=|=~|\\bin) *[\"']?(${names})\\b|^ *((${names})( *\\| *)?)+\\)"
}
