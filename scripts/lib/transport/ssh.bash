# transport/ssh: nodes that exist already and that we log in to. NODES_FILE lists them; how to reach them (keys, known hosts, jump
# hosts) comes from ssh's own configuration, or SSH_CONFIG. An unknown host key is refused, never accepted.
# shellcheck shell=bash

declare -gA _SSH_PATH=() _SSH_ADDRESS=()

# transport::load: reads NODES_FILE; sets WORKERS to match. It may be called again.
transport::load() {
  # shellcheck disable=SC2034  # of scripts/lib/lifecycle/login.bash
  LOGIN_TARGET=() LOGIN_PORT=()
  node::read_list NODES_FILE nodes user@host LOGIN_TARGET ssh::_take_line
}

# ssh::_take_line WHERE NAME [USER@]HOST[:PORT] [path=DIRECTORIES] [address=IP]
ssh::_take_line() {
  local where=$1 name=$2 target=${3:-} word
  # shellcheck disable=SC2153  # of scripts/lib/lifecycle/login.bash
  [[ $target =~ $LOGIN_FORM ]] || cli::die 2 "'${target}' (${where}) is not a login: use user@host or user@host:port."
  login::take "$name" "$target"
  for word in "${@:4}"; do
    if [[ $word =~ ^path=(/[A-Za-z0-9_./:+@-]*)$ ]]; then
      _SSH_PATH[$name]=${BASH_REMATCH[1]}
    elif [[ $word == address=* ]]; then
      node::need_address "$word" "$where"
      _SSH_ADDRESS[$name]=${word#*=}
    else
      cli::die 2 "'${word}' (${where}) is not a setting of a node: use path=/directory (before PATH there) or address=IP (by which the other nodes reach it)."
    fi
  done
}

transport::exec() { transport::exec_in "$@"; }

# ssh's own messages go to a file: so stderr is only the command's, and its exit status 255 can be distinguished from ssh's.
transport::exec_in() {
  local node=$1 said="${LOGIN_FILES}/${BASHPID}.said" status=0
  transport::_need "$node"
  login::run "${said}.unmarked" login::client "$node" -E "$said" -- "$(existing_nodes::command "$@")" || status=$?
  if ((status == 255)) && { [[ -s $said ]] || ! login::is_connected "$node"; }; then
    cli::die 8 "The connection to the node '${node}' ($(ssh::_target "$node")) was lost while '${2}' ran there ($(login::last_words "$said")): check the node, then run this again."
  fi
  login::need_mark "${said}.unmarked" "the node '${node}' ($(ssh::_target "$node"))" "$status"
  rm -f -- "$said"
  return "$status"
}

transport::is_alive() { login::connect "$1" /dev/null; }

# transport::address NODE: address= of NODES_FILE, or the address of the node at the other end of our connection.
transport::address() { transport::exec "$1" printenv VERL_REGRESS_NODE_IP; }

# transport::peers: the hosts of NODES_FILE, and address= of its lines. An alias of ssh_config means nothing on a node.
transport::peers() { printf '%s\n' "${LOGIN_TARGET[@]##*@}" "${_SSH_ADDRESS[@]}"; }

transport::_need() { login::need "$1" "The node '$1' ($(ssh::_target "$1"))"; }

# existing_nodes::need_all: connects to all nodes at once, the head first: what is wrong is often wrong for all of them.
existing_nodes::need_all() {
  local answers
  transport::_need head
  cli::temp_dir answers
  node::ask "$answers" "$(node::list_workers)" transport::_need
}

# transport::environment NODE: the lines of sh that put what is this node's own into the environment of a command.
transport::environment() {
  printf '%s\n' "set -- SHARED_ROOT='${SHARED_ROOT}' RAY_AUTH_TOKEN_PATH=\"\$HOME/$(ssh::token_path)\" \"\$@\"
address='${_SSH_ADDRESS[$1]:-}'
[ -n \"\$address\" ] || { address=\${SSH_CONNECTION% *}; address=\${address##* }; }
set -- VERL_REGRESS_NODE_IP=\"\$address\" PATH=\"${_SSH_PATH[$1]:+${_SSH_PATH[$1]}:}\$PATH\" \"\$@\""
}

# ssh::token_path: Ray's token on a node, under the HOME there.
ssh::token_path() { printf '.verl-regress/%s.token\n' "$CLUSTER_NAME"; }

ssh::_target() { printf '%s, from %s\n' "$(login::shown "$1")" "$NODES_FILE"; }
