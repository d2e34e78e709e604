#!/usr/bin/env bash
# compare: did this change break PPO, GRPO or SFT? Trains two commits of a verl checkout, base and head, on CPUs and judges them. It needs
# git, Python 3.11 and a package index; no GPU, no containers. For any CI; action.yml is the same for GitHub.
#
#   ci/compare.sh --base origin/main                     all cases of the commit that is checked out
#   ci/compare.sh --base v0.9.1 --head my-branch sft     one case of two commits
#   ci/compare.sh --base origin/main --changed           only the cases that load a file of verl that differs
#   ci/compare.sh --help                                 every option, and the exit statuses
#
# The packages and base's runs are kept in the folder that --cache names (.verl-regress/cache): keep it from one run of your CI to the
# next. PYTHON names another Python 3.11, PIP_EXTRA_INDEX_URL an index with CPU builds of torch.
set -euo pipefail
shopt -s inherit_errexit

source "$(dirname "$0")/../scripts/lib/environment.bash"
home=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3.11}
cache=.verl-regress/cache
for ((i = 1; i <= $#; i++)); do
  case ${!i} in
    --cache=*) cache=${!i#*=} ;;
    --cache) at=$((i + 1)) cache=${!at:-} ;;
  esac
done

die() {
  printf 'error   %s\n' "$1" >&2
  exit 2
}

[[ -n $cache ]] || die '--cache names no folder: give one, or leave it out.'
[[ $("$python" -c 'import sys; print(sys.version_info[:2] == (3, 11))' 2>/dev/null) == True ]] ||
  die "PYTHON=${python} is not Python 3.11, for which docker/requirements.lock names the packages: install it, or name it in PYTHON."

# What decides which packages there are; another version of ours gets another environment.
packages=$(cd "$home" && find docker/requirements.{in,lock} judge rehearsal -type f -not -path '*/__pycache__/*' -print0 | sort -z | xargs -0 sha256sum | sha256sum)
venv=${cache}/venv-${packages:0:12}
if [[ ! -e ${venv}/complete ]]; then
  rm -rf -- "$cache"/venv-* # 2 GB each
  mkdir -p -- "$cache"
  printf '…       installing the packages of docker/requirements.lock into %s\n' "$venv" >&2
  "$python" -m venv "$venv"
  install=("${venv}/bin/pip" install --quiet --quiet --disable-pip-version-check --no-deps)
  { "${install[@]}" --requirement "${home}/docker/requirements.lock" &&
    "${install[@]}" "$(grep '^torch==' "${home}/docker/requirements.in")" "${home}/judge" "${home}/rehearsal"; } ||
    die "pip could not install the packages of docker/requirements.lock (the reason is above): check the network and this machine's pip configuration."
  "${venv}/bin/python" -c 'import torch' ||
    die 'torch cannot be imported (the reason is above): name an index with CPU builds, as in PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu.'
  touch -- "${venv}/complete"
fi
PYTHONPATH=${home}/py exec "${venv}/bin/python" "${home}/ci/compare.py" "--packages=${packages:0:12}" "$@"
