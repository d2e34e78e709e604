# lifecycle/ssh: what differs for nodes that we log in to from other nodes that exist already (lifecycle/existing_nodes).
# shellcheck shell=bash

# shellcheck source=scripts/lib/lifecycle/existing_nodes.bash
source "${REPO_DIR}/scripts/lib/lifecycle/existing_nodes.bash"

# nodes::shown PATH: a path of the nodes, as the user who typed the command can use it: it is only on the nodes.
nodes::shown() {
  if [[ $1/ == "${SHARED_ROOT}"/* ]]; then printf 'head:%s\n' "$1"; else printf '%s\n' "$1"; fi
}

nodes::_source() { printf '%s\n' "$NODES_FILE"; }
nodes::_where() { ssh::_target "$1"; }
# shellcheck disable=SC2088  # for a message
nodes::_token_shown() { printf '~/%s\n' "$(ssh::token_path)"; }
nodes::_address_cure() { printf 'set its address with address= in %s\n' "$NODES_FILE"; }
nodes::_leave() { login::disconnect "$1"; }
