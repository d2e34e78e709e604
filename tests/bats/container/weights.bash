# Did a job train? An exit status and metrics.jsonl can come from a trainer that trains nothing, so these read what the processes
# with the weights reported themselves (rehearsal/verl_rehearsal/weights.py).
# shellcheck shell=bash

# weights::changed JOB_DIR: on each worker that the job has, each step of the optimizer of each model left weights that were not there
# before.
weights::changed() {
  local workers
  workers=$(jq '[.overrides[].text | select(startswith("trainer.nnodes=")) | split("=")[1] | tonumber] | last' "$1/config/resolved.json")
  weights::_reports "$1" trained_weights |
    jq --slurp --exit-status --argjson workers "$workers" 'length == $workers and all(.[].models; length > 0 and all(.[]; .optimizer_steps > 0 and .distinct == .optimizer_steps))' >/dev/null
}

weights::_reports() { find "$1/state/reports" -name "$2-*.json" -exec cat {} +; }
