# lifecycle/shared: what the shared root must be able to do (docs/shared-root.md), tried in a separate directory there, which is
# removed again.
# shellcheck shell=bash

# A plain sh gets the directory. It prints what is wrong, or "held".
# shellcheck disable=SC2016  # expanded where it runs
readonly SHARED_TRIAL='
  export LC_ALL=C
  problem() { echo "$1"; exit; }
  dir=$(mktemp -d "$1/.verl-regress-XXXXXX" 2>&1) || problem "cannot be written to (${dir##*: })"
  trap "cd / && rm -rf \"\$dir\"" EXIT; trap "exit 1" HUP INT TERM # rule-ok: a shell of its own
  cd "$dir" || exit # rule-ok: the same
  said=$( { echo one | cat >a; } 2>&1) && [ -z "$said" ] || problem "cannot be written to (${said##*: })"
  ln a b 2>/dev/null && [ "$(stat -c %h a)" = 2 ] || problem "has no hard links"
  { echo two >c && mv -f c b; } 2>/dev/null && [ "$(cat b)" = two ] && [ "$(cat a)" = one ] || problem "does not replace a file in one step"
  [ ! -e A ] || problem "is case-insensitive"
  chmod 600 a && [ "$(stat -c %a a)" = 600 ] || problem "changes mode 600 to $(stat -c %a a)"
  exec 3<>a
  said=$(flock --nonblock 3 2>&1) || problem "has no locks (${said##*: })"
  if (flock --nonblock 4) 4<>a || (flock --shared --nonblock 4) 4<a; then problem "gives one lock to two processes"; fi
  echo held'

# shared::need: this machine's shared root can do all of it. It is tried in the nearest directory that exists. The doctor tries more of it
# on the nodes.
shared::need() {
  local directory said
  directory=$(shared::_nearest)
  said=$(sh -c "$SHARED_TRIAL" trial "$directory" </dev/null 2>/dev/null) || true
  [[ $said == held ]] ||
    cli::die 1 "${directory} (WORKDIR, from ${ENV_ORIGIN[WORKDIR]}) ${said:-could not be checked} on this machine: fix that, or put WORKDIR on a local disk or NFS 4 (docs/shared-root.md has what is needed)."
}

# shared::_nearest: the shared root, or the nearest directory above it that exists already.
shared::_nearest() {
  local directory=${WORKDIR}/shared
  until [[ -d $directory ]]; do directory=$(dirname -- "$directory"); done
  printf '%s\n' "$directory"
}

# shared::need_seen: every engine of this cluster sees what this machine writes to the shared root. An engine may be elsewhere (DOCKER_HOST),
# or have other files than this machine (in a virtual machine, or in a container itself), and another directory at the same path.
shared::need_seen() {
  local directory file dir
  directory=$(shared::_nearest)
  cli::temp_dir dir
  file=$(mktemp "${directory}/.verl-regress-XXXXXX") ||
    cli::die 1 "${directory} (WORKDIR, from ${ENV_ORIGIN[WORKDIR]}) cannot be written to (mktemp says why above): free some space there, or mount it writable."
  cli::on_exit rm -f -- "$file"
  node::ask "$dir" "$(hosts::engines)" shared::_need_seen_at "$directory" "$file"
  rm -f -- "$file"
}

# shared::_need_seen_at ENGINE DIRECTORY FILE: the engine finds the file in a container of an empty image, so this works before there is another one.
shared::_need_seen_at() {
  local engine=$1 image said whose='' cure="set WORKDIR to a directory that both see, share it with the engine's virtual machine, or use an engine of this machine (DOCKER_HOST, 'docker context use')"
  [[ $engine == this ]] || whose=" of $(hosts::describe "$engine")" cure='mount the same directory on every host'
  if ! said=$(tar -c --files-from=/dev/null | hosts::docker "$engine" import - 2>&1) || [[ ! $said =~ sha256:[0-9a-f]{64} ]]; then
    cli::die 1 "The container engine${whose} cannot store an image ($(cli::shown "${said##*$'\n'}")): free some space on its disk."
  fi
  image=${BASH_REMATCH[0]} # podman says it twice
  if said=$(shared::_look "$engine" "$image" "$2" "${3##*/}" 2>&1); then
    hosts::docker "$engine" rmi "$image" >/dev/null
  else
    hosts::docker "$engine" rmi "$image" >/dev/null || true
    cli::die 1 "The container engine${whose} does not see what this machine writes to $2 (WORKDIR, from ${ENV_ORIGIN[WORKDIR]}; it says: $(cli::shown "${said##*$'\n'}")): ${cure}."
  fi
}

# shared::_look ENGINE IMAGE DIRECTORY NAME: succeeds if the engine can read that file of the directory through a container, which is never started.
# podman makes a directory that it does not see, so only reading tells.
shared::_look() {
  local id status=0
  id=$(hosts::docker "$1" create --mount "type=bind,\"source=$3\",target=/seen,readonly" "$2" seen) || return
  hosts::docker "$1" cp "${id}:/seen/$4" - >/dev/null || status=$?
  hosts::docker "$1" rm "$id" >/dev/null
  return "$status"
}
