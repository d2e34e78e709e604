# lifecycle/shared: what the shared root must be able to do (docs/shared-root.md), tried in a separate directory there, which is
# removed again.
# shellcheck shell=bash

# A plain sh gets the directory. It prints "PROBLEM what is wrong", or "held".
# shellcheck disable=SC2016  # expanded where it runs
readonly SHARED_TRIAL='
  export LC_ALL=C
  problem() { echo "PROBLEM $1"; exit; }
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
  sh -c "exec 4<>b; flock 4 && kill -s KILL \$\$"
  (flock --timeout 2 4) 4<>b || problem "keeps the lock of a process that was killed"
  [ "$(stat -c %u a)" = "$(id -u)" ] || problem "stores the files of user $(id -u) as those of user $(stat -c %u a)"
  echo held'

# shared::need_held WHO ROOT KNOB ANSWER: that host sees there the lock that is held.
shared::need_held() {
  case $4 in
    held) ;;
    missing) cli::die 1 "$1 does not see at $2 ($3) what was written there: mount the same directory on every host." ;;
    *) cli::die 1 "$1 does not see a lock that is held in $2 ($3, from ${ENV_ORIGIN[$3]}; it says '$4'): mount it everywhere by NFS 4, without the options nolock and local_lock." ;;
  esac
}

# shared::need ROOT KNOB: this machine's shared root can do all of it. It is tried in the nearest directory that exists. Files that a
# server gives to nobody because we are root are no problem if the nodes are another user.
shared::need() {
  local directory=$1 said problem
  until [[ -d $directory ]]; do directory=$(dirname -- "$directory"); done
  said=$(sh -c "$SHARED_TRIAL" trial "$directory" </dev/null 2>/dev/null) || true
  [[ $said != 'PROBLEM stores the files of user 0 '* || $(engine::owner) == 0 ]] || return 0
  problem="could not be checked ('${said}')"
  [[ $said != 'PROBLEM '* ]] || problem=${said#PROBLEM }
  [[ $said == held ]] ||
    cli::die 1 "${directory} ($2, from ${ENV_ORIGIN[$2]}) ${problem} on this machine: fix that, or put $2 on a local disk or NFS 4 (docs/shared-root.md has what is needed)."
}
