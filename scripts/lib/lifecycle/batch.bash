# lifecycle/batch: a batch job of Slurm that brings the cluster up in its allocation, does its work there, and takes it down.
# shellcheck shell=bash

# batch::load: reads the knobs. Nodes are not asked: they are those of an allocation to come: bare hosts, or with HOSTS_FILE=slurm our
# containers there.
batch::load() {
  env::check
  TRANSPORT=srun ENV_ORIGIN[TRANSPORT]='a batch job for Slurm'
  [[ ! -v HOSTS_FILE || -z $HOSTS_FILE ]] || TRANSPORT=container
  if [[ ! -v PROFILE || $PROFILE == auto ]]; then
    log::info "PROFILE is not set, and this machine is none of the job's hosts, so the profile is gpu; set PROFILE=cpu for a rehearsal."
    env::give PROFILE gpu
  fi
  env::load_knobs
  [[ -z $HOSTS_FILE ]] || hosts::are_allocated ||
    cli::die 2 "HOSTS_FILE=${HOSTS_FILE} (from ${ENV_ORIGIN[HOSTS_FILE]}) names hosts, but a batch job gets its hosts from Slurm: set HOSTS_FILE=slurm to run our containers on them, or HOSTS_FILE= to run Ray directly on them."
  WORKDIR=$(realpath -m -- "$WORKDIR")
}

# batch::check: refuses, before anything waits in Slurm's queue, a JobSpec, overrides and secrets that the job would refuse. The overrides
# need verl's config: the snapshot, or the source that it is made of.
batch::check() {
  local spec=$JOBSPEC stream root=$SHARED_ROOT source args=() members=()
  [[ $BATCH_DO == submit ]] || return 0
  [[ -n $spec ]] || spec=$(job::spec_of "$WORKLOAD")
  [[ -z $HOSTS_FILE ]] || root="${WORKDIR}/shared"
  cli::temp_dir stream
  job::request args members "$stream" "$spec"
  args+=("--root-here=${root}")
  source=$(batch::_source)
  [[ -z $source ]] || args+=("--source=${source}")
  tar -C "$stream" -c --files-from=/dev/null -- "${members[@]}" >"${stream}/all"
  secret::read_all "$spec" batch::_helper precheck "${args[@]}" <"${stream}/all"
}

# batch::_source: the verl that the job makes its snapshot of, if it is on this machine.
batch::_source() {
  local tree
  ! snapshot::is_named || return 0
  case $VERL_SOURCE in
    path:*) tree=$(env::path "${VERL_SOURCE#path:}") ;;
    pypi:*) tree=$(snapshot::pypi_cache "${VERL_SOURCE#pypi:}") ;;
    *) return 0 ;;
  esac
  [[ ! -r ${tree}/verl/__init__.py ]] || printf '%s\n' "$tree"
}

# batch::_helper ARGS...: a subcommand on this machine: by the Python of the hosts, if it is here, too, and has what a plan needs, or else
# by that of .venv.
batch::_helper() {
  local python
  python=$(PATH="${NODES_PATH:+${NODES_PATH}:}${PATH}" type -P python3) || python=''
  if [[ -z $python ]] || ! "$python" -c 'import hydra, yaml' 2>/dev/null; then
    venv::ensure </dev/null
    python="${VENV_DIR}/bin/python"
  fi
  "$python" -B "${REPO_DIR}/py/run.py" --shared-root "$SHARED_ROOT" "--terminal=$(log::columns)" --no-ray "$@"
}

# batch::print: the script, on stdout. It has every option and every knob that the user set, and nothing else of the environment but
# how to find commands.
batch::print() {
  local name option goals targets=()
  goals=$(batch::goals "$BATCH_DO")
  ! snapshot::is_named || goals=${goals/ snapshot/}
  ! hosts::are_allocated || goals="build ${goals}" # the first host's engine may not have the node image yet; the others get it from there
  mapfile -t targets < <(typed::targets "$goals")
  printf '#!/bin/bash\n'
  printf '#SBATCH --%s\n' "job-name=verl-regress-${WORKLOAD}" "nodes=$((WORKERS + 1))" ntasks-per-node=1
  [[ $BATCH_OPTIONS == *--cpus-per-task* ]] || printf '#SBATCH --%s\n' exclusive mem=0
  case $PROFILE in
    cpu) ;;
    npu) printf '#SBATCH --gres=npu:%s\n' "$GPUS_PER_WORKER" ;; # Slurm's own options and variables know only GPUs
    *) printf '#SBATCH --gpus-per-node=%s\n' "$GPUS_PER_WORKER" ;;
  esac
  [[ -z $BATCH_PARTITION ]] || printf '#SBATCH --partition=%s\n' "$BATCH_PARTITION"
  [[ -z $BATCH_TIME ]] || printf '#SBATCH --time=%s\n' "$BATCH_TIME"
  # The shell gets a signal two minutes before the time limit, and ends the cluster itself.
  printf '#SBATCH --%s\n' "output=\"$(batch::_directory | sed 's/%/%%/g')/%j.log\"" export=NIL no-requeue signal=B:TERM@120
  for option in $BATCH_OPTIONS; do printf '#SBATCH %s\n' "$option"; done
  printf '\n# Written by make slurm of verl-regress. The first host is the head, each other one a worker.\n'
  printf 'cd %q || exit 1\n' "$REPO_DIR"
  for name in PATH HOME USER; do [[ ! -v $name ]] || printf 'export %s=%q\n' "$name" "${!name}"; done
  env::give WAIT 1
  batch::_print_knobs knobs "${targets[@]}"
  batch::_print_knobs down down
  cat <<BODY

set -m # one signal ends make's whole process group
make --no-print-directory ${goals} "\${knobs[@]}" &
work=\$! stopped='' status=0; trap 'stopped=1; kill -TERM -- "-\$work"' TERM
wait "\$work" || status=\$?
[[ -z \$stopped ]] || { wait "\$work"; status=143; }
stopped=''; trap : TERM # not '': what ignores a signal passes that on to all that it starts
make --no-print-directory down "\${down[@]}" FORCE=1
rm -f -- "${LOGIN_FILES}/\${SLURM_JOB_ID}".*
exit "\$status"
BODY
}

# batch::_print_knobs ARRAY TARGET...: an array of the knobs that the user set and that make reads for these targets. Slurm decides how many
# hosts there are.
batch::_print_knobs() {
  local name
  printf '%s=(\n  TRANSPORT=%s\n' "$1" "$TRANSPORT"
  for name in "${KNOB_NAMES[@]}"; do
    [[ ' DRY_RUN FORCE TRANSPORT WORKERS ' != *" ${name} "* ]] || continue
    env::is_given "$name" || continue
    ! typed::is_read "$name" "${@:2}" || printf '  %q\n' "${name}=${!name}"
  done
  printf ')\n'
}

# batch::goals BATCH_DO: what make does in the allocation.
batch::goals() {
  case $1 in
    verify) printf 'verify\n' ;;
    resume) printf 'up resume\n' ;;
    *) printf 'up prepare snapshot submit\n' ;;
  esac
}

# batch::submit: keeps the script under WORKDIR and gives it to Slurm; its job id is on stdout.
batch::submit() {
  local directory file id name without=()
  command -v sbatch >/dev/null ||
    cli::die 1 "'sbatch' is not on PATH: run this where Slurm's commands are, or see the script with DRY_RUN=1."
  directory=$(batch::_directory)
  mkdir -p "$directory"
  file="${directory}/${WORKLOAD}-$(date -u +%Y%m%dT%H%M%SZ)-$$.sbatch"
  batch::print >"$file"
  # These would win over the script's own options.
  for name in "${!SLURM_@}"; do [[ $name == SLURM_CONF ]] || without+=(-u "$name"); done
  id=$(env "${without[@]}" sbatch --parsable "$file" 2>"${file}.said") ||
    cli::die 1 "Slurm refused the job (sbatch: $(login::last_words "${file}.said" sbatch)): correct the knobs BATCH_…; the script is ${file}."
  rm -f -- "${file}.said"
  id=${id%%;*} # with several clusters: ID;CLUSTER
  log::changed "submitted the Slurm job ${id}: its output goes to ${directory}/${id}.log, its script is ${file}"
  printf '%s\n' "$id"
}

batch::_directory() { printf '%s/slurm\n' "$WORKDIR"; }
