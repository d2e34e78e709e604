#!/usr/bin/env bats
# What is typed on make's command line, for a target that does not read it: refused before anything happens, with the command that reads it.

setup() {
  load ../test_helper
  sandbox::make
  ln -sf "$(real_python)" "${BOX}/bin/python3"
}

# typed_cases: reads lines "GOALS KNOB=VALUE…|SENTENCE" on stdin, and prints those for which typed::check says something else. In a sentence
# NOT READ BY is "(on make's command line) is not read by".
typed_cases() {
  cat >"${HERE}/scripts/cases.sh" <<'SH'
source "$(dirname "$0")/lib/regress.bash"
typed_one() {
  local word
  export MAKE_GIVEN='' MAKE_GOALS=''
  for word; do
    if [[ $word == *=* ]]; then export "$word" MAKE_GIVEN="${MAKE_GIVEN} ${word%%=*}"; else MAKE_GOALS+="${MAKE_GOALS:+ }${word}"; fi
  done
  typed::check
}
while IFS='|' read -r line sentence; do
  said=$(read -ra words <<<"$line" && typed_one "${words[@]}" 2>&1) || true
  [[ ${said#error   } == "${sentence/NOT READ BY/"(on make's command line) is not read by"}" ]] || printf '%s\n%s\n' "$line" "$said"
done
printf 'compared\n'
SH
  run env --chdir="$HERE" -i HOME="${BOX}/home dir" PATH="${BOX}/bin" NO_COLOR=1 "$@" "${BOX}/bin/bash" "${HERE}/scripts/cases.sh"
}

@test "a knob that no target of the command reads is refused, with those that do" {
  typed_cases <<'CASES'
status WAIT=1|WAIT='1' NOT READ BY 'make status': leave it out; it is for make submit, resume, retry, quickstart.
up GOOD=x|GOOD='x' NOT READ BY 'make up': leave it out; it is for make bisect.
test WORKERS=3|WORKERS='3' NOT READ BY 'make test': leave it out.
submit WORKERS=3 TORCH_INDEX_URL=https://me:secret@x/y|TORCH_INDEX_URL='https://…@x/y' NOT READ BY 'make submit': leave it out; it is for make build, check, up, quickstart, kit, export.
acceptance CODE_A=codeA|CODE_A='codeA' NOT READ BY 'make acceptance': leave it out; it is for make verify, kit, gc.
verify OVERRIDES=a=b|OVERRIDES='a=b' NOT READ BY 'make verify': put it into the suite, where A and B both get it.
resume CODE_ID=codeB|CODE_ID='codeB' NOT READ BY 'make resume': a further attempt runs the code of its job; for other code, submit a new job with OVERRIDES='trainer.resume_mode=resume_path trainer.resume_from_path=…'.
submit VERL_SOURCE=path:/v|VERL_SOURCE='path:/v' NOT READ BY 'make submit': give CODE_ID=auto, too, which trains that tree, or make a snapshot with a name first (make snapshot submit).
submit STALL_TIMEOUT=9 WAIT=off|STALL_TIMEOUT='9' NOT READ BY 'make submit' without WAIT=1: give that, too, or leave STALL_TIMEOUT out.
verify SESSION=latest SUITE=my.yaml|SUITE='my.yaml' NOT READ BY 'make verify' together with SESSION: leave one of the two out.
slurm BATCH_DO=verify WAIT=1|WAIT='1' NOT READ BY 'make slurm': leave it out; it is for make submit, resume, retry, quickstart.
export TO=compose BATCH_TIME=1:00|BATCH_TIME='1:00' NOT READ BY 'make export' without TO=slurm: give that, too, or leave BATCH_TIME out.
CASES
  [[ $output == compared ]] || fail 'it says something else'
}

@test "targets read what one of them reads, or what runs before it or in Slurm's job" {
  typed_cases LIMIT=3 JOB=x CODE_A=y <<'CASES'
up prepare submit SHM_SIZE=3gb SEED=2 WORKLOAD=sft CLUSTER_NAME=two DASHBOARD_PORT=9000|
verify MIN_DISK_GIB=1 DATASET_SOURCE=synthetic|
snapshot submit CODE_ID=mine VERL_SOURCE=path:/v|
submit CODE_ID=auto VERL_SOURCE=path:/v|
submit WAIT=yes STALL_TIMEOUT=9|
slurm VERL_SOURCE=path:/v NODE_IMAGE=x BATCH_TIME=1:00 FORCE=1|
slurm BATCH_DO=verify CODE_A=x SUITE=y|
export TO=slurm BATCH_TIME=1:00 SEED=2|
status|
submit HF_HOME=/no|
CASES
  [[ $output == compared ]] || fail 'it refuses something'
  printf '%s\n' CODE_ID=auto WAIT=1 JOB=x >"${HERE}/env/local.env" # which may also be what a condition asks for
  typed_cases <<'CASES'
submit VERL_SOURCE=path:/v STALL_TIMEOUT=9|
CASES
  [[ $output == compared ]] || fail 'it refuses something'
}

@test "make refuses it in its first script, before anything happens" {
  ln -s "$(command -v make)" "${BOX}/bin/make"
  stub docker
  for line in 'verify OVERRIDES=a=b' 'up GOOD=x' 'quickstart TAR=1'; do
    read -ra words <<<"$line"
    run env -i HOME="${BOX}/home dir" PATH="${BOX}/bin" NO_COLOR=1 PROFILE=cpu make --no-print-directory -C "$HERE" "${words[@]}"
    [[ $status == 2 && ${lines[0]} == "error   ${words[1]%%=*}='"* && ${#lines[@]} == 2 ]] || fail "$line"
  done
  [[ ! -s $CALLS && ! -e ${HERE}/workdir && ! -e ${HERE}/.venv ]]
}
