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
  local directory=${WORKDIR}/shared said
  until [[ -d $directory ]]; do directory=$(dirname -- "$directory"); done
  said=$(sh -c "$SHARED_TRIAL" trial "$directory" </dev/null 2>/dev/null) || true
  [[ $said == held ]] ||
    cli::die 1 "${directory} (WORKDIR, from ${ENV_ORIGIN[WORKDIR]}) ${said:-could not be checked} on this machine: fix that, or put WORKDIR on a local disk or NFS 4 (docs/shared-root.md has what is needed)."
}
