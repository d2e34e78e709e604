#!/usr/bin/env bats
# 10_build_image: the tag, the wheelhouse, the base, and every message that it can end with.

# bats file_tags=slow

setup() {
  bats_require_minimum_version 1.5.0
  load ../test_helper
  sandbox::make
  WORKDIR="${BOX}/work dir"
  # An engine that has the images listed in the file "images", and adds those that it builds or pulls.
  : >"${BOX}/images"
  stub docker - <<'SH'
    images="${BOX}/images"
    case "$1 $2" in
      "version "*) echo 20.10 ;;
      "image inspect") shift 2; [[ $1 != --format ]] || { echo 1950000000; exit; }; grep -qxF "$1" "$images" ;;
      "pull "*) [[ -e ${BOX}/registry ]] && echo "$2" >>"$images" ;;
      "compose "*) echo "$IMAGE on $BASE with $DOCKERFILE and $WHEELS" >>"${BOX}/built" && echo "$IMAGE" >>"$images" ;;
    esac
SH
  sandbox::venv
  pip_brings torch-1-py3-none-any.whl
  touch "${BOX}/registry"
}

# The pip of .venv: "download" and "wheel" put that wheel into the directory of their arguments.
pip_brings() {
  stub venv_python - <<SH
    while ((\$#)); do [[ \$1 != --dest && \$1 != --wheel-dir ]] || touch "\$2/$1"; shift; done
SH
}

# What a build must not leave, however it ends. A complete wheelhouse may be there: packages and base are fetched at the same time.
nothing_is_left() {
  [[ -z $(find "${WORKDIR}/cache" -name '*.tmp.*') ]] || fail "$(find "${WORKDIR}/cache")"
  [[ -z $(ls "${BOX}/tmp") ]] || fail "$(ls "${BOX}/tmp")"
}

build() { sandbox::run WORKDIR="$WORKDIR" "$@"; }
name() {
  build "$@" scripts/10_build_image.sh --name
  head -n 1 <<<"$output"
}

@test "the tag is a hash of the inputs: the same twice, another one for another input" {
  first=$(name)
  [[ $first =~ ^verl-regress-node:[0-9a-f]{12}$ ]]
  [[ $(name) == "$first" ]]
  [[ $(name BASE_IMAGE=python:3.11) != "$first" ]]
  [[ $(name PROFILE=gpu) != "$first" ]]
  cp -r "$HERE" "${BOX}/elsewhere"
  [[ $(HERE="${BOX}/elsewhere" name) == "$first" ]]
  printf 'extra==1\n' >>"${HERE}/docker/requirements.lock"
  [[ $(name) != "$first" ]]
}

@test "a cold build fetches wheels, pulls the base and builds from both" {
  image=$(name)
  build scripts/10_build_image.sh
  assert_status 0
  assert_line "changed base image python:3.11-slim-bookworm (pulled)"
  assert_line "changed node image ${image} (2.0GB, on python:3.11-slim-bookworm)"
  [[ $output == *"changed wheelhouse ${WORKDIR}/cache/wheelhouse/"*" (1 wheels, "* ]]
  assert_called "docker compose --file ${HERE}/docker/build.yaml build"
  [[ $(<"${BOX}/built") == "${image} on python:3.11-slim-bookworm with ${HERE}/docker/Dockerfile and ${WORKDIR}/cache/wheelhouse/"* ]]
  [[ -z $(ls "${BOX}/tmp") ]]
  : >"$CALLS"
  build scripts/10_build_image.sh
  assert_status 0
  assert_line "skip    node image ${image} (exists, same inputs)"
  refute_called "docker compose"
  refute_called "docker pull"
  refute_called "venv_python "
}

@test "pip checks the hashes of all packages but torch, of TORCH_INDEX_URL" {
  for profile in cpu gpu; do
    : >"$CALLS"
    build PROFILE="$profile" NODE_IMAGE= TORCH_INDEX_URL=https://an.index/cpu scripts/10_build_image.sh
    lock=${HERE}/docker/requirements${profile#cpu}.lock
    lock=${lock/requirementsgpu/requirements-gpu}
    grep -q "^venv_python -m pip download --no-deps --require-hashes .*--requirement ${lock} --requirement ${HERE}/docker/verl.lock" "$CALLS"
    torch=$(grep '^venv_python -m pip download --only-binary' "$CALLS")
    [[ $torch == *"--extra-index-url https://an.index/cpu "*" $(grep '^torch==' "${lock%.lock}.in") "* ]] || fail "$torch"
  done
}

@test "with podman its own command builds, at the same socket" {
  stub podman
  sandbox::lines DOCKER_HOST=unix:///a.sock <<<"engine::is_podman() { true; }; image::_run_build mine:1 base:1 /wheels '${BOX}/log'"
  assert_status 0
  assert_called "podman --url unix:///a.sock build --build-arg BASE_IMAGE=base:1 --file ${HERE}/docker/Dockerfile --tag mine:1 /wheels"
  refute_called "docker compose"
}

@test "an index that does not answer: one sentence, and nothing is left" {
  stub venv_python 'echo "ERROR: no index answers" >&2; exit 1'
  build scripts/10_build_image.sh
  assert_error 1 "pip could not fetch the packages of the node image, requirements.lock in docker/ (its output is above): check the network and this machine's pip configuration."
  assert_line "ERROR: no index answers"
  [[ -z $(ls "${WORKDIR}/cache/wheelhouse") ]]
  nothing_is_left
}

@test "a NODE_IMAGE that exists nowhere" {
  rm "${BOX}/registry"
  build NODE_IMAGE=mine:1 scripts/10_build_image.sh
  assert_error 2 "NODE_IMAGE=mine:1 is neither on this machine nor in a registry that answers: load it, or leave NODE_IMAGE empty to have one built."
}

# A machine that can make a base from its own packages, as root.
debian_12() {
  rm "${BOX}/registry"
  stub apt-cache 'echo "python3-venv | 3.11.2-1 | somewhere"'
  stub apt-get 'echo http://a.mirror/debian'
  stub id 'echo 0'
}

@test "no registry: the base is made of the distribution's packages, and is kept" {
  debian_12
  # mmdebstrap SUITE TARGET MIRROR, after its options.
  # shellcheck disable=SC2016  # expanded when the stubs run
  stub mmdebstrap 'touch "${@: -2:1}"'
  # shellcheck disable=SC2016
  sed -i 's/^ *"compose "/"import "*) echo "${@: -1}" >>"$images" ;;\n&/' "${BOX}/bin/docker"
  build scripts/10_build_image.sh
  assert_status 0
  assert_called "mmdebstrap --variant=minbase --include=python3,python3-venv,ca-certificates,procps --hook-dir=/usr/share/mmdebstrap/hooks/maybe-merged-usr "
  base=$(grep -o 'verl-regress-base:[0-9a-f]*' "${BOX}/images")
  [[ $output == *"changed base image ${base} (from "*"'s packages)"* && $output == *"changed node image "*", on ${base})"* ]]
  [[ -z $(ls "${BOX}/tmp") ]]
  printf 'extra==1\n' >>"${HERE}/docker/requirements.lock"
  build scripts/10_build_image.sh
  assert_line "skip    base image ${base} (exists; BASE_IMAGE=python:3.11-slim-bookworm could not be pulled)"
}

@test "no registry, and no packages either: why, and nothing is left" {
  debian_12
  stub mmdebstrap 'echo "I: running apt-get update..."; echo "E: apt-get update failed"; echo "E: mmdebstrap failed to run"; exit 1'
  build scripts/10_build_image.sh
  assert_status 1
  [[ $output == *"error   mmdebstrap of "*" from http://a.mirror/debian failed: E: apt-get update failed. Set BASE_IMAGE to an image with Python 3.11 that this machine has."* ]]
  refute_called "docker import"
  nothing_is_left
}

@test "a build that fails shows its last lines" {
  stub docker - <<'SH'
    case "$1 $2" in
      "compose "*) echo "no space left on device" >&2; exit 1 ;;
      "image inspect") [[ $3 == python* ]] ;;
    esac
SH
  image=$(name)
  build scripts/10_build_image.sh
  assert_status 1
  assert_line "no space left on device"
  assert_line "error   Building ${image} with docker/Dockerfile failed; its last lines are above."
}

@test "an input that is missing: no name is made without it" {
  rm "${HERE}/docker/Dockerfile"
  build scripts/10_build_image.sh --name
  assert_status 1
  [[ $output == *"docker/Dockerfile: No such file or directory"* ]] || fail "$output"
  refute_text verl-regress-node:
}
