# calibrate: the runs of maintain/calibrate.sh, on a cluster that is up and prepared.
# shellcheck shell=bash

calibrate::python() { venv::script maintain/calibrate.py "$@"; }

# calibrate::next NAME PAIRS [WORKLOAD]: puts the next run's words into the array NAME; false if none is left.
calibrate::next() {
  local -n _words=$1
  output::read_words _words calibrate::python next "${@:2}" || exit "$?" # errexit is off behind `while`
  ((${#_words[@]} > 0))
}

# calibrate::run NAME WORKLOAD SEED PERTURBED FURTHER OVERRIDES [PATCH...]: one run, followed to its end and recorded. FURTHER is the
# step to which it is resumed afterwards; empty for most.
calibrate::run() {
  local name=$1 workload=$2 seed=$3 perturbed=$4 further=$5 overrides=${6//'{shared}'/"$SHARED_ROOT"} id code=$CALIBRATE_A status=0
  log::step "calibrate: ${name} (${workload})"
  (($# == 6)) || code=$(calibrate::snapshot "${@:7}")
  id=$(calibrate::_with CODE_ID "$code" TRAIN_SEED "$seed" PERTURBED "$perturbed" OVERRIDES "$overrides" -- \
    job::submit "$(job::spec_of "$workload")") || status=$?
  [[ -n $id ]] || cli::die 1 "The run ${name} was not submitted: the reason is above; fix it, then run this again."
  if [[ -n $further ]] && ((status == 0)); then
    calibrate::_with JOB "$id" OVERRIDES "trainer.total_training_steps=${further}" -- job::again resume >&2 || status=$?
  fi
  case $status in
    0 | 3) ;;
    6) job::stop "$id" ;;
    *) cli::die "$status" "How the run ${name} (${id}) ended tells nothing about its code (the reason is above): fix that, then run this again." ;;
  esac
  calibrate::python record "$name" "${WORKDIR}/shared/jobs/${id}" "$VERL_SOURCE" "$(release::commit)" "$(node::image head)"
  log::ok "${name}: recorded"
}

# calibrate::_with KNOB VALUE... -- COMMAND...: with these knobs, one job at a time, followed to its end.
calibrate::_with() (
  env::give WAIT 1 MAX_RUNNING 1
  while [[ $1 != -- ]]; do
    env::give "$1" "$2"
    shift 2
  done
  shift
  "$@"
)

# calibrate::snapshot PATCH...: the snapshot of A with these patches; prints its code id on stdout.
calibrate::snapshot() {
  local tree=${REPO_DIR}/build/calibrate patch
  rm -rf "$tree"
  mkdir -p "$tree"
  cp -a "${WORKDIR}/shared/common/code/verl/${CALIBRATE_A}/verl" "${tree}/verl"
  chmod -R u+w "$tree"
  find "$tree" -name __pycache__ -prune -exec rm -rf {} +
  # Outside our own repository: git would expect paths of that.
  for patch in "$@"; do
    GIT_CEILING_DIRECTORIES=${tree%/*} git -C "$tree" apply "$patch" ||
      cli::die 2 "The patch ${patch} does not apply to ${VERL_SOURCE} (VERL_SOURCE): write the patch for that release."
  done
  snapshot::ensure 'verl-{tree}' "path:${tree}"
}
