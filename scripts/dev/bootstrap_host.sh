#!/usr/bin/env bash
# bootstrap_host: what this machine needs to run the project. Checks first, says what it will do, then does it.
#
#   scripts/dev/bootstrap_host.sh                 jq, GNU parallel, Python, git for the tests, and .venv with the pinned tools
#   scripts/dev/bootstrap_host.sh --engine        the same without git, and a container engine with Compose v2
#   scripts/dev/bootstrap_host.sh --browser       as without an option, and Chromium, in which the slow tests open the pages
#   scripts/dev/bootstrap_host.sh --slurm         as without an option, and the commands of Slurm and munge, which a container test calls
#   scripts/dev/bootstrap_host.sh --rootless      as without an option, and what podman runs if it has no root
#   scripts/dev/bootstrap_host.sh --stop-engine   stop the engine that an earlier --engine started, and nothing else
#
# CONTAINER_ENGINE=podman: --engine starts podman's socket, with the docker client and Compose v2; --stop-engine stops only that.
#
# Debian and Ubuntu, as root or with sudo; on other systems it prints what is missing and exits 1, and changes nothing. An engine
# that answers is not changed. If it has to start an engine itself (only without systemd), the log is
# /var/log/verl-regress-dockerd.log (-podman.log). Needs nothing but bash and coreutils.
source "$(dirname "$0")/../lib/regress.bash"
# shellcheck source=scripts/dev/host.bash
source "${REPO_DIR}/scripts/dev/host.bash"
cli::begin_with '--engine --browser --slurm --rootless --stop-engine' "$@"
env::check

if [[ ${1:-} == --stop-engine ]]; then
  host::ensure_engines_stopped
  exit 0
fi

# Checks. Nothing is changed up to here.
host::look_for_tools
[[ ${1:-} == --engine ]] || host::look_for_git
[[ ${1:-} != --browser ]] || host::look_for_browser
[[ ${1:-} != --slurm ]] || host::look_for_slurm
[[ ${1:-} != --rootless ]] || host::look_for_rootless
[[ ${1:-} != --engine ]] || host::look_for_engine
host::print_plan
host::need_means

# Actions.
host::ensure_packages
cli::part host::ensure_python "${1:-}" # pip downloads while the engine starts
[[ ${1:-} != --engine ]] || host::ensure_engine
cli::await_parts
