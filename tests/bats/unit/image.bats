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
      "create "*) echo 1234abcd ;;
      "wait "*) echo 0 ;;
      "commit "*) echo "${@: -1}" >>"$images" ;;
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

# What a build must not leave, however it ends.
nothing_is_left() {
  [[ -z $(ls "${WORKDIR}/cache/wheelhouse" 2>/dev/null) ]] || fail "$(ls "${WORKDIR}/cache/wheelhouse")"
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
  printf 'extra==1\n' >>"${HERE}/docker/requirements.lock"
  [[ $(name) != "$first" ]]
}

@test "a cold build fetches wheels, pulls the base and installs without a network" {
  image=$(name)
  build scripts/10_build_image.sh
  assert_status 0
  assert_line "changed base image python:3.11-slim-bookworm (pulled)"
  assert_line "changed node image ${image} (2.0GB, on python:3.11-slim-bookworm)"
  [[ $output == *"changed wheelhouse ${WORKDIR}/cache/wheelhouse/"*" (1 wheels, "* ]]
  assert_called "docker create --network none --label verl-regress.image=build --mount type=bind,\"source=${WORKDIR}/cache/wheelhouse/"
  assert_called "docker commit --change=LABEL verl-regress.image=node --change=ENV PATH=/opt/venv/bin:"
  assert_called "docker rm --force 1234abcd"
  [[ -z $(ls "${BOX}/tmp") ]]
  : >"$CALLS"
  build scripts/10_build_image.sh
  assert_status 0
  assert_line "skip    node image ${image} (exists, same inputs)"
  refute_called "docker create"
  refute_called "docker pull"
  refute_called "venv_python "
}

@test "every package of the lock is asked for once, in several processes" {
  build scripts/10_build_image.sh
  (($(grep -c '^venv_python -m pip download --no-deps' "$CALLS") > 1))
  grep '^venv_python -m pip download --no-deps' "$CALLS" | grep -oE '[^ ]+==[^ ]+' | sort >"${BOX}/asked"
  (grep -v '^#' "${HERE}/docker/requirements.lock" && echo verl==0.7.1) | sort | diff - "${BOX}/asked"
  # Each of them has the plain name of its own package, so none is downloaded twice in another version.
  [[ $(wc -l <"${BOX}/asked") == $(cut -d= -f1 "${BOX}/asked" | sort -u | wc -l) ]]
}

@test "an index that does not answer: one sentence, and nothing is left" {
  stub venv_python 'echo "ERROR: no index answers" >&2; exit 1'
  build scripts/10_build_image.sh
  assert_error 1 "pip could not fetch the packages of the node image, docker/requirements.lock (its output is above): check the network and this machine's pip configuration."
  assert_line "ERROR: no index answers"
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
  sed -i 's/^ *"wait "/"import "*) echo "${@: -1}" >>"$images" ;;\n&/' "${BOX}/bin/docker"
  build scripts/10_build_image.sh
  assert_status 0
  assert_called "mmdebstrap --variant=minbase --include=python3,python3-venv,ca-certificates,procps --hook-dir=/usr/share/mmdebstrap/hooks/maybe-merged-usr --customize-hook=rm -rf "
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

@test "a build that fails shows the installer's last lines, and leaves no container" {
  stub docker - <<'SH'
    case "$1 $2" in
      "create "*) echo 1234abcd ;;
      "wait "*) echo 1 ;;
      "logs "*) echo "no space left on device" ;;
      "image inspect") [[ $3 == python* ]] ;;
    esac
SH
  image=$(name)
  build scripts/10_build_image.sh
  assert_status 1
  assert_line "no space left on device"
  assert_line "error   Building ${image} with docker/install.sh failed (exit 1); its last lines are above."
  assert_called "docker rm --force 1234abcd"
  refute_called "docker commit"
}

@test "an input that is missing: no name is made without it" {
  rm "${HERE}/docker/config"
  build scripts/10_build_image.sh --name
  assert_status 1
  [[ $output == *"docker/config: No such file or directory"* ]] || fail "$output"
  refute_text verl-regress-node:
}
