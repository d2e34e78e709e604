#!/usr/bin/env bash
# 30_prepare_data_and_model: the training data and the model, on the shared root; each made once, then skipped.
#
#   DATASET_SOURCE   synthetic  seeded sums, as datasets/sums; never under the name of GSM8K
#                    path:DIR   GSM8K's train.jsonl and test.jsonl in DIR on this host, as datasets/gsm8k
#                    hub        openai/gsm8k from the Hugging Face hub, as datasets/gsm8k
#   MODEL_SOURCE     tiny                  a Qwen2 of 2 layers that knows a quarter of its sums, and its critic
#                    hub:REPO[@REVISION]   from the Hugging Face hub
#                    path:DIR              a Hugging Face folder on this host
#   DATASET, MODEL   another name than the source's own (empty: its own)
#   SEED             decides the synthetic rows and the tiny model's weights
#
# What is there from the same source is skipped; from another source it is an error, and nothing is changed.
source "$(dirname "$0")/lib/regress.bash"
cli::begin "$@"
env::load
# Relative directories are the caller's; in manifests and messages they are absolute.
source::absolute() {
  case $1 in
    path:*) printf 'path:%s\n' "$(realpath -m -- "${1#path:}")" ;;
    *) printf '%s\n' "$1" ;;
  esac
}

data::prepare() {
  local source dir file argv
  source=$(source::absolute "$DATASET_SOURCE")
  argv=(prepare-data --source "$source" --name "$DATASET" --seed "$SEED")
  if [[ $source != path:* ]]; then
    helper::run worker-0 "${argv[@]}"
    return
  fi
  dir=${source#path:}
  for file in "$dir/train.jsonl" "$dir/test.jsonl"; do
    [[ -f $file && -r $file ]] ||
      cli::die 2 "${file} (from DATASET_SOURCE=${DATASET_SOURCE}) is not a file that can be read: DIR must hold GSM8K's train.jsonl and test.jsonl."
  done
  tar -C "$dir" -ch -- train.jsonl test.jsonl | helper::run_in worker-0 "${argv[@]}"
}

model::prepare() {
  local source dir argv state
  source=$(source::absolute "$MODEL_SOURCE")
  argv=(prepare-model --source "$source" --name "$MODEL" --seed "$SEED")
  if [[ $source != path:* ]]; then
    helper::run worker-0 "${argv[@]}"
    return
  fi
  dir=${source#path:}
  [[ -r $dir/config.json ]] ||
    cli::die 2 "${dir} (from MODEL_SOURCE=${MODEL_SOURCE}) has no config.json that can be read: give the folder of a Hugging Face model."
  # Names, sizes and times tell one state of DIR from another without reading gigabytes of weights.
  argv+=(--revision "$(cd "$dir" && find -L . -type f -not -path './.git/*' -printf '%P\t%s\t%T@\n' | LC_ALL=C sort | sha256sum | cut -d' ' -f1)")
  state=$(helper::run worker-0 "${argv[@]}" --check)
  [[ $state == present ]] || tar -C "$dir" --exclude=./.git -ch . | helper::run_in worker-0 "${argv[@]}"
}

helper::ensure
data::prepare
model::prepare
