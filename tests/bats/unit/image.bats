#!/usr/bin/env bats
# 10_build_image: the tag, the wheelhouse, the base, and every sentence it can end with.

setup() {
  load ../test_helper
  sandbox::make
  WORKDIR="${BOX}/work dir"
  # An engine that has the images listed in the file "images", and adds what it builds or pulls.
  : >"${BOX}/images"
  stub docker - <<'SH'
    images="${BOX}/images"
    case "$1 $2" in
      "version "*) echo 20.10 ;;
      "image inspect") shift 2; [[ $1 != --format ]] || { echo 1950000000; exit; }; grep -qxF "$1" "$images" ;;
      "pull --quiet") [[ -e ${BOX}/registry ]] && echo "$3" >>"$images" ;;
      "build "*) while [[ $1 != --tag ]]; do shift; done; echo "$2" >>"$images" ;;
    esac
SH
  mkdir -p "${HERE}/.venv/bin"
  pip_brings torch-1-py3-none-any.whl
  touch "${BOX}/registry"
}

# The pip of .venv: "download" and "wheel" leave that wheel where they were told to.
pip_brings() {
  stub python - <<SH
    while ((\$#)); do [[ \$1 != --dest && \$1 != --wheel-dir ]] || touch "\$2/$1"; shift; done
SH
  mv "${BOX}/bin/python" "${HERE}/.venv/bin/python"
}

build() { sandbox::run WORKDIR="$WORKDIR" "$@"; }
name() {
  build "$@" scripts/10_build_image.sh --name
  head -n 1 <<<"$output"
}

@test "the tag is a hash of the inputs: the same twice, another one when an input changes" {
  first=$(name)
  [[ $first =~ ^verl-regress-node:[0-9a-f]{12}$ ]]
  [[ $(name) == "$first" ]]
  [[ $(name IMAGE_VERL_VERSION=0.7.1) != "$first" ]]
  [[ $(name BASE_IMAGE=python:3.11) != "$first" ]]
  printf 'extra==1\n' >>"${HERE}/docker/requirements.lock"
  [[ $(name) != "$first" ]]
}

@test "NODE_IMAGE is used by name" {
  [[ $(name NODE_IMAGE=mine:1) == mine:1 ]]
}

@test "a cold build fetches the wheels, pulls the base and builds without a network; the second run skips" {
  image=$(name)
  build scripts/10_build_image.sh
  assert_status 0
  assert_line "changed base image python:3.11-slim-bookworm (pulled)"
  assert_line "changed node image ${image} (2.0GB, on python:3.11-slim-bookworm)"
  assert_called "docker build --network none"
  assert_called "image prune --force --filter label=verl-regress.image=build"
  : >"$CALLS"
  build scripts/10_build_image.sh
  assert_status 0
  assert_line "skip    node image ${image} (exists, same inputs)"
  refute_called "docker build"
  refute_called "docker pull"
  refute_called "python "
}

@test "wheels that could not be fetched leave no half wheelhouse" {
  stub python 'echo "ERROR: no index answers" >&2; exit 1'
  mv "${BOX}/bin/python" "${HERE}/.venv/bin/python"
  build scripts/10_build_image.sh
  assert_status 1
  assert_line "ERROR: no index answers"
  [[ -z $(ls "${WORKDIR}/cache/wheelhouse") ]]
  refute_called "docker build"
}

@test "a CUDA build of torch is a warning that names TORCH_INDEX_URL" {
  pip_brings nvidia_cublas-1-py3-none-any.whl
  build scripts/10_build_image.sh
  assert_status 0
  [[ $output == *"warning torch came as a CUDA build, so the image will be "*" set TORCH_INDEX_URL to an index with CPU builds for a small one."* ]]
}

@test "no engine" {
  stub docker 'exit 1'
  build scripts/10_build_image.sh
  assert_status 1
  assert_line "error   No container engine answers ('docker version' fails): start it, join the group docker, or run 'scripts/dev/bootstrap_host.sh --engine'."
}

@test "no .venv" {
  rm -r "${HERE}/.venv"
  build scripts/10_build_image.sh
  assert_status 1
  assert_line "error   ${HERE}/.venv is missing, and its pip fetches the packages: run 'scripts/dev/bootstrap_host.sh'."
}

@test "a NODE_IMAGE that nobody has" {
  rm "${BOX}/registry"
  build NODE_IMAGE=mine:1 scripts/10_build_image.sh
  assert_status 2
  assert_line "error   NODE_IMAGE=mine:1 is neither on this machine nor in a registry that answers: load it, or leave NODE_IMAGE empty to have one built."
}

@test "an image that is pulled may take IMAGE_PULL_TIMEOUT seconds" {
  # shellcheck disable=SC2016  # expanded when the stub runs
  stub timeout '"${@:2}"'
  build NODE_IMAGE=mine:1 IMAGE_PULL_TIMEOUT=77 scripts/10_build_image.sh
  assert_status 0
  assert_line "changed node image mine:1 (pulled)"
  assert_called "timeout 77 docker pull --quiet mine:1"
}

@test "no registry, and a distribution without Python 3.11" {
  rm "${BOX}/registry"
  stub apt-cache 'echo "python3-venv | 3.12.3-0 | somewhere"'
  build scripts/10_build_image.sh
  assert_status 1
  [[ $output == *"error   BASE_IMAGE=python:3.11-slim-bookworm could not be pulled, and python3 of this machine's distribution ("*") is not 3.11, so none can be made from its packages. Set BASE_IMAGE to an image with Python 3.11 that this machine has, or make a registry reachable."* ]]
}

@test "no registry, and not root" {
  rm "${BOX}/registry"
  stub apt-cache 'echo "python3-venv | 3.11.2-1 | somewhere"'
  stub debootstrap
  stub id 'echo 1000'
  build scripts/10_build_image.sh
  assert_status 1
  [[ $output == *"packages needs debootstrap and root. Set BASE_IMAGE to an image with Python 3.11 that this machine has, or make a registry reachable."* ]]
  refute_called "debootstrap --variant"
}

@test "a build that fails shows the engine's last lines" {
  stub docker - <<'SH'
    case "$1 $2" in
      "build "*) echo "no space left on device"; exit 1 ;;
      "image inspect") [[ $3 == python* ]] ;;
    esac
SH
  image=$(name)
  build scripts/10_build_image.sh
  assert_status 1
  assert_line "no space left on device"
  assert_line "error   Building ${image} from docker/Dockerfile failed; the engine's last lines are above."
}

@test "an argument it does not know" {
  build scripts/10_build_image.sh --nmae
  assert_status 2
  assert_line "error   '--nmae' is not an argument of 10_build_image.sh: did you mean --name? It takes --name."
}
