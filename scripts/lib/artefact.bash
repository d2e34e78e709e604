# artefact: the training data and the model on the shared root, each made once.
# shellcheck shell=bash

artefact::ensure_data() {
  local dir=${DATASET_SOURCE#path:} file argv files=()
  argv=(prepare-data --source "$DATASET_SOURCE" --name "$DATASET" --seed "$SEED")
  if [[ $DATASET_SOURCE != path:* ]]; then
    helper::run worker-0 "${argv[@]}"
    return
  fi
  if [[ -d $dir ]]; then
    for file in {train,test,val}.{parquet,jsonl}; do
      [[ ! -e ${dir}/${file} ]] || files+=("$file")
    done
  else
    files=("${dir##*/}") dir=$(dirname -- "$dir")
  fi
  for file in "${files[@]:-train.parquet}"; do
    [[ -f ${dir}/${file} && -r ${dir}/${file} ]] ||
      cli::die 2 "${dir}/${file} (from DATASET_SOURCE=${DATASET_SOURCE}) is not a file that can be read: name a folder with one train and one test or val, each .parquet or .jsonl, or one such file."
  done
  tar -C "$dir" -ch -- "${files[@]}" | helper::run_in worker-0 "${argv[@]}"
}

# artefact::ensure_model: with it comes a critic in a rehearsal, where PPO cannot make one of the model itself.
artefact::ensure_model() {
  local source=$MODEL_SOURCE argv
  # vLLM's attention needs larger heads. A rehearsal trains that model too, where a quick start on GPUs has chosen it.
  [[ $source != tiny || $PROFILE == cpu && $MODEL != *-for-gpu ]] || source=tiny-for-gpu
  argv=(prepare-model --source "$source" --name "$MODEL" --seed "$SEED")
  if [[ $source == path:* ]]; then
    artefact::_put_model "${source#path:}" "${argv[@]}"
  else
    helper::run worker-0 "${argv[@]}"
  fi
  [[ $PROFILE != cpu || $MODEL_SOURCE == tiny ]] || helper::run worker-0 "${argv[@]}" --critic
}

# artefact::_put_model DIR ARG...: the model in DIR.
artefact::_put_model() {
  local dir=$1 argv=("${@:2}") state
  [[ -r $dir/config.json ]] ||
    cli::die 2 "${dir} (from MODEL_SOURCE=${MODEL_SOURCE}) has no config.json that can be read: name the folder of a Hugging Face model."
  # Names, sizes and times identify the state of DIR without reading gigabytes of weights.
  argv+=(--revision "$(cd "$dir" && find -L . -type f -not -path './.git/*' -printf '%P\t%s\t%T@\n' | sort | sha256sum | cut -d' ' -f1)")
  state=$(helper::run worker-0 "${argv[@]}" --check)
  [[ $state == present ]] || tar -C "$dir" --exclude=./.git -ch . | helper::run_in worker-0 "${argv[@]}"
}
