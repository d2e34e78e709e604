# lifecycle/image: the node image. Its tag is a hash of what goes in, so the same inputs are never built twice.
# shellcheck shell=bash

readonly IMAGE_LABEL='verl-regress.image'
# What a base of our own making holds beyond Debian's essentials.
readonly IMAGE_BASE_PACKAGES='python3,python3-venv,ca-certificates,procps'

# image::name: the image that the nodes run.
image::name() {
  if [[ -n ${NODE_IMAGE:-} ]]; then
    printf '%s\n' "$NODE_IMAGE"
  else
    printf 'verl-regress-node:%s\n' "$(image::_hash "$BASE_IMAGE" "$(<"${REPO_DIR}/docker/Dockerfile")" "$(image::_wheels)")"
  fi
}

image::is_present() { docker image inspect "$1" >/dev/null 2>&1; }

image::need_engine() { image::engine >/dev/null; }

# image::engine: the version of the container engine on stdout; one sentence instead of a page when none answers.
image::engine() {
  docker version --format '{{.Server.Version}}' 2>/dev/null ||
    cli::die 1 "No container engine answers ('docker version' fails): start it, join the group docker, or run 'scripts/dev/bootstrap_host.sh --engine'."
}

# image::ensure: the node image exists: the one that NODE_IMAGE names, or one built from today's inputs.
image::ensure() {
  local image
  image=$(image::name)
  if image::is_present "$image"; then
    log::skip "node image ${image} (exists, same inputs)"
  elif [[ -n ${NODE_IMAGE:-} ]]; then
    image::_pull "$image" ||
      cli::die 2 "NODE_IMAGE=${image} is neither on this machine nor in a registry that answers: load it, or leave NODE_IMAGE empty to have one built."
    log::changed "node image ${image} (pulled)"
  else
    image::_ensure_wheelhouse
    image::_ensure_base
    image::_build "$image"
  fi
}

# --- the wheelhouse: every package as a wheel, fetched on the host with the host's own pip configuration

image::_wheelhouse() { printf '%s/cache/wheelhouse/%s\n' "$WORKDIR" "$(image::_hash "$(image::_wheels)")"; }

# What decides which wheels come.
image::_wheels() {
  printf '%s\n' "$(uname -m)" "$IMAGE_VERL_VERSION" "$TORCH_INDEX_URL"
  grep -v '^#' "${REPO_DIR}/docker/requirements.lock"
}

image::_ensure_wheelhouse() {
  local house
  house=$(image::_wheelhouse)
  if [[ -d $house ]]; then
    log::skip "wheelhouse ${house} (exists, same inputs)"
    return
  fi
  image::_need_pip
  log::info "fetching the packages of the node image into ${house}"
  cli::on_exit rm -rf -- "${house}.tmp.$$"
  mkdir -p "${house}.tmp.$$"
  image::_fetch_wheels "${house}.tmp.$$"
  mv -T -- "${house}.tmp.$$" "$house"
  log::changed "wheelhouse ${house} ($(find "$house" -name '*.whl' | wc -l) wheels, $(du -sh "$house" | cut -f1))"
}

# For Python 3.11 on glibc, whatever runs on this host; the few that come as source are pure Python and built here.
image::_fetch_wheels() {
  local house=$1 target=(--python-version 3.11 --implementation cp) minor sources
  for minor in {36..17}; do target+=(--platform "manylinux_2_${minor}_$(uname -m)"); done
  target+=(--platform "manylinux2014_$(uname -m)")
  [[ -z $TORCH_INDEX_URL ]] || target+=(--extra-index-url "$TORCH_INDEX_URL")
  image::_pip download --no-deps "${target[@]}" --dest "$house" \
    --requirement "${REPO_DIR}/docker/requirements.lock" "verl==${IMAGE_VERL_VERSION}"
  mapfile -t sources < <(find "$house" -name '*.tar.gz' -o -name '*.zip')
  ((${#sources[@]} == 0)) || image::_pip wheel --no-deps --wheel-dir "$house" "${sources[@]}"
  ((${#sources[@]} == 0)) || rm -- "${sources[@]}"
  # A CPU build of torch needs nothing more. A CUDA build names its libraries in its own metadata: bring those too.
  image::_pip download --only-binary=:all: "${target[@]}" --dest "$house" --find-links "$house" \
    --constraint "${REPO_DIR}/docker/requirements.lock" torch
  ! compgen -G "${house}/nvidia_*.whl" >/dev/null ||
    log::warn "torch came as a CUDA build, so the image will be $(du -sh "$house" | cut -f1) larger than it need be: set TORCH_INDEX_URL to an index with CPU builds for a small one."
}

image::_pip() { "${REPO_DIR}/.venv/bin/python" -m pip "$1" -qq --disable-pip-version-check "${@:2}"; }

image::_need_pip() {
  [[ -x ${REPO_DIR}/.venv/bin/python ]] ||
    cli::die 1 "${REPO_DIR}/.venv is missing, and its pip fetches the packages: run 'scripts/dev/bootstrap_host.sh'."
}

# --- the base: BASE_IMAGE by name, or one made from this distribution's own packages

# Sets IMAGE_BASE to what the Dockerfile should start from.
image::_ensure_base() {
  IMAGE_BASE=$BASE_IMAGE
  if image::is_present "$IMAGE_BASE"; then
    log::skip "base image ${IMAGE_BASE} (exists)"
  elif image::_pull "$IMAGE_BASE"; then
    log::changed "base image ${IMAGE_BASE} (pulled)"
  else
    image::_ensure_base_from_packages
  fi
}

image::_pull() { timeout "$IMAGE_PULL_TIMEOUT" docker pull --quiet "$1" >/dev/null 2>&1; }

image::_ensure_base_from_packages() {
  local codename mirror root
  # shellcheck disable=SC1091  # the machine's own file
  codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-unknown}")
  IMAGE_BASE="verl-regress-base:$(image::_hash "$codename" "$(uname -m)" "$IMAGE_BASE_PACKAGES")"
  if image::is_present "$IMAGE_BASE"; then
    log::skip "base image ${IMAGE_BASE} (exists; BASE_IMAGE=${BASE_IMAGE} could not be pulled)"
    return
  fi
  image::_need_debootstrap "$codename"
  # shellcheck disable=SC2016  # apt's own placeholder
  mirror=$(apt-get indextargets --format '$(REPO_URI)' "Release: ${codename}" 'Component: main' 'Created-By: Packages' | head -n 1)
  log::info "BASE_IMAGE=${BASE_IMAGE} could not be pulled: making a base from ${codename}'s packages at ${mirror}"
  cli::temp_dir root
  debootstrap --variant=minbase --include="$IMAGE_BASE_PACKAGES" "$codename" "${root}/base" "$mirror" >"${root}/log" 2>&1 ||
    cli::die 1 "debootstrap of ${codename} from ${mirror} failed: $(tail -n 1 "${root}/log"). Set BASE_IMAGE to an image with Python 3.11 that this machine has."
  rm -rf -- "${root}"/base/var/{cache/apt,lib/apt/lists}/* "${root}"/base/usr/share/{doc,man,locale}/*
  tar -C "${root}/base" -c . | docker import --change "LABEL ${IMAGE_LABEL}=base" - "$IMAGE_BASE" >/dev/null
  log::changed "base image ${IMAGE_BASE} (from ${codename}'s packages)"
}

image::_need_debootstrap() {
  local cure="Set BASE_IMAGE to an image with Python 3.11 that this machine has, or make a registry reachable."
  [[ $(apt-cache madison python3-venv 2>/dev/null) == *' 3.11.'* ]] ||
    cli::die 1 "BASE_IMAGE=${BASE_IMAGE} could not be pulled, and python3 of this machine's distribution ($1) is not 3.11, so none can be made from its packages. ${cure}"
  [[ -x $(command -v debootstrap) && $(id -u) == 0 ]] ||
    cli::die 1 "BASE_IMAGE=${BASE_IMAGE} could not be pulled; making one from $1's packages needs debootstrap and root. ${cure}"
}

# --- the build

# Without a network: the wheelhouse is all it may use. What the build stage leaves goes however the build ends.
image::_build() {
  local image=$1 log
  log::info "building ${image} on ${IMAGE_BASE}"
  cli::temp_dir log
  cli::on_exit image::_prune
  docker build --network none --force-rm --build-arg "BASE_IMAGE=${IMAGE_BASE}" --tag "$image" \
    --file "${REPO_DIR}/docker/Dockerfile" "$(image::_wheelhouse)" >"${log}/build" 2>&1 || {
    tail -n 20 "${log}/build" >&2
    cli::die 1 "Building ${image} from docker/Dockerfile failed; the engine's last lines are above."
  }
  log::changed "node image ${image} ($(docker image inspect --format '{{.Size}}' "$image" | numfmt --to=si)B, on ${IMAGE_BASE})"
}

image::_prune() { docker image prune --force --filter "label=${IMAGE_LABEL}=build" >/dev/null; }

image::_hash() { printf '%s\n' "$@" | sha256sum | cut -c1-12; }
