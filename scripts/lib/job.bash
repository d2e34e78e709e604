# job: handing a JobSpec to the helper in the head, and asking about jobs.
# shellcheck shell=bash

# job::spec_of WORKLOAD: the JobSpec file that this distribution ships for a workload.
job::spec_of() {
  local file="jobspecs/$1.yaml"
  [[ $1 =~ ^[a-z0-9_]+$ && -f ${REPO_DIR}/${file} ]] ||
    cli::die 2 "WORKLOAD='$1' (from ${ENV_ORIGIN[WORKLOAD]}) is unknown: use one of: $(cd "${REPO_DIR}/jobspecs" && printf '%s\n' *.yaml | sed 's/\.yaml$//' | paste -sd' ')."
  printf '%s\n' "$file"
}

# job::submit SPEC [VIA]: sends the JobSpec file SPEC and the Ray base config to the head, which submits through VIA: sdk
# (Ray's Python SDK) or cli (`ray job submit`). The submission id on stdout.
job::submit() {
  local spec=$1 via=${2:-sdk} stream words word args=() members=(job_spec ray_config)
  cli::temp_dir stream
  job::_take "$spec" 'the JobSpec' "${stream}/job_spec"
  job::_take "$RAY_BASE_CONFIG" 'RAY_BASE_CONFIG' "${stream}/ray_config"
  args=(--spec-name "$spec" --base-name "$RAY_BASE_CONFIG" --profile "$PROFILE" --via "$via")
  args+=(--default-model "$MODEL" --default-dataset "$DATASET" --default-code-id "$CODE_ID")
  ! env::is_given CODE_ID || args+=("--code-id=${CODE_ID}")
  ! env::is_given SUBMISSION_ID || args+=("--submission-id=${SUBMISSION_ID}")
  read -r -d '' -a words <<<"$OVERRIDES" || true
  for word in "${words[@]}"; do args+=("--override=${word}"); done
  if [[ -n $OVERRIDES_FILE ]]; then
    job::_take "$OVERRIDES_FILE" 'OVERRIDES_FILE' "${stream}/overrides"
    args+=(--overrides-name "$OVERRIDES_FILE") members+=(overrides)
  fi
  [[ $DRY_RUN != 1 ]] || args+=(--dry-run)
  [[ $WAIT != 1 ]] || args+=(--wait)
  tar -C "$stream" -c "${members[@]}" | helper::run_in head submit "${args[@]}" "$(job::_deadlines)"
}

# job::follow JOB: the same as WAIT=1, later and from any terminal.
job::follow() { helper::run head wait "$1" "$(job::_deadlines)"; }

job::_deadlines() { printf -- '--deadlines=%s,%s,%s\n' "$PENDING_TIMEOUT" "$STALL_TIMEOUT" "$UNREACHABLE_TIMEOUT"; }

job::_take() {
  local file=$1
  [[ $file == /* || -e $file ]] || file="${REPO_DIR}/$1"
  [[ -f $file && -r $file ]] || cli::die 2 "$2 '$1' is not a readable file: name one that is."
  cp -- "$file" "$3"
}
