# lifecycle/image: the node image. Its tag is a hash of its inputs, so the same inputs are never built twice.
# shellcheck shell=bash

# The verl in the node image's site-packages. It differs from the default snapshot on purpose: otherwise the proof that a job imported
# its snapshot would prove nothing.
readonly IMAGE_VERL=0.7.1

readonly IMAGE_LABEL='verl-regress.image'
# What our own base image contains in addition to Debian's essential packages.
readonly IMAGE_BASE_PACKAGES='python3,python3-venv,ca-certificates,procps'
# Without this Debian installs perl, to merge a /usr that is already merged here.
readonly IMAGE_BASE_MERGED='/usr/share/mmdebstrap/hooks/maybe-merged-usr'
# What is removed from it, as mmdebstrap wants it: a shell command over the root in $1.
# shellcheck disable=SC2016  # expanded by that shell
readonly IMAGE_BASE_TRIM='rm -rf "$1"/usr/share/doc/* "$1"/usr/share/man/* "$1"/usr/share/locale/*'
# How many packages are downloaded at once.
readonly IMAGE_FETCHERS=4

# image::name: the image of the nodes.
image::name() {
  local script config wheels
  if [[ -n ${NODE_IMAGE:-} && $ENGINE == podman ]]; then
    printf '%s\n' "${NODE_IMAGE#localhost/}" # the same image for podman: it looks there first for a name without a registry
  elif [[ -n ${NODE_IMAGE:-} ]]; then
    printf '%s\n' "$NODE_IMAGE"
  else
    # One by one, because as an argument a file that cannot be read would be an empty one, and the name another image's.
    script=$(<"${REPO_DIR}/docker/install.sh")
    config=$(<"${REPO_DIR}/docker/config")
    wheels=$(image::_wheels)
    printf 'verl-regress-node:%s\n' "$(image::_hash "$BASE_IMAGE" "$script" "$config" "$wheels")"
  fi
}

image::is_present() { docker image inspect "$1" >/dev/null 2>&1; }

image::need_engine() {
  engine::choose # with nodes that exist already, nothing has needed it yet
  engine::version >/dev/null
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
  cli::part image::_ensure_wheelhouse "$1/wheels"
  cli::part image::_ensure_base "$1/base"
  cli::await_parts
}

# --- the wheelhouse: every package as a wheel, downloaded on the host with the host's own pip configuration

image::_wheelhouse() {
  local wheels
  wheels=$(image::_wheels)
  printf '%s/cache/wheelhouse/%s\n' "$WORKDIR" "$(image::_hash "$wheels")"
}

# The inputs that decide which wheels are downloaded.
image::_wheels() {
  printf '%s\n' "$(uname -m)" "$IMAGE_VERL" "$TORCH_INDEX_URL"
  grep -v '^#' "${REPO_DIR}/docker/requirements.lock"
}

# image::_ensure_wheelhouse LOG
image::_ensure_wheelhouse() {
  local house new
  house=$(image::_wheelhouse)
  if [[ -d $house ]]; then
    log::skip "wheelhouse ${house} (exists, same inputs)"
    return
  fi
  venv::ensure
  new="${house}.tmp.$$"
  log::info "fetching the packages of the node image into ${house}"
  cli::on_exit rm -rf -- "$new"
  mkdir -p "${new}/tmp"
  TMPDIR="${new}/tmp" image::_fetch_wheels "$new" "$1"
  rm -rf -- "${new}/tmp"
  mv -T -- "$new" "$house" 2>/dev/null || [[ -d $house ]] # another run may have been faster
  log::changed "wheelhouse ${house} ($(find "$house" -name '*.whl' | wc -l) wheels, $(du -sh "$house" | cut -f1))"
}

# image::_fetch_wheels DIR LOG: for Python 3.11 on glibc, whatever this host runs; the few packages that come as source are pure
# Python and are built here. Most of the time is spent waiting for the index, so several run at once.
image::_fetch_wheels() {
  local house=$1 log=$2 target=(--python-version 3.11 --implementation cp) minor wanted share i sources
  for minor in {36..17}; do target+=(--platform "manylinux_2_${minor}_$(uname -m)"); done
  target+=(--platform "manylinux2014_$(uname -m)")
  [[ -z $TORCH_INDEX_URL ]] || target+=(--extra-index-url "$TORCH_INDEX_URL")
  output::read_lines wanted image::_packages
  share=$(((${#wanted[@]} + IMAGE_FETCHERS - 1) / IMAGE_FETCHERS))
  for ((i = 0; i < ${#wanted[@]}; i += share)); do
    cli::part image::_pip "${log}.${i}" download --no-deps "${target[@]}" --dest "$house" "${wanted[@]:i:share}"
  done
  cli::await_parts
  output::read_lines sources find "$house" -maxdepth 1 -name '*.tar.gz' -o -maxdepth 1 -name '*.zip'
  for ((i = 0; i < ${#sources[@]}; i++)); do
    cli::part image::_pip "${log}.build.${i}" wheel --no-deps --wheel-dir "$house" "${sources[i]}"
  done
  # A CPU build of torch needs nothing more. A CUDA build names its libraries in its own metadata: download those too.
  cli::part image::_pip "${log}.torch" download --only-binary=:all: "${target[@]}" --dest "$house" --find-links "$house" \
    --constraint "${REPO_DIR}/docker/requirements.lock" torch
  cli::await_parts
  ((${#sources[@]} == 0)) || rm -- "${sources[@]}"
}

# Every package of the node image, as pip expects the names.
image::_packages() {
  grep -v '^#' "${REPO_DIR}/docker/requirements.lock"
  printf 'verl==%s\n' "$IMAGE_VERL"
}

image::_pip() {
  venv::pip "$@" ||
    cli::die 1 "pip could not fetch the packages of the node image, docker/requirements.lock (its output is above): check the network and this machine's pip configuration."
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

image::_codename() {
  # shellcheck disable=SC1091  # the machine's own file
  . /etc/os-release && printf '%s' "${VERSION_CODENAME:-unknown}"
}

image::_own_base() {
  printf 'verl-regress-base:%s\n' "$(image::_hash "$(image::_codename)" "$(uname -m)" "$IMAGE_BASE_PACKAGES")"
}

# image::_ensure_own_base BASE LOG
image::_ensure_own_base() {
  local base=$1 log=$2 codename mirror root
  if image::is_present "$base"; then
    log::skip "base image ${base} (exists; BASE_IMAGE=${BASE_IMAGE} could not be pulled)"
    return
  fi
  codename=$(image::_codename)
  image::_need_mmdebstrap "$codename"
  # shellcheck disable=SC2016  # apt's own placeholder
  mirror=$(apt-get indextargets --format '$(REPO_URI)' "Release: ${codename}" 'Component: main' 'Created-By: Packages' | sed -n 1p)
  log::info "BASE_IMAGE=${BASE_IMAGE} could not be pulled: making a base from ${codename}'s packages at ${mirror}"
  cli::temp_dir root
  TMPDIR=$root mmdebstrap --variant=minbase --include="$IMAGE_BASE_PACKAGES" --hook-dir="$IMAGE_BASE_MERGED" \
    --customize-hook="$IMAGE_BASE_TRIM" \
    "$codename" "${root}/base.tar" "$mirror" >"$log" 2>&1 ||
    cli::die 1 "mmdebstrap of ${codename} from ${mirror} failed: $(grep -aom 1 'E: .*' "$log" || log::last_line "$log"). Set BASE_IMAGE to an image with Python 3.11 that this machine has."
  docker import --change "LABEL ${IMAGE_LABEL}=base" "${root}/base.tar" "$base" >/dev/null
  log::changed "base image ${base} (from ${codename}'s packages)"
}

image::_need_mmdebstrap() {
  local cure="Set BASE_IMAGE to an image with Python 3.11 that this machine has, or make a registry reachable."
  [[ $(apt-cache madison python3-venv 2>/dev/null) == *' 3.11.'* ]] ||
    cli::die 1 "BASE_IMAGE=${BASE_IMAGE} could not be pulled, and python3 of this machine's distribution ($1) is not 3.11, so none can be made from its packages. ${cure}"
  [[ -x $(command -v mmdebstrap) && $(id -u) == 0 ]] ||
    cli::die 1 "BASE_IMAGE=${BASE_IMAGE} could not be pulled; making one from $1's packages needs mmdebstrap and root. ${cure}"
}

# --- the build

# image::_build IMAGE BASE: a container of BASE installs the wheels, without a network, and becomes the image. `docker build` would
# copy the two gigabytes four times: as context, into a layer, into the second stage, and again into a layer.
image::_build() {
  local image=$1 base=$2 id status config
  log::info "building ${image} on ${base}"
  id=$(docker create --network none --label "${IMAGE_LABEL}=build" \
    --mount "type=bind,\"source=$(image::_wheelhouse)\",target=/wheels,readonly" \
    --mount "type=bind,\"source=${REPO_DIR}/docker\",target=/build,readonly" "$base" sh /build/install.sh)
  cli::on_exit image::_remove "$id"
  docker start "$id" >/dev/null
  status=$(log::while 'installing the packages' -- docker wait "$id")
  [[ $status == 0 ]] || {
    docker logs --tail 20 "$id" >&2
    cli::die 1 "Building ${image} with docker/install.sh failed (exit ${status}); its last lines are above."
  }
  output::read_lines config grep -v '^#' "${REPO_DIR}/docker/config"
  log::while 'writing the image' -- engine::commit "${config[@]/#/--change=}" "$id" "$image"
  log::while 'removing what it was made in' -- image::_remove "$id"
  log::changed "node image ${image} ($(docker image inspect --format '{{.Size}}' "$image" | numfmt --to=si)B, on ${base})"
}

image::_remove() { docker rm --force "$1" >/dev/null 2>&1 || true; }

image::_hash() { printf '%s\n' "$@" | sha256sum | cut -c1-12; }
