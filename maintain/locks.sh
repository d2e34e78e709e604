#!/usr/bin/env bash
# locks: makes the locks of the node image, with a hash of each package, from the .in files beside them.
source "$(dirname "$0")/../scripts/lib/regress.bash"
cli::begin "$@"
readonly UV=uv==0.13.9
venv=''
# The verl in the node image's site-packages. It differs from the default snapshot on purpose: otherwise the proof that a job imported its
# snapshot would prove nothing.
readonly IMAGE_VERL=verl==0.7.1

# locks::resolve LOCK OPTION...: LOCK from the .in file of the same name, or from standard input.
locks::resolve() {
  local lock=$1 in=${1%.lock}.in
  [[ -e $in ]] || in=-
  "${venv}/bin/uv" pip compile --quiet --generate-hashes --no-annotate --no-header --python-version 3.11 \
    --python-platform x86_64-manylinux_2_28 --index-strategy unsafe-best-match --no-emit-package torch "${@:2}" "$in" --output-file "${venv}/lock"
  {
    printf "# Made by 'make -C maintain locks'"
    [[ $in == - ]] || printf ' from %s, whose SHA-256 begins with %s' "${in##*/}" "$(sha256sum "$in" | cut -c1-12)"
    printf '.\n'
    cat "${venv}/lock"
  } >"$lock"
}

cli::temp_dir venv
python3 -m venv "$venv"
"${venv}/bin/python" -m pip --quiet --disable-pip-version-check install "$UV"
locks::resolve docker/requirements.lock --no-deps
# Without FlashInfer vLLM samples and attends as on the H100 where these versions ran, and needs no nvcc.
printf '%s; python_version < "3"\n' flashinfer-python flashinfer-cubin >"${venv}/without"
locks::resolve docker/requirements-gpu.lock --override "${venv}/without" --no-emit-package verl
locks::resolve docker/verl.lock --no-deps <<<"$IMAGE_VERL"
