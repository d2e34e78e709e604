# lifecycle/image: the node image. Its tag is a hash of its inputs, so the same inputs are never built twice.
# shellcheck shell=bash

readonly IMAGE_LABEL='verl-regress.image'
# What our own base image contains in addition to Debian's essential packages, and for GPUs also: Triton compiles C for Python.
readonly IMAGE_BASE_PACKAGES='python3,python3-venv,ca-certificates,procps'
readonly IMAGE_BASE_COMPILER='gcc,libc6-dev,python3-dev'
# Without this Debian installs perl, to merge a /usr that is already merged here.
readonly IMAGE_BASE_MERGED='/usr/share/mmdebstrap/hooks/maybe-merged-usr'

# image::name: the image of the nodes.
image::name() {
  local build wheels
  if [[ -n ${NODE_IMAGE:-} && $ENGINE == podman ]]; then
    printf '%s\n' "${NODE_IMAGE#localhost/}" # the same image for podman: it looks there first for a name without a registry
  elif [[ -n ${NODE_IMAGE:-} ]]; then
    printf '%s\n' "$NODE_IMAGE"
  else
    # One by one, because as an argument a file that cannot be read would be an empty one, and the name another image's.
    build=$(<"${REPO_DIR}/docker/Dockerfile")
    wheels=$(image::_wheels)
    printf 'verl-regress-node:%s\n' "$(image::hash "$BASE_IMAGE" "$build" "$wheels")"
  fi
}

image::is_present() { docker image inspect "$1" >/dev/null 2>&1; }

image::need_engine() {
  engine::choose # with nodes that exist already, nothing has needed it yet
  engine::need
}

# image::ensure: the node image exists: the one that NODE_IMAGE names, or one built from the current inputs.
image::ensure() {
  local image said
  image=$(image::name)
  if image::is_present "$image"; then
    log::skip "node image ${image} (exists, same inputs)"
  elif [[ -n ${NODE_IMAGE:-} ]]; then
    cli::temp_dir said
    log::while "pulling ${image}" -- image::_pull "$image" "${said}/pull" ||
      cli::die 2 "NODE_IMAGE=${image} is neither on this machine nor in a registry that answers: load it, or leave NODE_IMAGE empty to have one built."
    log::changed "node image ${image} (pulled)"
  else
    image::_make "$image"
  fi
}

# The packages and the base come from different places, so both are downloaded at once.
image::_make() {
  local said
  cli::temp_dir said
  log::while 'getting what the node image is built from' log::size "${WORKDIR}/cache/wheelhouse" -- image::_ensure_inputs "$said"
  image::_build "$1" "$(<"${said}/base.name")"
}

image::_ensure_inputs() {
  cli::part image::ensure_wheelhouse
  cli::part image::_ensure_base "$1/base"
  cli::await_parts
}

# --- the wheelhouse: every package as a wheel, downloaded on the host with the host's own pip configuration

image::wheelhouse() {
  local wheels
  wheels=$(image::_wheels)
  printf '%s/cache/wheelhouse/%s\n' "$WORKDIR" "$(image::hash "$wheels")"
}

# image::requirements: the file, without its ending, that names the packages: those for NVIDIA's GPUs, or for CPUs.
image::requirements() {
  local which=''
  [[ $PROFILE != gpu ]] || which=-gpu
  printf '%s/docker/requirements%s\n' "$REPO_DIR" "$which"
}

# image::_torch: torch as pip wants it. It alone has no hash: TORCH_INDEX_URL, or this machine's pip, says which build it is.
image::_torch() { grep '^torch==' "$(image::requirements).in"; }

# The inputs that decide which wheels are downloaded.
image::_wheels() {
  printf '%s\n' "$(uname -m)" "$TORCH_INDEX_URL"
  image::_torch
  grep -hv '^#' "$(image::requirements).lock" "${REPO_DIR}/docker/verl.lock"
}

image::ensure_wheelhouse() {
  local house new left
  house=$(image::wheelhouse)
  if [[ -d $house ]]; then
    log::skip "wheelhouse ${house} (exists, same inputs)"
    return
  fi
  venv::ensure
  for left in "$house".tmp.*; do kill -0 "${left##*.}" 2>/dev/null || rm -rf -- "$left"; done # of a run that was killed
  new="${house}.tmp.$$"
  log::info "fetching the packages of the node image into ${house}: $(sed -n 's/^# Size: //p' "$(image::requirements).in")"
  cli::on_exit rm -rf -- "$new"
  mkdir -p "${new}/tmp"
  TMPDIR="${new}/tmp" image::_fetch_wheels "$new"
  rm -rf -- "${new}/tmp"
  mv -T -- "$new" "$house" 2>/dev/null || [[ -d $house ]] # another run may have been faster
  log::changed "wheelhouse ${house} ($(find "$house" -name '*.whl' | wc -l) wheels, $(du -sh "$house" | cut -f1))"
}

# image::_fetch_wheels DIR: for Python 3.11 on glibc, whatever this host runs; the few packages that come as source are pure Python and are
# built here.
image::_fetch_wheels() {
  local house=$1 minor source lock target=(--python-version 3.11 --implementation cp)
  lock=$(image::requirements).lock
  for minor in {36..17}; do target+=(--platform "manylinux_2_${minor}_$(uname -m)"); done
  target+=(--platform "manylinux2014_$(uname -m)")
  image::_pip download --no-deps --require-hashes "${target[@]}" --dest "$house" --requirement "$lock" --requirement "${REPO_DIR}/docker/verl.lock"
  for source in "$house"/*.tar.gz; do
    [[ -e $source ]] || continue
    image::_pip wheel --no-deps --wheel-dir "$house" "$source"
    rm -- "$source"
  done
  # A CPU build of torch needs nothing more. A CUDA build names its libraries in its own metadata: download those too.
  grep -o '^[^ #]*==[^ ]*' "$lock" >"${TMPDIR}/versions"
  [[ -z $TORCH_INDEX_URL ]] || target+=(--extra-index-url "$TORCH_INDEX_URL")
  image::_pip download --only-binary=:all: "${target[@]}" --dest "$house" --find-links "$house" --constraint "${TMPDIR}/versions" "$(image::_torch)"
}

image::_pip() {
  venv::pip "${TMPDIR}/pip" "$@" ||
    cli::die 1 "pip could not fetch the packages of the node image, $(basename "$(image::requirements)").lock in docker/ (its output is above): check the network and this machine's pip configuration."
}

# --- the base: BASE_IMAGE by name, or one made from this distribution's own packages

# image::_ensure_base LOG: the base image exists; writes its name to LOG.name, and its progress to LOG.
image::_ensure_base() {
  local base=$BASE_IMAGE
  if image::is_present "$base"; then
    log::skip "base image ${base} (exists)"
  elif image::_pull "$base" "$1"; then
    log::changed "base image ${base} (pulled)"
  else
    base=$(image::_own_base)
    image::_ensure_own_base "$base" "$1"
  fi
  printf '%s\n' "$base" >"$1.name"
}

# image::_pull IMAGE LOG
image::_pull() { timeout --foreground 7200 docker pull "$1" >"$2" 2>&1; }

image::codename() {
  # shellcheck disable=SC1091  # the machine's own file
  . /etc/os-release && printf '%s' "${VERSION_CODENAME:-unknown}"
}

image::_base_packages() {
  local compiler=''
  [[ $PROFILE != gpu ]] || compiler=,${IMAGE_BASE_COMPILER}
  printf '%s%s\n' "$IMAGE_BASE_PACKAGES" "$compiler"
}

image::_own_base() {
  printf 'verl-regress-base:%s\n' "$(image::hash "$(image::codename)" "$(uname -m)" "$(image::_base_packages)")"
}

# image::_ensure_own_base BASE LOG
image::_ensure_own_base() {
  local base=$1 log=$2 codename mirror root
  if image::is_present "$base"; then
    log::skip "base image ${base} (exists; BASE_IMAGE=${BASE_IMAGE} could not be pulled)"
    return
  fi
  codename=$(image::codename)
  image::_need_mmdebstrap "$codename"
  # shellcheck disable=SC2016  # apt's own placeholder
  mirror=$(apt-get indextargets --format '$(REPO_URI)' "Release: ${codename}" 'Component: main' 'Created-By: Packages' | sed -n 1p)
  log::info "BASE_IMAGE=${BASE_IMAGE} could not be pulled: making a base from ${codename}'s packages at ${mirror}"
  cli::temp_dir root
  TMPDIR=$root mmdebstrap --variant=minbase --include="$(image::_base_packages)" --hook-dir="$IMAGE_BASE_MERGED" \
    "$codename" "${root}/base.tar" "$mirror" >"$log" 2>&1 ||
    cli::die 1 "mmdebstrap of ${codename} from ${mirror} failed: $(grep -aom 1 'E: .*' "$log" || log::last_line "$log"). Set BASE_IMAGE to an image with Python 3.11 that this machine has."
  docker import --change "LABEL ${IMAGE_LABEL}=base" "${root}/base.tar" "$base" >/dev/null
  log::changed "base image ${base} (from ${codename}'s packages)"
}

image::_need_mmdebstrap() {
  [[ $(apt-cache madison python3-venv 2>/dev/null) == *' 3.11.'* && -x $(command -v mmdebstrap) && $(id -u) == 0 ]] ||
    cli::die 1 "BASE_IMAGE=${BASE_IMAGE} could not be pulled; making one from $1's packages needs mmdebstrap, root and Python 3.11 among them: set BASE_IMAGE to an image with Python 3.11 that this machine has, or make a registry reachable."
}

# --- the build

# image::_build IMAGE BASE
image::_build() {
  local image=$1 base=$2 said
  cli::temp_dir said
  log::info "building ${image} on ${base}"
  log::while 'installing the packages' -- image::_run_build "$image" "$base" "$(image::wheelhouse)" "${said}/build" || {
    tail -n 20 -- "${said}/build" >&2
    cli::die 1 "Building ${image} with docker/Dockerfile failed; its last lines are above."
  }
  log::changed "node image ${image} ($(docker image inspect --format '{{.Size}}' "$image" | numfmt --to=si)B, on ${base})"
}

# image::_run_build IMAGE BASE WHEELS LOG: Podman's socket does not speak BuildKit, which Docker needs to mount the wheels.
image::_run_build() {
  local image=$1 base=$2 wheels=$3 log=$4
  if engine::is_podman; then
    podman --url "$DOCKER_HOST" build --build-arg "BASE_IMAGE=${base}" --file "${REPO_DIR}/docker/Dockerfile" --tag "$image" "$wheels"
  else
    IMAGE=$image BASE=$base WHEELS=$wheels DOCKERFILE="${REPO_DIR}/docker/Dockerfile" DOCKER_BUILDKIT=1 \
      docker compose --file "${REPO_DIR}/docker/build.yaml" build --progress plain
  fi >"$log" 2>&1
}

image::hash() { printf '%s\n' "$@" | sha256sum | cut -c1-12; }
