# lifecycle/kit: `make kit`: one file with all that an installation without a way out needs. What is fetched for it stays in
# ${WORKDIR}/cache/kit, so an interrupted run goes on there. scripts/dev/unkit.bash unpacks it.
# shellcheck shell=bash

# All packages that scripts/dev/host.bash may want for `make quickstart` and `make test`.
readonly KIT_PACKAGES=(make jq parallel python3 python3-venv git openssh-client docker.io iptables mmdebstrap)
# The knobs that decide what is in a kit: what the user set of them, an installation from it must have, too, or it looks for other packages
# and another node image.
readonly KIT_KNOBS=(PROFILE TORCH_INDEX_URL BASE_IMAGE NODE_IMAGE VERL_SOURCE CODE_A CODE_B DATASET_SOURCE DATASET MODEL_SOURCE MODEL)
# The bytes of what has no size before it is fetched: the wheels of requirements-dev.lock with Compose, and one release of verl.
readonly KIT_BYTES_TOOLS=200000000 KIT_BYTES_VERL=6000000

# kit::find: what will be in the kit, in the file "parts" of KIT_FACTS: KIND, NAME, BYTES, how many of them are still missing, PROFILE; and what it will lack, in "lacking".
kit::find() {
  local profile system profiles=${KIT//,/ }
  # shellcheck disable=SC2153  # the knobs
  [[ -n $profiles ]] || profiles=$PROFILE
  KIT_VERSION=$(sed -n 's/^__version__ = "\([^"]*\)".*/\1/p' "${REPO_DIR}/py/verl_regress/__init__.py")
  [[ ! $TORCH_INDEX_URL =~ ://[^/]*@ ]] ||
    cli::die 2 "TORCH_INDEX_URL (from ${ENV_ORIGIN[TORCH_INDEX_URL]}) has a user or a password, which the kit would carry: put them into ~/.netrc, which pip reads, and leave them out of the address."
  system=$(kit::system)
  KIT_STAGE="${WORKDIR}/cache/kit/$(kit::locks)-$(uname -m)-${system// /-}-$(kit::python)"
  KIT_FILE="build/dist/verl-regress-${KIT_VERSION}-kit-${profiles// /-}-${system// /-}-$(uname -m).tar"
  cli::temp_dir KIT_FACTS
  : >"${KIT_FACTS}/lacking"
  engine::choose
  kit::_find_debs
  kit::_part tools 'requirements-dev.lock and Compose' "$KIT_BYTES_TOOLS" "${KIT_STAGE}/wheels"
  for profile in $profiles; do
    [[ $profile =~ ^(cpu|gpu)$ ]] ||
      cli::die 2 "KIT='$(cli::shown "$KIT")' (from ${ENV_ORIGIN[KIT]}) is not usable: name the locks of docker/ whose packages the kit shall have, cpu, gpu or cpu,gpu."
    (env::take_profile "$profile" && kit::_find_for_profile)
  done
  sort -u -t $'\t' -k 1,2 -o "${KIT_FACTS}/parts" "${KIT_FACTS}/parts"
}

# kit::locks: a hash of what decides which packages a checkout wants: a kit is for checkouts with the same ones.
kit::locks() { image::hash "$(cat -- "$VENV_LOCK" "${REPO_DIR}"/docker/*.lock "${REPO_DIR}"/docker/*.in | sha256sum)"; }

# kit::system: the distribution and its release, as "debian bookworm".
kit::system() {
  # shellcheck disable=SC1091  # the machine's own file
  . "${HOST_ROOT}/etc/os-release" && printf '%s %s\n' "$ID" "${VERSION_CODENAME:-${VERSION_ID:-}}"
}

# kit::python: this machine's, as 3.11.
kit::python() { python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }

kit::size() { numfmt --to=si --suffix=B "$1"; }

# kit::_part KIND NAME BYTES PATH [FROM]: with the size of FROM instead, or of PATH, if one exists; if PATH does, it is there already.
kit::_part() {
  local path bytes=$3 missing
  for path in "${@:4}"; do [[ ! -e $path ]] || bytes=$(du -sbL -- "$path" | cut -f1); done
  missing=$bytes
  [[ ! -e $4 ]] || missing=0
  printf '%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$bytes" "$missing" "$PROFILE" >>"${KIT_FACTS}/parts"
}

kit::_lack() { printf '%s\n' "$1" >>"${KIT_FACTS}/lacking"; }

kit::_find_for_profile() {
  local image house knob bytes place
  house=$(image::wheelhouse)
  bytes=$(sed -n 's/^# Size: \([0-9.]*\) \([GM]\)B.*/\1\2/p' "$(image::requirements).in" | numfmt --from=si)
  kit::_part wheelhouse "${house##*/}" "$bytes" "$house"
  image=$(image::name)
  if image::is_present "$image"; then
    kit::_part image "$image" "$(docker image inspect --format '{{.Size}}' "$image")" "$(kit::_image_file "$image")"
  else
    kit::_lack "the node image ${image}, which is not on this machine: run 'make build PROFILE=${PROFILE}'"
  fi
  for knob in VERL_SOURCE CODE_A CODE_B; do
    case ${!knob} in
      pypi:*)
        place=$(snapshot::pypi_cache "${!knob#pypi:}")
        kit::_part verl "${!knob#pypi:}" "$KIT_BYTES_VERL" "${KIT_STAGE}/trees/cache/verl/${place##*/}.tar" "$place"
        ;;
      *:*) kit::_lack "${knob}=${!knob} (from ${ENV_ORIGIN[$knob]}): carry a checkout yourself, and name it as path:DIR there" ;;
    esac
  done
  kit::_find_prepared DATASET_SOURCE "datasets/${DATASET}" _sft
  kit::_find_prepared MODEL_SOURCE "common/models/${MODEL}" -critic
}

# kit::_find_prepared KNOB PLACE SUFFIX: what `make prepare` has fetched from the hub, and what it made of it.
kit::_find_prepared() {
  local place
  case ${!1} in
    synthetic | tiny) return ;; # made there
    path:*) kit::_lack "$1=${!1} (from ${ENV_ORIGIN[$1]}): carry it yourself" ;;
    *)
      [[ -f ${WORKDIR}/shared/$2/manifest.json ]] ||
        kit::_lack "$1=${!1} (from ${ENV_ORIGIN[$1]}), which is not in ${WORKDIR}/shared/$2: run 'make up prepare PROFILE=${PROFILE}'"
      for place in "shared/$2" "shared/$2$3"; do
        [[ ! -f ${WORKDIR}/${place}/manifest.json ]] || kit::_part tree "$place" 0 "${KIT_STAGE}/trees/${place}.tar" "${WORKDIR}/${place}"
      done
      ;;
  esac
}

# kit::_find_debs: by apt-get's own solver, for a machine that has no package, and with lists of our own, so that it needs no root.
kit::_find_debs() {
  mkdir -p "${KIT_STAGE}"/apt/{lists,archives,none}/partial
  : >"${KIT_STAGE}/apt/status"
  log::while 'asking which packages there are (apt-get update)' -- kit::_apt update || log::warn "apt-get update: $(kit::_apt_said)"
  # It leaves out what it has fetched already, so it gets an archive with nothing.
  if kit::_apt -o Dir::Cache::archives="${KIT_STAGE}/apt/none" --print-uris -qq --yes install "${KIT_PACKAGES[@]}"; then
    grep "^'" "${KIT_FACTS}/apt" >"${KIT_FACTS}/uris"
    kit::_part debs "$(kit::system)" "$(awk '{ sum += $3 } END { print sum }' "${KIT_FACTS}/uris")" "${KIT_STAGE}/debs"
  else
    kit::_lack "the packages of a distribution, because apt-get here finds none ($(kit::_apt_said)): install there what scripts/dev/bootstrap_host.sh lists"
  fi
}

kit::_apt() {
  local own="${KIT_STAGE}/apt"
  apt-get -o Dir::State="$own" -o Dir::State::lists="${own}/lists" -o Dir::State::status="${own}/status" -o Dir::Cache="$own" \
    -o APT::Sandbox::User=root -o Debug::NoLocking=1 -o APT::Install-Recommends=0 -o Acquire::Languages=none "$@" </dev/null >"${KIT_FACTS}/apt" 2>&1
}

kit::_apt_said() { tail -n 1 "${KIT_FACTS}/apt"; }

# kit::tell: how large the kit will be, and what it will lack. Sets KIT_BYTES and KIT_MISSING.
kit::tell() {
  local kind name bytes missing _ line
  KIT_BYTES=0 KIT_MISSING=0
  while IFS=$'\t' read -r kind name bytes missing _; do
    KIT_BYTES=$((KIT_BYTES + bytes)) KIT_MISSING=$((KIT_MISSING + missing))
    log::info "$(printf '%6s  %s %s' "$(kit::size "$bytes")" "$kind" "$name")"
  done <"${KIT_FACTS}/parts"
  while IFS= read -r line; do log::warn "the kit will lack ${line}"; done <"${KIT_FACTS}/lacking"
  log::info "the kit will have at most $(kit::size "$KIT_BYTES")"
}

# kit::need_space: for the parts that are not there yet, and for the file that they are packed into, unless it is on another file system.
kit::need_space() {
  local needed=$KIT_MISSING free
  # Without a part that is missing, the kit is the same again.
  [[ $KIT_MISSING == 0 && -e $KIT_FILE || $(df --output=target -- "$KIT_STAGE") != "$(df --output=target -- "$REPO_DIR")" ]] ||
    needed=$((needed + KIT_BYTES))
  free=$(df --output=avail -B1 -- "$KIT_STAGE" | tail -n 1)
  ((free >= needed)) ||
    cli::die 1 "The kit and its parts need up to $(kit::size "$needed") more, and ${KIT_STAGE} has $(kit::size "$free") free: make space there, or use another WORKDIR (from ${ENV_ORIGIN[WORKDIR]})."
}

# kit::gather: fetches and makes every part. The file "members" in KIT_FACTS gets a line for each file: its path in KIT_STAGE, and for what
# is no package also what it is, its version and its licence.
kit::gather() {
  local kind name _ profile
  venv::ensure
  ln -sfn -- "${WORKDIR}/cache/wheelhouse" "${KIT_STAGE}/wheelhouse"
  cp -f -- "$("${REPO_DIR}/maintain/dist.sh")" "${KIT_STAGE}/project.tar.gz"
  kit::_member project.tar.gz verl-regress "$KIT_VERSION" Apache-2.0
  while IFS=$'\t' read -r kind name _ _ profile; do
    (env::take_profile "$profile" && "kit::_get_${kind}" "$name") </dev/null
    log::ok "${kind} ${name}"
  done <"${KIT_FACTS}/parts"
}

kit::_member() { printf '%s\t%s\t%s\t%s\n' "${1#"${KIT_STAGE}/"}" "${@:2}" >>"${KIT_FACTS}/members"; }
kit::_packages() { printf '%s\t\t\t\n' "${@#"${KIT_STAGE}/"}" >>"${KIT_FACTS}/members"; }

kit::_get_debs() {
  local file _
  log::while 'fetching the packages of the distribution' log::size "${KIT_STAGE}/apt/archives" -- \
    kit::_apt --download-only --yes install "${KIT_PACKAGES[@]}" ||
    cli::die 1 "apt-get could not fetch the packages ($(kit::_apt_said)): check the network and this machine's apt sources, then run this again; it goes on."
  rm -rf -- "${KIT_STAGE}/debs"
  mkdir "${KIT_STAGE}/debs"
  while read -r _ file _; do cp -l -- "${KIT_STAGE}/apt/archives/${file}" "${KIT_STAGE}/debs"; done <"${KIT_FACTS}/uris"
  kit::_packages "${KIT_STAGE}"/debs/*.deb
}

# The tools of this host, which has the other one's Python: the wheels of .venv, and Compose.
kit::_get_tools() {
  local new="${KIT_STAGE}/wheels.partial"
  if [[ ! -d ${KIT_STAGE}/wheels ]]; then
    rm -rf -- "$new"
    mkdir "$new"
    log::while 'fetching the wheels of requirements-dev.lock' log::size "$new" -- \
      venv::pip "${KIT_FACTS}/pip" wheel --wheel-dir "$new" --requirement "$VENV_LOCK" ||
      cli::die 1 "pip could not fetch the packages of requirements-dev.lock (its output is above): check the network and this machine's pip configuration."
    host::fetch_compose "$new"
    mv -T -- "$new" "${KIT_STAGE}/wheels"
  fi
  kit::_packages "${KIT_STAGE}"/wheels/*.whl
  kit::_member wheels/docker-compose 'Docker Compose' "${HOST_COMPOSE#*==}" Apache-2.0
}

kit::_get_wheelhouse() {
  image::ensure_wheelhouse
  kit::_packages "${KIT_STAGE}/wheelhouse/$1"/*.whl
}

kit::_get_image() {
  local file
  file=$(kit::_image_file "$1")
  if [[ ! -e $file ]]; then
    mkdir -p "${file%/*}"
    log::while "saving ${1}" log::size "${file}.partial" -- kit::_save "$1" "${file}.partial"
    mv -T -- "${file}.partial" "$file"
  fi
  kit::_member "$file" "node image ${1}" - 'those of its packages'
}

# Named after the image's id, because the same name may be another image later.
kit::_image_file() { docker image inspect --format "${KIT_STAGE}/images/{{slice .Id 7 19}}.tar.gz" "$1"; }
kit::_save() { docker save "$1" | gzip -1 >"$2"; }

kit::_get_verl() {
  local cache
  cache=$(snapshot::pypi_cache "$1")
  snapshot::ensure_fetched "$1"
  kit::_get_tree "cache/verl/${cache##*/}" verl "$1" "$(sed -nE 's/^License(-Expression)?: //p' "$cache"/verl-*.dist-info/METADATA | head -n 1)"
}

# kit::_get_tree PLACE [WHAT VERSION LICENCE]: a directory of WORKDIR as one file, the same bytes for the same files.
kit::_get_tree() {
  local file="${KIT_STAGE}/trees/$1.tar"
  mkdir -p "${file%/*}"
  tar -C "${WORKDIR}/$1" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf "$file" .
  kit::_member "$file" "${2:-$1}" "${3:--}" "${4:-unknown}"
}

# kit::pack: the manifest with its hash first, then every file. Prints the kit's path.
kit::pack() {
  local knob source given=()
  for knob in "${KIT_KNOBS[@]}"; do
    source=${knob%_SOURCE}_SOURCE
    # A folder or a repository is not in the kit, and what is named after it is neither.
    [[ "${!knob}|${!source-}" =~ (^|\|)(path|git): ]] || ! env::is_given "$knob" || given+=("${knob}=${!knob}")
  done
  log::while 'writing the manifest' -- venv::script scripts/dev/kit_manifest.py "$KIT_STAGE" \
    "machine=$(uname -m)" "system=$(kit::system)" "python=$(kit::python)" "locks=$(kit::locks)" "${given[@]}" <"${KIT_FACTS}/members" >"${KIT_STAGE}/MANIFEST"
  (cd "$KIT_STAGE" && sha256sum MANIFEST >MANIFEST.sha256)
  if tar -xOf "$KIT_FILE" --occurrence=1 MANIFEST 2>/dev/null | cmp -s - "${KIT_STAGE}/MANIFEST"; then
    log::skip "${KIT_FILE} (exists, same files)"
  else
    { printf '%s\n' MANIFEST MANIFEST.sha256 && sed '/^#/d; s/\t.*//' "${KIT_STAGE}/MANIFEST"; } |
      log::while 'packing' log::size "${KIT_FILE}.partial" -- tar -C "$KIT_STAGE" --hard-dereference --owner=0 --group=0 --numeric-owner \
        --mode='u=rwX,go=rX' --verbatim-files-from --files-from=- -cf "${REPO_DIR}/${KIT_FILE}.partial" || {
      rm -f -- "${KIT_FILE}.partial"
      cli::die 1 "The kit could not be packed into ${KIT_FILE} (the reason is above): make space there, and run this again; it goes on."
    }
    mv -T -- "${KIT_FILE}.partial" "$KIT_FILE"
    log::changed "${KIT_FILE} ($(kit::size "$(stat -c %s "$KIT_FILE")"), $(grep -vc '^#' "${KIT_STAGE}/MANIFEST") files)"
  fi
  printf '%s\n' "$KIT_FILE"
}
