#!/usr/bin/env bats
# House rules for Bash, each with its reason.

setup() { load rules_helper; }

@test "engines, ssh and srun are called only in their own files: use node::exec" {
  rules::files 'scripts/*.sh' 'scripts/*.bash' 'maintain/*.sh' 'maintain/*.bash'
  rules::leave_out '^scripts/(lib/(transport|lifecycle)/|dev/|00_prereq_check\.sh)|^maintain/'
  rules::none '(^|[^A-Za-z0-9_./-])(docker|podman|ssh|srun)([^A-Za-z0-9_.:-]|$)'
}

@test "no sleep: wait for a condition, with a deadline (wait::until)" {
  rules::files 'scripts/*.sh' 'scripts/*.bash' 'maintain/*.sh' 'maintain/*.bash' 'tests/*.bats' 'tests/*.bash' '.ci/*'
  rules::leave_out '^tests/bats/rules/|/wait\.bash$'
  rules::none '(^|[;&|({]|do|then|else) *sleep '
}

@test "a script sources its files by REPO_DIR: regress.bash changes the directory" {
  rules::files 'scripts/*.sh' 'maintain/*.sh'
  # shellcheck disable=SC2016  # a pattern
  rules::none 'source "\$\(dirname "\$0"\)/[a-z_]*\.bash"'
}

@test "no bare wait: it waits for every child, also for those of log::while" {
  rules::files 'scripts/*.sh' 'scripts/*.bash' 'maintain/*.sh' 'maintain/*.bash'
  rules::leave_out '^maintain/bench\.bash$'
  rules::none '(^|[;&|({]|do|then|else) *wait *([;)]|$)'
}

@test "no status of a process substitution: 'wait' may fail without a reason" {
  rules::files 'scripts/*.sh' 'scripts/*.bash' 'maintain/*.sh' 'maintain/*.bash'
  rules::leave_out '^scripts/lib/output\.bash$'
  rules::none '(^|[^A-Za-z_])wait "?\$!'
}

# promise: stops a process by its name, or runs `ray stop`
@test "no 'ray stop', no killing by name: on a host they end other people's processes" {
  rules::files 'scripts/*.sh' 'scripts/*.bash' 'maintain/*.sh' 'maintain/*.bash' 'py/*.py' 'judge/verl_verdict/*.py' 'rehearsal/verl_rehearsal/*.py' Makefile '.ci/*'
  rules::none 'ray stop|pkill|killall|"ray", *"stop"'
}

@test "numbered scripts are tables of contents: at most 60 lines" {
  rules::files 'scripts/[0-9][0-9]_*.sh'
  for file in "${FILES[@]}"; do
    (($(wc -l <"$file") <= 60)) || {
      wc -l "$file"
      return 1
    }
  done
}

@test "numbered scripts never call each other: only the Makefile composes phases" {
  rules::files 'scripts/*.sh' 'scripts/*.bash' 'maintain/*.sh' 'maintain/*.bash'
  rules::leave_out '^scripts/lib/bisect\.bash$' # it is the user: each commit gets a session or a job of its own
  rules::none '^[^"'\'']*(/|^| )[0-9][0-9]_[a-z0-9_]+\.sh'
}

@test "every script is executable, begins with the one source, and sets no options" {
  rules::files 'scripts/*.sh' 'maintain/*.sh'
  one_source='^source "[$](dirname "[$]0")/\(\.\./\)\?\(scripts/\)\?lib/regress.bash"$'
  for file in "${FILES[@]}"; do
    [[ -x $file && $(head -n 1 "$file") == '#!/usr/bin/env bash' && $(grep -c "$one_source" "$file") == 1 ]] || {
      printf '%s\n' "$file"
      return 1
    }
  done
  rules::none '^ *set -[a-z]*[eu]'
}

@test "libraries set no traps and never cd: their callers would pay for it" {
  rules::files 'scripts/lib/*.bash'
  rules::leave_out '/cli\.bash$'
  rules::none '^ *(trap|cd|pushd) '
}

@test "where the shared directory is comes from SHARED_ROOT alone" {
  rules::files 'scripts/*.sh' 'scripts/*.bash' 'maintain/*.sh' 'maintain/*.bash' 'py/*.py' 'judge/verl_verdict/*.py' 'rehearsal/verl_rehearsal/*.py' 'docker-compose*.yaml' 'docker/*' Makefile
  rules::none '(^|[^A-Za-z0-9_.$}-])/(private|mnt/shared)([^A-Za-z0-9_]|$)'
}

@test "a knob's default has one home, env/: no \${KNOB:-default} elsewhere" {
  rules::files 'scripts/*.sh' 'scripts/*.bash' 'maintain/*.sh' 'maintain/*.bash' 'docker-compose*.yaml'
  knobs=$(sed -nE 's/^([A-Z][A-Z0-9_]*)=.*/\1/p' env/defaults.env | paste -sd'|')
  rules::none "[$][{](${knobs}):?-[^}]"
}

@test "no index, registry or mirror is written down: the machine's settings name them" {
  rules::files 'scripts/*' 'docker/*' 'env/*' '*.lock' '.ci/*' Makefile
  rules::leave_out '\.py$'
  rules::none '(index-url|find-links|mirror|registry)[= ]+"?(https?|file):'
}

@test "what runs on a node needs no ps, ip, curl or git: the smallest image has none" {
  rules::files 'scripts/*.sh' 'scripts/*.bash' 'maintain/*.sh' 'maintain/*.bash'
  rules::none '(node::(exec|exec_in|spawn)|transport::exec) +("[^"]*"|[^ ]+) +("[^"]*log" +)?(ps|pgrep|ip|ss|curl|wget|git|jq)( |$)'
}
