#!/usr/bin/env bash
# 30_prepare_data_and_model: the training data and the model, on the shared root; each made once, then skipped.
#
#   DATASET_SOURCE   synthetic  seeded sums, as datasets/sums; never under the name of GSM8K
#                    hub        openai/gsm8k from the Hugging Face hub, as datasets/gsm8k
#                    path:PLACE .parquet or .jsonl on this host: a folder with one train and one test or val, or one file, which is both.
#                               With verl's column prompt it becomes data for RL, with messages for SFT; lines of JSON with GSM8K's
#                               question and answer become both. Set DATASET to its name; gsm8k is GSM8K's alone.
#   MODEL_SOURCE     tiny                  a Qwen2 of 2 layers that knows a quarter of its sums, and its critic; for GPUs, with heads of 64
#                    hub:REPO[@REVISION]   from the Hugging Face hub
#                    path:DIR              a Hugging Face folder on this host; in a rehearsal these get a critic, too, which PPO trains
#   DATASET, MODEL   another name than the source's own (empty: its own)
#   SEED             decides the synthetic rows and the tiny model's weights
#
# --quickstart     if the user chose neither, and the hub does not answer: tiny and synthetic, which env/local.env then says
#
# Data or a model from the same source is skipped; from another source it is an error, and nothing is changed.
source "$(dirname "$0")/lib/regress.bash"
cli::begin_with --quickstart "$@"
env::load
helper::ensure
[[ ${1:-} != --quickstart ]] || quickstart::choose_data
artefact::ensure_data
artefact::ensure_model
