# lifecycle/existing_nodes: nodes that exist already, however they are reached. We check them and give them Ray's token, and leave
# everything as it was except what we started there. lifecycle/ssh and lifecycle/srun add what differs:
# nodes::_source (what lists the nodes), nodes::_where NODE, nodes::_address_cure, nodes::_token_shown,
# nodes::_leave NODE (after Ray has ended there), nodes::shown; and in the transport existing_nodes::need_all (every node can be
# reached). LOGIN_TARGET has how a user reaches each node by ssh.
# shellcheck shell=bash

# existing_nodes::command NODE ARGV...: the one string for a shell there, of which the command is a child: the shell ends with its exit status
# also if a signal ended it.
existing_nodes::command() {
  local script='set --' word
  for word in "${@:2}"; do script+=" $(login::quoted "$word")"; done
  login::packed "${script}"$'\n('"$(environment::of_node "$1")"$')\nexit "$?"\n'
}

# nodes::dashboard_host: the address that Ray's dashboard listens on: not the network, because nothing protects it there.
nodes::dashboard_host() { printf '127.0.0.1\n'; }

# nodes::debugger_host: the address that debugpy listens on: not the network, because it asks for no password.
nodes::debugger_host() { printf '127.0.0.1\n'; }

# Nothing on a node listens on the network for us, so ports must be forwarded.
nodes::dashboard_address() { login::dashboard_address; }
nodes::show_forwards() { login::show_forwards "$@"; }

# nodes::ask_dashboard: the HTTP status with which it answers the head with the head's token; prints nothing if it does not.
nodes::ask_dashboard() { node::exec head bash -c "$DASHBOARD_ASK" ask 127.0.0.1 8265 /api/version; }

nodes::check() {
  prereq::run nodes::need prereq::owner nodes::_check_ray nodes::_check_addresses nodes::_check_token_place
}

nodes::need() {
  log::while 'connecting to the nodes' -- existing_nodes::need_all
  log::ok "$(node::list | wc -l) nodes answer: $(node::list | paste -sd' ') (from $(nodes::_source))"
}

# nodes::shared_root_here: prints nothing, because it is only on the nodes.
nodes::shared_root_here() { :; }

# nodes::shared_group: SHARED_GROUP, as the nodes know it.
nodes::shared_group() { printf '%s\n' "$SHARED_GROUP"; }

nodes::need_shared_root_here() {
  cli::die 8 "None of the nodes in $(nodes::_source) can be reached, or has the helper that 'scripts/12_install_py_deps.sh' copies there, and the jobs are on their shared root: fix that first."
}

# nodes::owners [NODE...]: the owners of this cluster on those nodes (default: all), as ID|USER|WORKDIR, from the file next to Ray's
# token; prints nothing for a node that does not answer.
nodes::owners() {
  local owners
  # shellcheck disable=SC2046  # names, one word each
  (($#)) || set -- $(node::list)
  cli::temp_dir owners
  node::ask "$owners" "$*" nodes::_owner
  cat -- "$owners"/*
}

nodes::_owner() {
  # shellcheck disable=SC2016  # expanded on the node
  ! node::is_alive "$1" || (node::exec "$1" sh -c '
    file=${RAY_AUTH_TOKEN_PATH%.token}.owner
    [ ! -f "$file" ] || cat "$file"' owner) || true
}

# nodes::ensure_up: every node has this cluster's token, only for its user and outside the shared root, and next to it the owner.
nodes::ensure_up() {
  local node states
  owner::need_own
  cli::temp_dir states
  node::ask_all "$states" nodes::_put_token
  for node in $(node::list); do
    [[ $(<"${states}/${node}") == same ]] || log::changed "${node}: put Ray's token at $(nodes::_token_shown) (mode 600)"
  done
  log::ok "nodes: $(node::list | paste -sd' ')"
}

# nodes::_put_token NODE: prints same if the node had it.
nodes::_put_token() {
  # shellcheck disable=SC2016  # expanded on the node; the token itself comes on stdin
  node::exec_in "$1" sh -c '
    set -e; umask 077; file=$RAY_AUTH_TOKEN_PATH; token=$(cat)
    mkdir -p "${file%/*}"; chmod 700 "${file%/*}"
    printf "%s\n" "$1" >"${file%.token}.owner"
    [ ! -f "$file" ] || [ "$(cat "$file")" != "$token" ] || { chmod 600 "$file"; echo same; exit; }
    printf %s "$token" >"$file.tmp"; mv "$file.tmp" "$file"; echo put' token "${OWNER_ID}|${OWNER_USER}|${WORKDIR}" \
    <"${WORKDIR}/secrets/${CLUSTER_NAME}.token"
}

# nodes::ensure_down: nothing that we started runs on any node, and the token is removed. If a node does not answer, the others are
# still cleaned up.
nodes::ensure_down() {
  local node stopped report lost=()
  owner::need_own
  job::need_idle "Taking ${CLUSTER_NAME} down" "wait for them, stop them ('make stop JOB=…')"
  # Ray takes some seconds to stop, so all nodes are cleaned up at once.
  cli::temp_dir report
  log::while 'ending Ray on the nodes' -- node::ask_all "$report" nodes::_release_if_reached
  for node in $(node::list); do
    stopped=$(<"${report}/${node}")
    [[ -n $stopped ]] || lost+=("$node")
    ((${stopped:-0} == 0)) || log::changed "${node}: stopped Ray (${stopped} processes)"
  done
  ((${#lost[@]} == 0)) ||
    cli::die 8 "Ray may still run on ${lost[*]} (from $(nodes::_source)): run 'make down' again when they answer."
  ((LOG_CHANGES > 0)) || log::skip "no Ray of ${CLUSTER_NAME} runs on $(node::list | paste -sd' ')"
}

# nodes::_release_if_reached NODE: prints how many processes there were; prints nothing if the node does not answer, or Ray does not end.
nodes::_release_if_reached() { (nodes::_release "$1") || true; }

nodes::_release() {
  local stopped
  stopped=$(cluster::stop_ray "$1") || return # errexit is off before `||`
  # shellcheck disable=SC2016  # expanded on the node
  node::exec "$1" sh -c '
    rm -rf "$RAY_AUTH_TOKEN_PATH" "${RAY_AUTH_TOKEN_PATH%.token}.owner" "$1"
    rmdir "${RAY_AUTH_TOKEN_PATH%/*}" 2>/dev/null || true' release "${SHARED_ROOT}/secrets/${CLUSTER_NAME}" || return
  nodes::_leave "$1" || return
  printf '%s\n' "$stopped"
}

# Only Ray's token auth protects the nodes from the network: CVE-2025-62593 is fixed in 2.52, CVE-2026-27482 in 2.54.
nodes::_check_ray() {
  local node version older answers said old=()
  cli::temp_dir answers
  node::ask_all "$answers" nodes::_ask_ray
  for node in $(node::list); do
    read -r version older <"${answers}/${node}"
    [[ -z $older ]] || old+=("${node} has Ray ${version}")
  done
  said=$(printf '%s, ' "${old[@]}")
  ((${#old[@]} == 0)) ||
    cli::die 1 "${said%, }, which CVE-2026-27482 leaves open to others (fixed in 2.54): install Ray 2.54 or later on every node."
  log::ok 'every node has Ray 2.54 or later'
}

nodes::_ask_ray() {
  cluster::ask_host "$1" ray 2.54 ||
    cli::die 1 "python3 on $1 ($(nodes::_where "$1")) is missing or has no Ray (the message is above): name the right one's directory (path= in NODES_FILE, or NODES_PATH)."
}

nodes::_check_addresses() {
  local node address answers seen=' '
  cli::temp_dir answers
  node::ask_all "$answers" node::address
  for node in $(node::list); do
    address=$(<"${answers}/${node}")
    prereq::try nodes::_check_address "$node" "$address" "$seen"
    seen+="${address} "
  done
  ((PREREQ_FAILED > 0)) || log::ok "every node has an address of its own:${seen% }"
}

# nodes::_check_address NODE ADDRESS SEEN: SEEN has those of the nodes before it.
nodes::_check_address() {
  node::is_reachable "$2" ||
    cli::die 1 "$1 has the address '$2' in its own view, which no other node can reach: $(nodes::_address_cure)."
  [[ $3 != *" $2 "* ]] ||
    cli::die 1 "$1 has the same address as another node of $(nodes::_source), $2, but two nodes in one network namespace are not supported: remove one of them there."
}

nodes::_check_token_place() {
  # shellcheck disable=SC2016  # expanded on the node
  node::exec head sh -c 'case $RAY_AUTH_TOKEN_PATH in "$1"/*) exit 1 ;; esac' token "$SHARED_ROOT" ||
    cli::die 1 "$(nodes::_token_shown) on the head is on ${SHARED_ROOT} (SHARED_ROOT), where Ray's token must not be: log in as another user, or set another SHARED_ROOT."
  log::ok "Ray's token will not be on ${SHARED_ROOT}"
}
