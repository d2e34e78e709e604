# node: the seam "run this over there". Nodes are named head, worker-0 … worker-N-1; commands are argv arrays.
# How a node is reached is scripts/lib/transport/${TRANSPORT}.bash, which defines the transport:: half of each verb.
# shellcheck shell=bash

# node::choose: sources the transport and the lifecycle that TRANSPORT names. Knobs that the user left out may follow from the transport.
node::choose() {
  # shellcheck disable=SC1090  # chosen by the knob TRANSPORT, checked by env::load
  source "${REPO_DIR}/scripts/lib/transport/${TRANSPORT}.bash"
  # shellcheck disable=SC1090  # the same
  source "${REPO_DIR}/scripts/lib/lifecycle/${TRANSPORT}.bash"
  ! node::_has set_knobs || transport::set_knobs
}

# node::_has VERB: the transport defines this verb, which not all need.
node::_has() { declare -F "transport::$1" >/dev/null; }

# node::list: the nodes that this cluster should have, head first, one per line.
node::list() {
  printf 'head\n'
  node::list_workers
}

node::list_workers() {
  local i
  for ((i = 0; i < WORKERS; i++)); do printf 'worker-%d\n' "$i"; done
}

# node::read_list KNOB NOUN LOGIN KNOWN TAKE: reads the file that KNOB names, a node a line: parses its lines and never runs them. `TAKE
# WHERE NAME WORD...` puts a node into the array KNOWN, by name. Sets WORKERS to match. NOUN (nodes, hosts) and LOGIN are for messages.
node::read_list() {
  local file=${!1} noun=$2 login=$3 take=$5 words where node number=0 count
  local -n _known=$4
  [[ -f $file && -r $file ]] ||
    cli::die 2 "$1=${!1} is not a readable file: copy env/${noun}.example there and name your ${noun} in it."
  while read -r -a words || ((${#words[@]} > 0)); do
    number=$((number + 1))
    where="line ${number} of ${!1}"
    [[ ${words[0]:-#} != '#'* ]] || continue
    [[ ${words[0]} =~ ^(head|worker-(0|[1-9][0-9]?))$ && ! -v _known[${words[0]}] ]] ||
      cli::die 2 "'${words[0]}' (${where}) is not a node, or occurs twice: name head, worker-0, worker-1, … once each."
    "$take" "$where" "${words[@]}"
  done <"$file"
  count=$((${#_known[@]} > 1 ? ${#_known[@]} - 1 : 1))
  for node in head $(seq -f 'worker-%.0f' 0 $((count - 1))); do
    [[ -v _known[$node] ]] ||
      cli::die 2 "${!1} ($1) has no line '${node} ${login}': name the head, and its workers from worker-0 on, without a gap."
  done
  ! env::is_given WORKERS || ((WORKERS == count)) ||
    cli::die 2 "WORKERS=${WORKERS} (from ${ENV_ORIGIN[WORKERS]}) but ${!1} names ${count} workers: leave WORKERS out, because that file decides."
  WORKERS=$count
}

# node::ask_all DIR COMMAND ARG...: node::ask for all nodes.
node::ask_all() { node::ask "$1" "$(node::list)" "${@:2}"; }

# node::ask DIR NODES COMMAND ARG...: runs COMMAND NODE ARG... for each word of NODES, all at once, so that the slowest decides, not the
# sum. Writes what each prints to DIR/NODE. If it fails for a node, which says why, the script ends with that status once all are done.
node::ask() {
  local dir=$1 nodes=$2 command=$3 node pid pids=() failed=0
  shift 3
  for node in $nodes; do
    "$command" "$node" "$@" </dev/null >"${dir}/${node}" &
    pids+=("$!")
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=$((failed ? failed : $?)); done
  ((failed == 0)) || exit "$failed"
}

# node::exec NODE ARGV...: runs the words unchanged, with the command's output and exit status. No stdin.
node::exec() { transport::exec "$@" </dev/null; }

# node::exec_in NODE ARGV...: the same, with our stdin.
node::exec_in() { transport::exec_in "$@"; }

# node::put NODE LOCAL_DIR REMOTE_DIR [PATH...]: copies the content of LOCAL_DIR, or only these paths in it, into REMOTE_DIR, which must
# not exist yet; it appears complete or not at all, and only its owner can change it. Caches of Python and of its tools stay here.
node::put() {
  local node=$1 from=$2 to=$3
  shift 3
  (($#)) || set -- .
  # shellcheck disable=SC2016  # expanded on the node
  tar -C "$from" --owner=0 --group=0 --mode=go-w --exclude=__pycache__ --exclude='.*_cache' -c "$@" |
    node::exec_in "$node" sh -c '
      set -e; umask g-w,o-w; tmp="$1.$$.tmp"; mkdir -p "$tmp"
      tar -C "$tmp" --no-same-owner --no-same-permissions -x || { rm -rf "$tmp"; exit 1; }
      mv -T "$tmp" "$1" 2>/dev/null || { rm -rf "$tmp"; test -d "$1"; }' put "$to"
}

# node::get NODE REMOTE_DIR: prints a tar stream of that directory on stdout.
node::get() { node::exec "$1" tar -C "$2" -c .; }

# node::spawn NODE LOG ARGV...: starts a command that continues after us, with its output in LOG and its exit status in LOG.exit.
node::spawn() {
  local node=$1 log=$2
  if node::_has spawn; then
    transport::spawn "$@"
    return
  fi
  shift 2
  # shellcheck disable=SC2016  # expanded on the node
  node::exec "$node" sh -c '
    log=$1; shift; mkdir -p "${log%/*}"; rm -f "$log.exit"
    (setsid "$@" >"$log" 2>&1; echo $? >"$log.exit") >/dev/null 2>&1 </dev/null &' spawn "$log" "$@"
}

# node::is_alive NODE: can we run a command there?
node::is_alive() { transport::is_alive "$1"; }

# node::need_address address=ADDRESS WHERE: ends the script unless other machines can use it; WHERE is the line that has it.
node::need_address() {
  node::is_reachable "${1#*=}" ||
    cli::die 2 "'$1' ($2) is no IP address that other machines can use: write the one by which they reach this one, without zeros in front of a number."
}

# node::is_reachable ADDRESS: other machines can use it: not the loopback's, nor an IPv6 one that needs the name of an interface. Ray asks
# Python, which refuses IPv4 with zeros in front of a number.
node::is_reachable() {
  local number='(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])'
  if [[ $1 == *:* ]]; then
    [[ $1 != *%* ]] && python3 -Ic 'import ipaddress, sys
address = ipaddress.IPv6Address(sys.argv[1])
sys.exit(address.is_loopback or address.is_unspecified or address.is_link_local)' "$1" 2>/dev/null
  else
    [[ $1 =~ ^${number}(\.${number}){3}$ && ! $1 =~ ^(127|0)\. ]]
  fi
}

# node::address NODE: the IP that the other nodes use to reach it.
node::address() { transport::address "$1" </dev/null; }

# node::ray_directory: where Ray has its own directory `ray` on every node, with its sockets and logs: the workers' RAY_TMPDIR or TMPDIR if
# the user exports one to them (env/local.env), else /tmp. Ray takes the head's for all nodes, whatever the others have.
node::ray_directory() {
  if node::_has ray_directory; then transport::ray_directory; else node::ray_base; fi
}

node::ray_base() { printf '%s\n' "${ENV_OF_WORKERS[RAY_TMPDIR]:-${ENV_OF_WORKERS[TMPDIR]:-/tmp}}"; }

# node::check_ray_directory: Ray can make its sockets there.
node::check_ray_directory() {
  local directory
  directory=$(node::ray_directory)
  [[ $directory == /* && ${#directory} -le $NODE_RAY_DIRECTORY ]] ||
    cli::die 2 "Ray's directory would be '$(cli::shown "$directory")' (RAY_TMPDIR or TMPDIR, exported by env/local.env or env/${PROFILE}.env): use an absolute path of at most ${NODE_RAY_DIRECTORY} characters, because the path of a socket in it has at most 107 bytes."
}
# Ray (2.60) makes <directory>/ray/session_<26 characters>_<pid>/sockets/plasma_store.
readonly NODE_RAY_DIRECTORY=39

# node::image NODE: the digest of the image that it runs; nothing where the transport does not know one.
node::image() { ! node::_has image || transport::image "$1"; }
