# transport/ssh: nodes that exist already and that we log in to. NODES_FILE lists them; how to reach them (keys, known hosts, jump
# hosts) comes from ssh's own configuration, or SSH_CONFIG. An unknown host key is refused, never accepted.
# shellcheck shell=bash

declare -gA _SSH_TARGET=() _SSH_PORT=() _SSH_PATH=() _SSH_ADDRESS=() _SSH_SEEN=()
# Short, because the path of a socket has at most 107 bytes. Only tests set HOST_ROOT.
readonly SSH_SOCKETS="${HOST_ROOT:-}/tmp/verl-regress-${UID}"

# transport::load: reads NODES_FILE, parses its lines and never runs them; sets WORKERS to match. It may be called again.
transport::load() {
  local file=$NODES_FILE line number=0 count
  _SSH_TARGET=()
  [[ $file == /* || -e $file ]] || file="${REPO_DIR}/${NODES_FILE}"
  [[ -f $file && -r $file ]] ||
    cli::die 2 "NODES_FILE=${NODES_FILE} is not a readable file: copy env/nodes.example there and name your nodes in it."
  while IFS= read -r line || [[ -n $line ]]; do
    number=$((number + 1))
    [[ $line =~ ^[[:space:]]*(#|$) ]] || ssh::_take_line "$line" "line ${number} of ${NODES_FILE}"
  done <"$file"
  [[ -v _SSH_TARGET[head] ]] || cli::die 2 "${NODES_FILE} (NODES_FILE) names no head: give it a line 'head user@host'."
  for ((count = 0; count < ${#_SSH_TARGET[@]} - 1; count++)); do
    [[ -v _SSH_TARGET[worker-$count] ]] ||
      cli::die 2 "${NODES_FILE} (NODES_FILE) has no worker-${count} but $((${#_SSH_TARGET[@]} - 1)) workers: number them from worker-0, without a gap."
  done
  ((count > 0)) || cli::die 2 "${NODES_FILE} (NODES_FILE) names no worker: give it a line 'worker-0 user@host'."
  ! env::is_given WORKERS || ((WORKERS == count)) ||
    cli::die 2 "WORKERS=${WORKERS} (from ${ENV_ORIGIN[WORKERS]}) but ${NODES_FILE} names ${count} workers: leave WORKERS out, it follows from that file."
  WORKERS=$count
}

# ssh::_take_line LINE WHERE: NAME [USER@]HOST[:PORT] [path=DIRECTORIES] [address=IP]
ssh::_take_line() {
  local where=$2 words=() name target word
  read -r -a words <<<"$1"
  name=${words[0]} target=${words[1]:-}
  [[ $name =~ ^(head|worker-(0|[1-9][0-9]?))$ ]] || cli::die 2 "'${name}' (${where}) is not a node: use head, worker-0, worker-1, …."
  [[ ! -v _SSH_TARGET[$name] ]] || cli::die 2 "'${name}' (${where}) occurs twice: name each node once."
  [[ $target =~ ^(([A-Za-z0-9_][A-Za-z0-9_.-]*@)?([A-Za-z0-9][A-Za-z0-9_.-]*|\[([0-9A-Fa-f:.]+)\]))(:([1-9][0-9]{0,4}))?$ ]] ||
    cli::die 2 "'${target}' (${where}) is not a login: use user@host or user@host:port."
  _SSH_TARGET[$name]=${BASH_REMATCH[2]}${BASH_REMATCH[4]:-${BASH_REMATCH[3]}} _SSH_PORT[$name]=${BASH_REMATCH[6]}
  for word in "${words[@]:2}"; do
    if [[ $word =~ ^path=(/[A-Za-z0-9_./:+@-]*)$ ]]; then
      _SSH_PATH[$name]=${BASH_REMATCH[1]}
    elif [[ $word =~ ^address=([0-9A-Fa-f.:]+)$ ]]; then
      _SSH_ADDRESS[$name]=${BASH_REMATCH[1]}
    else
      cli::die 2 "'${word}' (${where}) is not a setting of a node: use path=/directory (before PATH there) or address=IP (by which the other nodes reach it)."
    fi
  done
}

transport::exec() { transport::exec_in "$@"; }

# ssh's own messages go to a file: so stderr is only the command's, and its exit status 255 can be distinguished from ssh's.
transport::exec_in() {
  local node=$1 said="${SSH_SOCKETS}/${BASHPID}.said" status=0
  transport::_need "$node"
  ssh::_client "$node" -E "$said" -- "$(ssh::_command "$@")" || status=$?
  if ((status == 255)) && { [[ -s $said ]] || ! ssh::_is_connected "$node"; }; then
    cli::die 8 "The connection to the node '${node}' ($(ssh::_target "$node")) was lost while '${2}' ran there ($(ssh::_last_words "$said")): check the node, then run this again."
  fi
  rm -f -- "$said"
  return "$status"
}

# The last of -T and -t counts.
transport::exec_tty() {
  transport::_need "$1"
  ssh::_client "$1" -t -- "$(ssh::_command "$@")"
}

transport::is_alive() {
  local said="${SSH_SOCKETS}/${BASHPID}.said" status=0
  ssh::_connect "$1" "$said" || status=$?
  rm -f -- "$said"
  return "$status"
}

# transport::address NODE: address= of NODES_FILE, or the address of the node at the other end of our connection.
transport::address() { transport::exec "$1" printenv VERL_REGRESS_NODE_IP; }

# ssh::disconnect NODE: closes the connection that is kept open for the next script.
ssh::disconnect() { ssh::_client "$1" -O exit >/dev/null 2>&1 || true; }

# Says in one sentence why a node cannot be reached; checked once for each node and script, then remembered.
transport::_need() {
  local said="${SSH_SOCKETS}/${BASHPID}.said"
  [[ -z ${_SSH_SEEN[$1]:-} ]] || return 0
  transport::_need_listed "$1"
  ssh::_connect "$1" "$said" ||
    cli::die 8 "The node '$1' ($(ssh::_target "$1")) cannot be reached ($(ssh::_last_words "$said")): 'ssh $(ssh::_target_alone "$1") true' must work without a prompt; fix that first."
  rm -f -- "$said"
  _SSH_SEEN[$1]=1
}

transport::_need_listed() {
  [[ -v _SSH_TARGET[$1] ]] || cli::die 2 "The node '$1' is not in ${NODES_FILE} (NODES_FILE): give it a line there."
}

# All commands share one connection for each node; it closes five minutes after the last one.
ssh::_connect() {
  mkdir -m 700 -- "$SSH_SOCKETS" 2>/dev/null || [[ -d $SSH_SOCKETS && ! -L $SSH_SOCKETS && -O $SSH_SOCKETS ]] ||
    cli::die 1 "${SSH_SOCKETS}, where connections are kept, belongs to another user: have it removed."
  ssh::_is_connected "$1" || (
    # The connection outlives this script, and would keep our locks if it inherited them.
    [[ -z ${CLUSTER_LOCK:-} ]] || exec {CLUSTER_LOCK}>&-
    ssh::_client "$1" -E "$2" -M -o ControlPersist=300 -N -f </dev/null >/dev/null 2>&1
  )
}

ssh::_is_connected() { ssh::_client "$1" -O check >/dev/null 2>&1; }

# ssh::_client NODE ARGS...: non-interactive: no questions, no terminal, none of our keys forwarded.
ssh::_client() {
  local node=$1 options=()
  shift
  [[ -z $SSH_CONFIG ]] || options+=(-F "$SSH_CONFIG")
  [[ -z ${_SSH_PORT[$node]} ]] || options+=(-p "${_SSH_PORT[$node]}")
  ssh "${options[@]}" -T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 -o LogLevel=ERROR \
    -o ForwardAgent=no -o ForwardX11=no -o ClearAllForwardings=yes -o RemoteCommand=none -o ControlMaster=no \
    -o ControlPath="${SSH_SOCKETS}/%C" "${_SSH_TARGET[$node]}" "$@"
}

# ssh::forward ARRAY NODE LOCAL:HOST:PORT...: the argv that forwards ports of this host, as a user can type it.
ssh::forward() {
  local -n _argv=$1
  local node=$2 spec
  shift 2
  transport::_need_listed "$node"
  _argv=(ssh -N)
  [[ -z $SSH_CONFIG ]] || _argv+=(-F "$SSH_CONFIG")
  [[ -z $TUNNEL_VIA ]] || _argv+=(-J "$TUNNEL_VIA")
  [[ -z ${_SSH_PORT[$node]} ]] || _argv+=(-p "${_SSH_PORT[$node]}")
  for spec; do _argv+=(-L "$spec"); done
  _argv+=("${_SSH_TARGET[$node]}")
}

# ssh::hold NODE LOCAL:HOST:PORT...: runs it until it ends: if ssh cannot listen, or if the node is gone. It never asks.
ssh::hold() {
  local argv=()
  ssh::forward argv "$@"
  "${argv[0]}" -T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 -o LogLevel=ERROR -o ExitOnForwardFailure=yes \
    -o GatewayPorts=no -o ForwardAgent=no -o ForwardX11=no -o RemoteCommand=none -o ControlMaster=no -o ControlPath=none "${argv[@]:1}"
}

# ssh::_command NODE ARGV...: the one string that sshd passes to the login shell, whichever it is: sh, csh and fish read it the same
# way. It unpacks to plain sh, which gives the command its environment, as compose does in our own containers.
ssh::_command() {
  local node=$1 script word single=\' escaped="'\\''"
  shift
  script="export SHARED_ROOT='${SHARED_ROOT}' RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=\"\$HOME/$(ssh::token_path)\" RAY_USAGE_STATS_ENABLED=0
set -- \$SSH_CONNECTION
export VERL_REGRESS_NODE_IP=\"${_SSH_ADDRESS[$node]:-\$3}\" PATH=\"${_SSH_PATH[$node]:+${_SSH_PATH[$node]}:}\$PATH\"
(exec"
  for word in "$@"; do script+=" '${word//$single/$escaped}'"; done
  # shellcheck disable=SC2016  # expanded on the node
  printf 'exec sh -c '\''script=$(printf %%s %s | base64 -d) && eval "$script"'\' "$(printf '%s)\nexit "$?"\n' "$script" | base64 | tr -d '\n')"
}

# ssh::token_path: Ray's token on a node, under the HOME there.
ssh::token_path() { printf '.verl-regress/%s.token\n' "$CLUSTER_NAME"; }

ssh::_target_alone() { printf '%s%s\n' "${_SSH_PORT[$1]:+-p ${_SSH_PORT[$1]} }" "${_SSH_TARGET[$1]}"; }
ssh::_target() { printf '%s, from %s\n' "${_SSH_TARGET[$1]}${_SSH_PORT[$1]:+:${_SSH_PORT[$1]}}" "$NODES_FILE"; }

# ssh::_last_words FILE: ssh's last line, without a full stop and a carriage return at its end.
ssh::_last_words() {
  local words
  words=$(tail -n 1 -- "$1" 2>/dev/null | tr -d '\r')
  words=${words%.}
  printf '%s\n' "${words:-ssh says nothing}"
  rm -f -- "$1"
}

transport::identity() { transport::exec "$1" hostname; }

transport::image() { :; }
