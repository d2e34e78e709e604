# Did a job train? An exit status and metrics.jsonl can come from a trainer that trains nothing, so these read what the processes
# with the weights reported themselves (rehearsal/verl_rehearsal/weights.py and checkpoint_weights.py).
# shellcheck shell=bash

# weights::changed JOB_DIR: on each worker that the job has, each step of the optimizer of each model left weights that were not there
# before.
weights::changed() {
  local workers
  workers=$(jq '[.overrides[].text | select(startswith("trainer.nnodes=")) | split("=")[1] | tonumber] | last' "$1/config/resolved.json")
  weights::_reports "$1" trained_weights |
    jq --slurp --exit-status --argjson workers "$workers" 'length == $workers and all(.[].models; length > 0 and all(.[]; .optimizer_steps > 0 and .distinct == .optimizer_steps))' >/dev/null
}

# weights::loaded JOB_DIR FROM STEP: on every worker, the job in JOB_DIR began with the weights that the one in FROM saved at STEP.
weights::loaded() {
  local saved loaded
  saved=$(weights::_reports "$2" checkpoint_weights |
    jq --slurp --sort-keys --arg step "/global_step_$3[/ ]" 'map(.saved) | add | with_entries(select(.key | test($step)))')
  loaded=$(weights::_reports "$1" checkpoint_weights | jq --slurp --sort-keys 'map(.loaded) | add')
  [[ $(jq length <<<"$saved") -ge 2 && $loaded == "$saved" ]]
}

weights::_reports() { find "$1/state/reports" -name "$2-*.json" -exec cat {} +; }
