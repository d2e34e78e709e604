# lifecycle/shared: what the shared root must be able to do (docs/shared-root.md), tried in a separate directory there, which is
# removed again.
# shellcheck shell=bash

# A plain sh gets the directory. It prints "PROBLEM what is wrong", or "held FILE" and then locks that file until its stdin ends.
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
  echo "held $dir/a"
  cat >/dev/null'

# What asks on another node for the lock on FILE in ROOT; it prints held, or what is wrong. Whoever only reads the file may ask, too, with
# an empty ROOT: on a host that is the user of its engine, who may be another one than that of the containers.
# shellcheck disable=SC2016  # expanded where it runs
readonly SHARED_QUESTION='
  export LC_ALL=C
  [ -e "$1" ] || { echo missing; exit; }
  [ -z "$2" ] || [ -w "$2" ] || { echo "not writable"; exit; }
  exec 4<"$1" && said=$(flock --shared --nonblock 4 2>&1) && echo free && exit
  [ -z "$said" ] && echo held || echo "${said##*: }"'

# shared::refuse ROOT WHERE KNOB SAID: ends the script with the sentence for what SHARED_TRIAL said.
shared::refuse() {
  local problem="could not be checked ('$4')"
  [[ $4 != 'PROBLEM '* ]] || problem=${4#PROBLEM }
  cli::die 1 "$1 ($3, from ${ENV_ORIGIN[$3]}) ${problem} $2: fix that, or put $3 on a local disk or NFS 4 (docs/shared-root.md has what is needed)."
}

# shared::need_held WHO ROOT KNOB ANSWER: that node or host sees there the lock that is held.
shared::need_held() {
  case $4 in
    held) ;;
    missing) cli::die 1 "$1 does not see at $2 ($3) what was written there: mount the same directory on every node and host." ;;
    'not writable') cli::die 1 "$1 cannot write to $2 ($3): make it writable for the user who runs Ray there." ;;
    *) cli::die 1 "$1 does not see a lock that is held in $2 ($3, from ${ENV_ORIGIN[$3]}; it says '$4'): mount it everywhere by NFS 4, without the options nolock and local_lock." ;;
  esac
}

# shared::need ROOT KNOB: this machine's shared root can do all of it. It is tried in the nearest directory that exists. Files that a
# server gives to nobody because we are root are no problem if the nodes are another user.
shared::need() {
  local directory=$1 said
  until [[ -d $directory ]]; do directory=$(dirname -- "$directory"); done
  said=$(sh -c "$SHARED_TRIAL" trial "$directory" </dev/null 2>/dev/null) || true
  [[ $said != 'PROBLEM stores the files of user 0 '* || $(engine::owner) == 0 ]] || return 0
  [[ $said == 'held '* ]] || shared::refuse "$directory" 'on this machine' "$2" "$said"
}

# shared::need_on_nodes: the head's can, and each worker sees the lock that the head holds. The head's part ends with its stdin, and then
# removes the file.
shared::need_on_nodes() {
  local dir end said='' node
  cli::temp_dir dir
  exec {end}> >(exec >"${dir}/said" 2>/dev/null && node::exec_in head sh -c "$SHARED_TRIAL" trial "$SHARED_ROOT")
  SHARED_HOLDER=$!
  wait::until 30 shared::_has_holder_ended test -s "${dir}/said" || true
  said=$(<"${dir}/said")
  [[ $said != 'held '* ]] || node::ask "$dir" "$(node::list_workers)" shared::_ask "${said#held }"
  exec {end}>&-
  wait "$SHARED_HOLDER" || true
  [[ $said == 'held '* ]] || shared::refuse "$SHARED_ROOT" 'on the head' SHARED_ROOT "$said"
  for node in $(node::list_workers); do shared::need_held "$node" "$SHARED_ROOT" SHARED_ROOT "$(<"${dir}/${node}")"; done
}
SHARED_HOLDER='' # the process that has the head hold the lock

shared::_has_holder_ended() { ! kill -0 "$SHARED_HOLDER" 2>/dev/null; }

# shared::_ask WORKER FILE: what it says of the lock; prints nothing if it does not answer. A connection that it opens and that outlives
# us must not keep the head's stdin open.
shared::_ask() {
  exec {end}>&-
  (node::exec "$1" sh -c "$SHARED_QUESTION" question "$2" "$SHARED_ROOT" 2>/dev/null) || true
}
