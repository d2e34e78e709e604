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

@test "the tag is a hash of the inputs: the same twice, another one when an input changes" {
  first=$(name)
  [[ $first =~ ^verl-regress-node:[0-9a-f]{12}$ ]]
  [[ $(name) == "$first" ]]
  [[ $(name IMAGE_VERL_VERSION=0.8.0) != "$first" ]]
  [[ $(name BASE_IMAGE=python:3.11) != "$first" ]]
  printf 'extra==1\n' >>"${HERE}/docker/requirements.lock"
  [[ $(name) != "$first" ]]
}

@test "NODE_IMAGE is used by name" {
  [[ $(name NODE_IMAGE=mine:1) == mine:1 ]]
}

@test "a cold build fetches the wheels, pulls the base and installs without a network; the second run skips" {
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

# A registry and an index that answer only after the other was asked: one after the other, both would wait forever.
meet() {
  mkfifo "${BOX}/to pip" "${BOX}/to docker"
  stub docker - <<SH
    case "\$1 \$2" in
      "version "*) echo 20.10 ;;
      "image inspect") exit 1 ;;
      "pull "*) echo \$\$ >"\${BOX}/pull"; echo >"\${BOX}/to pip"; read -r <"\${BOX}/to docker"; $2 ;;
    esac
SH
  stub venv_python - <<SH
    mkdir "\${BOX}/first" 2>/dev/null || exit 0
    read -r <"\${BOX}/to pip"
    echo >"\${BOX}/to docker"
    $1
SH
}

@test "packages and base are fetched at the same time" {
  meet true 'exit 0'
  run timeout 60 env -i HOME="${BOX}/home dir" PATH="${BOX}/bin" TMPDIR="${BOX}/tmp" NO_COLOR=1 PROFILE=cpu WORKDIR="$WORKDIR" \
    "${BOX}/bin/bash" "${HERE}/scripts/10_build_image.sh"
  [[ $status != 124 ]] || fail 'one waits for the other'
  assert_line "changed base image python:3.11-slim-bookworm (pulled)"
  [[ $output == *"changed wheelhouse "* ]]
}

@test "a failure ends the other part too: one sentence, and nothing is left" {
  # shellcheck disable=SC2016  # expanded when the stubs run
  meet 'echo "ERROR: no index answers" >&2; exit 1' 'exec cat "${BOX}/to pip"'
  run timeout 60 env -i HOME="${BOX}/home dir" PATH="${BOX}/bin" TMPDIR="${BOX}/tmp" NO_COLOR=1 PROFILE=cpu WORKDIR="$WORKDIR" \
    "${BOX}/bin/bash" "${HERE}/scripts/10_build_image.sh"
  assert_status 1
  assert_line "ERROR: no index answers"
  [[ $(grep -c '^error ' <<<"$output") == 2 ]] # this one, and the script's last line
  assert_line "error   pip could not fetch the packages of the node image, docker/requirements.lock (its output is above): check the network and this machine's pip configuration."
  run ! kill -0 "$(<"${BOX}/pull")"
  nothing_is_left
}

@test "Ctrl-C ends all that was begun, and nothing is left" {
  # shellcheck disable=SC2016  # expanded when the stubs run
  meet 'echo $$ >"${BOX}/pip"; echo >"${BOX}/both"; exec cat "${BOX}/to pip"' 'exec cat "${BOX}/to docker"'
  mkfifo "${BOX}/both"
  # A shell's background job always ignores SIGINT; what Python starts does not.
  run python3 - "${BOX}" "${HERE}" "$WORKDIR" <<'PYTHON'
import os, signal, subprocess, sys
box, here, workdir = sys.argv[1:]
env = {"HOME": f"{box}/home dir", "PATH": f"{box}/bin", "TMPDIR": f"{box}/tmp", "NO_COLOR": "1", "PROFILE": "cpu", "WORKDIR": workdir}
script = subprocess.Popen([f"{box}/bin/bash", f"{here}/scripts/10_build_image.sh"], env=env)
open(f"{box}/both").read()
script.send_signal(signal.SIGINT)
sys.exit(script.wait(60))
PYTHON
  assert_status 130
  run ! kill -0 "$(<"${BOX}/pull")"
  run ! kill -0 "$(<"${BOX}/pip")"
  nothing_is_left
}

# A build whose log::while prints at once what it would print later: WHAT, and DETAIL as it is when COMMAND has ended.
build_telling() {
  cat >"${HERE}/scripts/telling.sh" <<'SH'
    source "$(dirname "$0")/lib/regress.bash"
    log::while() {
      local what=$1 detail=()
      shift
      while [[ $1 != -- ]]; do detail+=("$1"); shift; done
      "${@:2}"
      ((${#detail[@]} == 0)) || log::info "while ${what}: $("${detail[@]}")"
    }
    cli::begin
    env::load
    image::ensure
SH
  build "$@" scripts/telling.sh
}

@test "long steps show their progress: packages, megabytes, layers, the base" {
  stub venv_python - <<'SH'
    for word; do [[ $word != *==* ]] || printf 'Collecting %s\n' "$word"; done
    while (($#)); do [[ $1 != --dest ]] || head -c 5000000 /dev/zero >"$2/torch-1-py3-none-any.whl"; shift; done
SH
  stub docker - <<'SH'
    case "$1 $2" in
      "version "*) echo 20.10 ;;
      "image inspect") exit 1 ;;
      "pull "*) printf '%s\n' 'a: Pulling fs layer' 'b: Pulling fs layer' 'a: Pull complete' ;;
      "create "*) echo 1234abcd ;;
      "wait "*) echo 0 ;;
      "exec "*) echo 54 of 135 packages, 720 files compiled ;;
    esac
SH
  build_telling
  assert_status 0
  all=$(($(grep -vc '^#' "${HERE}/docker/requirements.lock") + 1))
  assert_line "        while getting what the node image is built from: ${all} of ${all} packages, 5 MB so far, base: a: Pull complete"
  assert_line "        while installing the packages: 54 of 135 packages, 720 files compiled"
  # There is no wheelhouse while .venv is being made.
  rm -r "$WORKDIR"
  printf 'W: a\nconfiguring python3\n' >"${BOX}/base"
  # shellcheck disable=SC2016  # expanded when the script runs
  printf 'source "$(dirname "$0")/lib/regress.bash"\ncli::begin\nenv::load\nimage::_so_far "$1"\n' >"${HERE}/scripts/so_far.sh"
  build scripts/so_far.sh "$BOX"
  [[ ${lines[0]} == "making ${HERE}/.venv, "*" MB so far, base: configuring python3"* ]] || fail "no .venv"
  build_telling NODE_IMAGE=mine:1
  assert_line "        while pulling mine:1: 1 of 2 layers"
}

@test "wheels that could not be fetched leave no half wheelhouse" {
  stub venv_python 'echo "ERROR: no index answers" >&2; exit 1'
  build scripts/10_build_image.sh
  assert_status 1
  assert_line "ERROR: no index answers"
  nothing_is_left
  refute_called "docker create"
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

@test "no .venv: it is made, and no python3 to make it with is one sentence" {
  rm -r "${HERE}/.venv"
  stub python3 - <<'SH'
    case "$*" in
      --version) echo "Python 3.11.7" ;;
      "-m venv --clear "*) mkdir -p "$4/bin"; cp "${BOX}/bin/venv_python" "$4/bin/python" ;;
    esac
SH
  build scripts/10_build_image.sh
  assert_status 0
  [[ $output == *"changed ${HERE}/.venv ("*" pinned packages)"* ]]
  assert_called "venv_python -m pip install --requirement ${HERE}/requirements-dev.lock"
  rm -r "${HERE}/.venv" "${WORKDIR}"
  : >"${BOX}/images"
  stub python3 'exit 1'
  build scripts/10_build_image.sh
  assert_status 1
  assert_line "error   ${HERE}/.venv cannot be made, because this machine has no python3 (3.10 or newer) with venv and ensurepip: run 'scripts/dev/bootstrap_host.sh'."
  nothing_is_left
}

@test "a NODE_IMAGE that exists nowhere" {
  rm "${BOX}/registry"
  build NODE_IMAGE=mine:1 scripts/10_build_image.sh
  assert_status 2
  assert_line "error   NODE_IMAGE=mine:1 is neither on this machine nor in a registry that answers: load it, or leave NODE_IMAGE empty to have one built."
}

@test "an image that is pulled may take IMAGE_PULL_TIMEOUT seconds" {
  # shellcheck disable=SC2016  # expanded when the stub runs
  stub timeout '"${@:3}"'
  build NODE_IMAGE=mine:1 IMAGE_PULL_TIMEOUT=77 scripts/10_build_image.sh
  assert_status 0
  assert_line "changed node image mine:1 (pulled)"
  assert_called "timeout --foreground 77 docker pull mine:1"
}

@test "no registry, and a distribution without Python 3.11" {
  rm "${BOX}/registry"
  stub apt-cache 'echo "python3-venv | 3.12.3-0 | somewhere"'
  build scripts/10_build_image.sh
  assert_status 1
  [[ $output == *"error   BASE_IMAGE=python:3.11-slim-bookworm could not be pulled, and python3 of this machine's distribution ("*") is not 3.11, so none can be made from its packages. Set BASE_IMAGE to an image with Python 3.11 that this machine has, or make a registry reachable."* ]]
}

# A machine that can make a base from its own packages, as root.
debian_12() {
  rm "${BOX}/registry"
  stub apt-cache 'echo "python3-venv | 3.11.2-1 | somewhere"'
  stub apt-get 'echo http://a.mirror/debian'
  stub id 'echo 0'
}

@test "no registry: the base is made from the distribution's packages, and is there the next time" {
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
  build IMAGE_VERL_VERSION=0.8.0 scripts/10_build_image.sh
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

@test "no registry, and not root" {
  rm "${BOX}/registry"
  stub apt-cache 'echo "python3-venv | 3.11.2-1 | somewhere"'
  stub mmdebstrap
  stub id 'echo 1000'
  build scripts/10_build_image.sh
  assert_status 1
  [[ $output == *"packages needs mmdebstrap and root. Set BASE_IMAGE to an image with Python 3.11 that this machine has, or make a registry reachable."* ]]
  refute_called "mmdebstrap --variant"
}

@test "a build that fails shows the last lines of docker/install.sh, and leaves no container" {
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

# cannot_read TOOL WORDS: TOOL fails if its arguments end in WORDS.
cannot_read() {
  local real
  real=$(type -P "$1")
  stub "$1" "[[ \$* != *'$2' ]] || { echo '$1: Input/output error' >&2; exit 1; }; exec ${real} \"\$@\""
}

@test "a list of inputs that cannot be read ends the build: no image lacks its packages or its configuration" {
  cannot_read grep docker/requirements.lock
  build scripts/10_build_image.sh
  assert_status 1
  assert_line 'grep: Input/output error'
  refute_called 'docker create'
  nothing_is_left
  ln -sf "$(type -P grep)" "${BOX}/bin/"
  cannot_read find '-maxdepth 1 -name *.zip'
  build scripts/10_build_image.sh
  assert_status 1
  assert_line 'find: Input/output error'
  refute_called 'docker create'
  nothing_is_left
  ln -sf "$(type -P find)" "${BOX}/bin/"
  cannot_read grep docker/config
  build scripts/10_build_image.sh
  assert_status 1
  assert_line 'grep: Input/output error'
  assert_called 'docker rm --force 1234abcd'
  refute_called 'docker commit'
}

@test "an input that is missing: no name is made without it" {
  rm "${HERE}/docker/config"
  build scripts/10_build_image.sh --name
  assert_status 1
  [[ $output == *"docker/config: No such file or directory"* ]] || fail "$output"
  refute_text verl-regress-node:
}

@test "an argument it does not know" {
  build scripts/10_build_image.sh --nmae
  assert_status 2
  assert_line "error   '--nmae' is not an argument of 10_build_image.sh: did you mean --name? It takes --name."
}
