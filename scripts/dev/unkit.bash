# unkit: `make unkit`: an installation from a kit alone (kit.bash). All checks come before anything is written.
# shellcheck shell=bash

declare -gA UNKIT_FACTS=() # what the manifest's head says
# They keep what jobs use from asking other hosts.
readonly UNKIT_OFFLINE=(VERL_REGRESS_OFFLINE=1 HF_HUB_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 WANDB_MODE=offline
  RAY_USAGE_STATS_ENABLED=0)

# unkit::read: the kit's manifest, in UNKIT_DIR, and its facts; where it will be unpacked.
unkit::read() {
  local name value
  HOST_KIT="${WORKDIR}/cache/unkit"
  [[ -n $KIT ]] || cli::die 2 "KIT is empty: name the file that 'make kit' made, as in 'make unkit KIT=FILE'."
  [[ $(realpath -m -- "$KIT") != "$HOST_KIT"?(.partial)/* ]] ||
    cli::die 2 "KIT=$(cli::shown "$KIT") (from ${ENV_ORIGIN[KIT]}) lies where kits are unpacked, which removes what is there: move it elsewhere."
  cli::temp_dir UNKIT_DIR
  tar -C "$UNKIT_DIR" -xf "$KIT" --occurrence=1 MANIFEST MANIFEST.sha256 2>/dev/null || true
  (cd "$UNKIT_DIR" && sha256sum --quiet --check MANIFEST.sha256) >/dev/null 2>&1 ||
    cli::die 2 "KIT=$(cli::shown "$KIT") (from ${ENV_ORIGIN[KIT]}) is not a whole kit: name the file that 'make kit' made, and copy it again if it is that one."
  while IFS=$'\t' read -r name value; do UNKIT_FACTS[$name]=$value; done < <(sed -n 's/^# //p' "${UNKIT_DIR}/MANIFEST")
}

# unkit::need_same: the kit was made for a machine like this one, and for this checkout.
unkit::need_same() {
  local python=${UNKIT_FACTS[python]}
  [[ -z $(command -v python3) ]] || python=$(kit::python) # else the kit brings it
  unkit::_need machine 'the architecture' "$(uname -m)"
  unkit::_need system 'the distribution' "$(kit::system)"
  unkit::_need python 'Python' "$python"
  [[ ${UNKIT_FACTS[locks]} == "$(kit::locks)" ]] ||
    cli::die 2 "KIT=${KIT} (from ${ENV_ORIGIN[KIT]}) has other packages than this checkout wants: unpack the project that it contains ('tar -xOf KIT project.tar.gz'), and run this there."
}

# unkit::_need FACT WHAT HERE
unkit::_need() {
  [[ ${UNKIT_FACTS[$1]} == "$3" ]] ||
    cli::die 2 "KIT=${KIT} (from ${ENV_ORIGIN[KIT]}) is for ${2} ${UNKIT_FACTS[$1]}, and this machine has $3: make a kit on a machine that has $3, too."
}

# unkit::need_whole: every file of the kit has the hash that the manifest gives.
unkit::need_whole() {
  local wrong
  log::while 'computing the hashes of the kit' -- unkit::_find_hashes ||
    cli::die 2 "KIT=${KIT} (from ${ENV_ORIGIN[KIT]}) is cut off or damaged ($(head -n 1 "${UNKIT_DIR}/said")): copy it again."
  wrong=$(comm -3 <(grep -v '^MANIFEST' "${UNKIT_DIR}/found" | sort) <(grep -v '^#' "${UNKIT_DIR}/MANIFEST" | cut -f1,5 | sort) | awk 'NR == 1 { print $1 }')
  [[ -z $wrong ]] ||
    cli::die 2 "KIT=${KIT} (from ${ENV_ORIGIN[KIT]}) is damaged: ${wrong} does not have the hash of the manifest; copy the kit again."
  log::ok "the kit is whole: $(grep -vc '^#' "${UNKIT_DIR}/MANIFEST") files"
}

unkit::_find_hashes() { # log::while prints on stderr
  # shellcheck disable=SC2016  # expanded by the shell that tar starts for each file
  tar -xf "$KIT" --to-command='printf "%s\t%s\n" "$TAR_FILENAME" "$(sha256sum | cut -c1-64)"' >"${UNKIT_DIR}/found" 2>"${UNKIT_DIR}/said"
}

unkit::is_unpacked() { cmp -s "${UNKIT_DIR}/MANIFEST" "${HOST_KIT}/MANIFEST"; }

# unkit::need_space: to unpack it, and for what is installed from it, which may be on another file system.
unkit::need_space() {
  local dir=$WORKDIR need=${UNKIT_FACTS[bytes]} free
  ! unkit::is_unpacked || return 0
  until [[ -d $dir ]]; do dir=$(dirname -- "$dir"); done
  free=$(df --output=avail -B1 -- "$dir" | tail -n 1)
  [[ ! -d ${HOST_KIT}.partial ]] || free=$((free + $(du -sb -- "${HOST_KIT}.partial" | cut -f1))) # it is removed
  [[ $(df --output=target -- "$dir") != "$(df --output=target -- "${HOST_ROOT}/")" ]] || need=$((need + UNKIT_FACTS[installed]))
  ((free > need)) ||
    cli::die 1 "Unpacking and installing the kit needs $(kit::size "$need"), and ${dir} has $(kit::size "$free") free: make space, or set another WORKDIR (from ${ENV_ORIGIN[WORKDIR]})."
}

# unkit::unpack: the kit is in HOST_KIT. Sets what apt-get and pip need to take everything from there.
unkit::unpack() {
  local url="file://${HOST_KIT// /%20}" line
  line="deb [trusted=yes] ${url}/debs ./"
  if unkit::is_unpacked; then
    log::skip "${HOST_KIT} (unpacked, same kit)"
    grep -qsxF "$line" "${HOST_KIT}/sources.list" || printf '%s\n' "$line" >"${HOST_KIT}/sources.list" # the directory was moved
  else
    rm -rf -- "${HOST_KIT}.partial"
    unkit::_mkdir "${HOST_KIT}.partial"
    log::while 'unpacking' log::size "${HOST_KIT}.partial" -- tar -C "${HOST_KIT}.partial" --no-same-owner -xf "$KIT" ||
      cli::die 1 "The kit could not be unpacked into ${HOST_KIT}.partial (the reason is above): make space there, and run this again."
    mkdir -p "${HOST_KIT}.partial/lists/partial"
    printf '%s\n' "$line" >"${HOST_KIT}.partial/sources.list"
    (($(id -u) != 0)) || chown -R --reference="$WORKDIR" -- "${HOST_KIT}.partial"
    rm -rf -- "$HOST_KIT"
    mv -T -- "${HOST_KIT}.partial" "$HOST_KIT"
    log::changed "${HOST_KIT} (from ${KIT})"
  fi
  # shellcheck disable=SC2034  # scripts/dev/host.bash reads it
  HOST_APT=(-o "Dir::Etc::sourcelist=${HOST_KIT}/sources.list" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=${HOST_KIT}/lists"
    -o APT::Sandbox::User=root -o Acquire::Languages=none)
  export PIP_NO_INDEX=1 PIP_FIND_LINKS="${url}/wheels" PIP_CONFIG_FILE=/dev/null
}

# unkit::need_engine: an engine that is there already is new enough for the kit's Compose.
unkit::need_engine() {
  local api
  ! host::is_compose_there && host::is_engine_answering || return 0
  api=$(docker version --format '{{.Server.APIVersion}}')
  ((${api#1.} >= 41)) ||
    cli::die 1 "The container engine $(docker version --format '{{.Server.Version}}') is older than 20.10, the oldest one that the kit's Compose has run with: install a newer one."
}

# unkit::put: node images, wheels for another one, verl, data and models, where the other commands look for them.
unkit::put() {
  local file place what
  engine::choose
  while IFS=$'\t' read -r file what; do
    if image::is_present "$what"; then
      log::skip "node image ${what} (exists)"
    else
      log::while "loading ${what}" -- docker load --quiet --input "${HOST_KIT}/${file}" >/dev/null
      log::changed "node image ${what}"
    fi
  done < <(sed -n 's/^\(images\/[^\t]*\)\tnode image \([^\t]*\)\t.*/\1\t\2/p' "${HOST_KIT}/MANIFEST")
  for place in "$HOST_KIT"/wheelhouse/*; do
    [[ ! -d $place ]] || unkit::_put "cache/wheelhouse/${place##*/}" cp -al -- "${place}/."
  done
  while IFS= read -r file; do
    place=${file#trees/}
    unkit::_put "${place%.tar}" tar --no-same-owner -xf "${HOST_KIT}/${file}" -C
  done < <(sed -n 's/^\(trees\/[^\t]*\)\t.*/\1/p' "${HOST_KIT}/MANIFEST")
}

# unkit::_put PLACE COMMAND...: COMMAND fills a directory, its last argument, which becomes PLACE in WORKDIR.
unkit::_put() {
  local place="${WORKDIR}/$1" new="${WORKDIR}/$1.partial"
  if [[ -e $place ]]; then
    log::skip "${place} (exists)"
    return
  fi
  rm -rf -- "$new"
  unkit::_mkdir "$new"
  "${@:2}" "$new"
  (($(id -u) != 0)) || chown -R --reference="$WORKDIR" -- "$new"
  mv -T -- "$new" "$place"
  log::changed "$place"
}

# unkit::_mkdir DIR: with its parents, which root makes as their own parent's owner.
unkit::_mkdir() {
  [[ ! -d $1 ]] || return 0
  unkit::_mkdir "$(dirname -- "$1")"
  mkdir -- "$1"
  (($(id -u) != 0)) || chown --reference="$1/.." -- "$1"
}

# unkit::need_settings: env/local.env says nothing against what the kit was made with, and against the offline variables.
unkit::need_settings() {
  local knob
  UNKIT_LINES=()
  for knob in "${KIT_KNOBS[@]}"; do
    [[ ! -v UNKIT_FACTS[$knob] ]] || UNKIT_LINES+=("${knob}=${UNKIT_FACTS[$knob]}")
  done
  UNKIT_LINES+=("${UNKIT_OFFLINE[@]/#/export }")
  env::find_lacking "${UNKIT_LINES[@]}"
}
