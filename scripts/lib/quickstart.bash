# quickstart: what `make quickstart` chooses where there are GPUs: which of them, and what it trains if the Hugging Face hub does not
# answer. It adds what it chose to env/local.env, because all later commands need it.
# shellcheck shell=bash

# quickstart::choose_gpus: the NVIDIA GPUs of this host that this shell may use and no process uses, unless the user or a running cluster has
# chosen.
quickstart::choose_gpus() {
  local free=() given=() knob all among=''
  if [[ $PROFILE != gpu || $TRANSPORT != container || -n $HOSTS_FILE || -n $GPU_IDS || -n $(nodes::owners) ]]; then
    log::skip "choosing GPUs (profile ${PROFILE}, TRANSPORT=${TRANSPORT}, HOSTS_FILE='${HOSTS_FILE}', GPU_IDS='${GPU_IDS}', or the cluster is up)"
    return
  fi
  devices::load
  if [[ -n $DEVICES_SOURCE ]]; then
    among=" among $(devices::shown) (${DEVICES_SOURCE})"
    log::info "choosing GPUs only${among}, which this shell may use"
  fi
  output::read_lines free prereq::free_gpus
  all=$(IFS=, && printf '%s' "${free[*]}")
  ((${#free[@]})) ||
    cli::die 1 "nvidia-smi lists no GPU here${among} that is whole and that no process uses: end or wait for what uses them, share them with FORCE=1, or set PROFILE=cpu to rehearse without them."
  for knob in WORKERS GPUS_PER_WORKER; do ! env::is_given "$knob" || given+=("$knob"); done
  case ${given[*]} in
    WORKERS) GPUS_PER_WORKER=$((${#free[@]} / WORKERS)) ;;
    GPUS_PER_WORKER) WORKERS=$((${#free[@]} / GPUS_PER_WORKER)) ;;
    '')
      WORKERS=$((${#free[@]} % 2 ? 1 : 2))
      GPUS_PER_WORKER=$((${#free[@]} / WORKERS))
      ;;
  esac
  ((${#given[@]} != 1 || WORKERS * GPUS_PER_WORKER == ${#free[@]})) ||
    cli::die 2 "${given[0]}=${!given[0]} (from ${ENV_ORIGIN[${given[0]}]}) does not divide the ${#free[@]} GPUs that no process uses (${all}, by nvidia-smi): set it to a number that does, or set GPU_IDS, WORKERS and GPUS_PER_WORKER."
  ((WORKERS * GPUS_PER_WORKER <= ${#free[@]})) ||
    cli::die 2 "WORKERS=${WORKERS} (from ${ENV_ORIGIN[WORKERS]}) with GPUS_PER_WORKER=${GPUS_PER_WORKER} (from ${ENV_ORIGIN[GPUS_PER_WORKER]}) need $((WORKERS * GPUS_PER_WORKER)) GPUs, but only ${#free[@]} are used by no process (${all}, by nvidia-smi): lower one of the two, or share GPUs with FORCE=1."
  GPU_IDS=$(cut -d, -f"-$((WORKERS * GPUS_PER_WORKER))" <<<"$all")
  quickstart::_keep 'no process uses these GPUs' GPU_IDS WORKERS GPUS_PER_WORKER
}

# quickstart::choose_data: a tiny model and sums, if model and data are to come from the hub and it does not answer.
quickstart::choose_data() {
  local knob said
  for knob in MODEL_SOURCE MODEL DATASET_SOURCE DATASET; do ! env::is_given "$knob" || return 0; done
  [[ $MODEL_SOURCE == hub:* ]] || return 0
  cli::temp_dir said
  ! helper::run worker-0 prepare-model --source "$MODEL_SOURCE" --name "$MODEL" --seed "$SEED" --check >/dev/null 2>"${said}/error" || return 0
  grep -q 'Hugging Face hub' "${said}/error" || return 0 # `make prepare` says what else is wrong
  log::info "$(sed -n 's/^error *//p' "${said}/error")"
  log::warn "the Hugging Face hub does not give ${MODEL_SOURCE#hub:}, so a tiny model learns sums instead: that shows that training runs here, and nothing about a real model."
  env::give MODEL_SOURCE tiny MODEL tiny-qwen2-for-gpu DATASET_SOURCE synthetic DATASET sums
  quickstart::_keep 'without the hub' MODEL_SOURCE MODEL DATASET_SOURCE DATASET
}

# quickstart::_keep WHY KNOB...: adds these knobs to env/local.env.
quickstart::_keep() {
  local why=$1 knob lines=()
  shift
  for knob; do lines+=("${knob}=${!knob}"); done
  env::keep "By 'make quickstart' (${why}); remove these lines, and it chooses again." "${lines[@]}"
}
