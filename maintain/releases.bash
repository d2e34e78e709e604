# releases: the rows of maintain/releases.sh, on a cluster that is started and prepared for them.
# shellcheck shell=bash

readonly RELEASES_DIR="${REPO_DIR}/build/releases"
readonly RELEASES_LOG="${RELEASES_DIR}/log"

releases::python() { venv::script maintain/releases.py "$@"; }
releases::row() { venv::script maintain/release_row.py "$@"; }

# releases::quietly WHAT TARGET...: `make TARGET...`; its stdout goes to stdout, all other output to the log.
releases::quietly() {
  log::while "$1" releases::_doing -- releases::_logged "${@:2}" ||
    cli::die 1 "'make ${*:2}' failed: read the end of ${RELEASES_LOG}."
}

# The last line of the log, without the column for our first word.
releases::_doing() { log::last_line "$RELEASES_LOG" | sed 's/^[a-z=]* *//'; }
releases::_logged() { make --no-print-directory -C "$REPO_DIR" "$@" 2>>"$RELEASES_LOG" </dev/null; }

# releases::find_rows [WORD...]: puts the rows that the words name into the array ROWS; rows of main only with VERL_MAIN.
releases::find_rows() {
  local row found=()
  [[ ${PROFILE-} == @(|auto|cpu) ]] ||
    cli::die 2 "PROFILE='${PROFILE}' (from ${ENV_ORIGIN[PROFILE]}) is not usable: releases are tried in rehearsals; use cpu, or leave it out."
  output::read_lines found releases::python rows "$@"
  for row in "${found[@]}"; do
    if [[ $row == main-* && -z ${VERL_MAIN-} ]]; then
      log::skip "${row} (VERL_MAIN is empty: set it to git:URL@REF or path:DIR)"
    else
      ROWS+=("$row")
    fi
  done
}

# releases::settle: resets the knobs that the rows do not set to their defaults; WORKDIR and CLUSTER_NAME stay the user's. Exported
# variables count as given, so the knobs are loaded in a subshell.
releases::settle() {
  local found=()
  export PROFILE=cpu FORCE='' JOBSPEC='' OVERRIDES='' OVERRIDES_FILE='' DRY_RUN='' JSON='' MAX_RUNNING=''
  unset CODE_ID CODE_A CODE_B WORKLOAD JOB WAIT SUBMISSION_ID VERL_SOURCE
  output::read_lines found releases::_defaults
  export CLUSTER_NAME=${found[0]} WORKDIR=${found[1]}
  IMAGE=${found[2]}
}

releases::_defaults() { env::load && printf '%s\n' "$CLUSTER_NAME" "$WORKDIR" "$(image::name)"; }

# releases::ensure_cluster: CLUSTER_NAME is up and prepared; if it was not up before, it is removed at the end.
releases::ensure_cluster() {
  host::list_clusters | grep -xF -- "$CLUSTER_NAME" >/dev/null || cli::on_exit releases::take_down
  releases::quietly "bringing ${CLUSTER_NAME} up" build up prepare >>"$RELEASES_LOG"
}

releases::take_down() { releases::_logged down FORCE=1 >>"$RELEASES_LOG"; }

# releases::snapshot RELEASE: its snapshot; prints the code id on stdout.
releases::snapshot() {
  local source="pypi:$1"
  [[ $1 != main ]] || source=$VERL_MAIN
  CODE_ID='verl-{tree}' VERL_SOURCE=$source releases::quietly "making the snapshot of ${source}" snapshot
}

# releases::run ROW CODE_ID: false if the row does not work. Skipped if its record has the same code and image.
releases::run() {
  local said status=0
  if [[ $AGAIN != 1 ]] && said=$(releases::python recorded "$1" "$2" "$IMAGE"); then
    log::skip "${said} (recorded with the same code and image; FORCE=1 runs it again)"
    return
  fi
  said=$(log::while "row $1" releases::_doing -- releases::row "$1" "$2" "$IMAGE" "$RELEASES_LOG") || status=$?
  case $status in
    0) log::ok "$said" ;;
    9)
      log::error "$said"
      return 1
      ;;
    130 | 143) exit "$status" ;;
    *) cli::die 1 "The row $1 could not be run: its messages are above, and the output of its commands is in ${RELEASES_LOG}." ;;
  esac
}
