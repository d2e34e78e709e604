# lifecycle/shared: what the shared root must be able to do (docs/shared-root.md), tried in a directory of its own there, which is
# removed again.
# shellcheck shell=bash

# A plain sh gets the directory. It prints "PROBLEM what|why", or "held FILE" and then locks that file until its stdin ends.
# shellcheck disable=SC2016  # expanded where it runs
readonly SHARED_TRIAL='
  export LC_ALL=C
  problem() { echo "PROBLEM $1|${2##*: }"; exit; }
  dir=$(mktemp -d "$1/.verl-regress-XXXXXX" 2>&1) || problem written "$dir"
  trap "cd / && rm -rf \"\$dir\"" EXIT; trap "exit 1" HUP INT TERM # rule-ok: a shell of its own
  cd "$dir" || exit # rule-ok: the same
  said=$( { echo one | cat >a; } 2>&1) && [ -z "$said" ] || problem written "$said"
  said=$(ln a b 2>&1) || problem links "$said"
  [ "$(stat -c %h a)" = 2 ] || problem links "a file with two names counts $(stat -c %h a)"
  said=$( { echo two >c && mv -f c b; } 2>&1) && [ "$(cat b)" = two ] && [ "$(cat a)" = one ] || problem renames "$said"
  [ ! -e A ] || problem case
  chmod 600 a && [ "$(stat -c %a a)" = 600 ] || problem modes "$(stat -c %a a)"
  exec 3<>a
  said=$(flock --nonblock 3 2>&1) || problem locks "$said"
  if (flock --nonblock 4) 4<>a || (flock --shared --nonblock 4) 4<a; then problem excludes; fi
  sh -c "exec 4<>b; flock 4 && kill -s KILL \$\$"
  (flock --timeout 2 4) 4<>b || problem ends
  [ "$(stat -c %u a)" = "$(id -u)" ] || problem owners "$(id -u) $(stat -c %u a)"
  echo "held $dir/a"
  cat >/dev/null'

# What asks on another node for that lock; it prints held, free, or why it cannot tell. Whoever only reads the file may ask, too.
# shellcheck disable=SC2016  # expanded where it runs
readonly SHARED_QUESTION='
  export LC_ALL=C
  exec 4<"$1" && said=$(flock --shared --nonblock 4 2>&1) && echo free && exit
  [ -e "$1" ] && [ -z "$said" ] && echo held || echo "${said##*: }"'

# shared::refuse ROOT WHERE KNOB PROBLEM: ends the script with the sentence for a line of SHARED_TRIAL.
shared::refuse() {
  local root="$1 ($3, from ${ENV_ORIGIN[$3]})" where=$2 what=${4#PROBLEM } why
  why=${what#*|}
  case ${what%%|*} in
    written)
      case $why in
        Read-only*) cli::die 1 "${root} cannot be written to ${where} (${why}): mount it read-write there." ;;
        'No space'* | *quota*) cli::die 1 "${root} cannot be written to ${where} (${why}): free some space and some inodes there." ;;
        *) cli::die 1 "${root} cannot be written to ${where} (${why}): fix its owner or mode." ;;
      esac
      ;;
    links) cli::die 1 "${root} has no hard links ${where} (${why}), which keep a job from being launched twice: put $3 on a file system that has them (a local disk, NFS 4)." ;;
    renames) cli::die 1 "${root} does not replace a file in one step ${where} (${why:-the old one was left}), so readers could see half a file: put $3 on a file system that does (a local disk, NFS 4)." ;;
    case) cli::die 1 "${root} is case-insensitive ${where} ('a' and 'A' are one name), so that jobs and modules of verl can replace each other: put $3 on a case-sensitive file system." ;;
    modes) cli::die 1 "${root} changes mode 600 to ${why} ${where}, so that others could read secrets: put $3 on a file system that keeps modes (a local disk, NFS 4)." ;;
    owners) cli::die 1 "${root} stores the files of user ${why% *} as those of user ${why#* } ${where}, and files of another user are not run: export it without all_squash (for root with no_root_squash), and for NFS 4 give idmapd the same domain everywhere." ;;
    locks) cli::die 1 "${root} has no locks ${where} (${why}), which the queue needs: mount it by NFS 4, or start rpc.statd for NFS 3." ;;
    ends) cli::die 1 "${root} keeps the lock of a process that was killed ${where}, so that a dead launcher would look alive: put $3 on a file system that frees it (a local disk, NFS 4)." ;;
    excludes) cli::die 1 "${root} gives one lock to two processes ${where}: put $3 on a file system whose locks exclude (a local disk, NFS 4)." ;;
    *) cli::die 1 "${root} could not be checked ${where} ('${4:-no output}'): run 'make check' again." ;;
  esac
}

# shared::need ROOT KNOB: this machine's shared root can do all of it. It is tried in the nearest directory that exists. Files that a
# server gives to nobody because we are root are no problem if the nodes are another user.
shared::need() {
  local directory=$1 said
  until [[ -d $directory ]]; do directory=$(dirname -- "$directory"); done
  said=$(sh -c "$SHARED_TRIAL" trial "$directory" </dev/null 2>/dev/null) || true
  [[ $said != 'PROBLEM owners|0 '* || $(engine::owner) == 0 ]] || return 0
  [[ $said == 'held '* ]] || shared::refuse "$directory" 'on this machine' "$2" "$said"
}

# shared::need_on_nodes: the head's can, and each worker sees the lock that the head holds. The head's part ends with its stdin, and then
# removes the file.
shared::need_on_nodes() {
  local dir end said='' node answer
  cli::temp_dir dir
  exec {end}> >(exec >"${dir}/said" 2>/dev/null && node::exec_in head sh -c "$SHARED_TRIAL" trial "$SHARED_ROOT")
  SHARED_HOLDER=$!
  wait::until 30 shared::_has_holder_ended test -s "${dir}/said" || true
  said=$(<"${dir}/said")
  [[ $said != 'held '* ]] || node::ask "$dir" "$(node::list_workers)" shared::_ask "${said#held }"
  exec {end}>&-
  wait "$SHARED_HOLDER" || true
  [[ $said == 'held '* ]] || shared::refuse "$SHARED_ROOT" 'on the head' SHARED_ROOT "$said"
  for node in $(node::list_workers); do
    answer=$(<"${dir}/${node}")
    [[ $answer == held ]] ||
      cli::die 1 "${node} does not see a lock that the head holds in ${SHARED_ROOT} (SHARED_ROOT, from ${ENV_ORIGIN[SHARED_ROOT]}; it says '${answer}'): mount it on every node by NFS 4, without the options nolock and local_lock."
  done
}
SHARED_HOLDER='' # the process that has the head hold the lock

shared::_has_holder_ended() { ! kill -0 "$SHARED_HOLDER" 2>/dev/null; }

# shared::_ask WORKER FILE: what it says of the lock; prints nothing if it does not answer. A connection that it opens and that outlives
# us must not keep the head's stdin open.
shared::_ask() {
  exec {end}>&-
  (node::exec "$1" sh -c "$SHARED_QUESTION" question "$2" 2>/dev/null) || true
}
