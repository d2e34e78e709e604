# lifecycle/container: nodes that are our containers: checked, created and removed with Compose.
# shellcheck shell=bash

# nodes::dashboard_host: the address that Ray's dashboard listens on; compose publishes it only on the host's 127.0.0.1. On a host's
# own network it must not listen on others.
nodes::dashboard_host() { if hosts::are_several; then printf '127.0.0.1\n'; else printf '0.0.0.0\n'; fi; }

# nodes::debugger_host: the address that debugpy listens on; nothing: the node's own, which only this host and the cluster's other nodes
# reach. A host's own network has others, and the port asks for no password.
nodes::debugger_host() { ! hosts::are_several || printf '127.0.0.1\n'; }

# nodes::check: what must be true before anything is changed.
nodes::check() {
  engine::ask # for all checks
  if hosts::are_several; then
    prereq::run prereq::engine prereq::owner hosts::check prereq::node_image -- prereq::disk prereq::shared_root prereq::compose
  else
    prereq::run prereq::engine prereq::owner prereq::port prereq::gpus prereq::node_image prereq::engine_sees -- \
      prereq::disk prereq::memory prereq::shared_root prereq::compose
  fi
}

# nodes::need: what ensure_up requires.
nodes::need() {
  compose::need_image
  hosts::need
}

# nodes::shared_root_here: the path of our shared root on this host, even if it does not exist yet.
nodes::shared_root_here() { printf '%s/shared\n' "$WORKDIR"; }

# nodes::shared_group: the number of SHARED_GROUP; the nodes do not know this host's names.
nodes::shared_group() {
  local gid=$SHARED_GROUP
  [[ $gid =~ ^[0-9]+$ ]] || gid=$(getent group "$gid" | cut -d: -f3) ||
    cli::die 2 "SHARED_GROUP=${SHARED_GROUP} (from ${ENV_ORIGIN[SHARED_GROUP]}) is not a group of this machine: name one, or give its number."
  printf '%s\n' "$gid"
}

# nodes::need_shared_root_here: the shared root of a cluster; of a checkout whose own WORKDIR is not there yet, that it is empty is true.
nodes::need_shared_root_here() {
  [[ -d ${WORKDIR}/shared/jobs || ! -e $WORKDIR && ${ENV_ORIGIN[WORKDIR]} == env/defaults.env ]] ||
    cli::die 2 "${WORKDIR}/shared (from WORKDIR=${WORKDIR}) has no jobs: name the WORKDIR of your cluster."
}

# nodes::shown PATH: a path of the nodes, as the user who typed the command can use it.
nodes::shown() {
  if [[ $1/ == "${SHARED_ROOT}"/* ]]; then
    printf '%s/shared%s\n' "$WORKDIR" "${1#"$SHARED_ROOT"}"
  else
    printf '%s\n' "$1"
  fi
}

# nodes::dashboard_address: where a browser on this host finds the dashboard.
nodes::dashboard_address() {
  if hosts::are_several; then login::dashboard_address; else printf 'http://127.0.0.1:%s\n' "$DASHBOARD_PORT"; fi
}

# nodes::ask_dashboard: the HTTP status with which it answers our token; prints nothing if it does not. Whoever else listens on that
# port would get the token, so the port must be our head's.
nodes::ask_dashboard() {
  local token published
  if hosts::are_several; then
    node::exec head bash -c "$DASHBOARD_ASK" ask 127.0.0.1 8265 /api/version
    return
  fi
  token=$(dashboard::token_file)
  node::exec head true
  published=$(prereq::published_port)
  [[ $published == "127.0.0.1:${DASHBOARD_PORT}" ]] ||
    cli::die 1 "The head of ${CLUSTER_NAME} publishes its dashboard at ${published:-no port}, not at 127.0.0.1:${DASHBOARD_PORT} (DASHBOARD_PORT, from ${ENV_ORIGIN[DASHBOARD_PORT]}): set DASHBOARD_PORT to that port."
  dashboard::need_token
  bash -c "$DASHBOARD_ASK" ask 127.0.0.1 "$DASHBOARD_PORT" /api/version "$token"
}

# nodes::show_forwards FORWARD...: prints the command to type where the user sits: its other end is this host, which reaches all nodes.
# SSH_CONNECTION, if the user is logged in, has the address and port by which they reached this host.
nodes::show_forwards() {
  local argv=() specs=() forward node port words
  if hosts::are_several; then
    login::show_forwards "$@"
    return
  fi
  for forward; do
    IFS=: read -r _ node port <<<"$forward"
    if [[ $node == head ]]; then
      specs+=("${forward%%:*}:127.0.0.1:${DASHBOARD_PORT}")
    else
      specs+=("${forward%%:*}:$(node::address "$node"):${port}")
    fi
  done
  read -r -a words <<<"${SSH_CONNECTION:-}"
  [[ ${words[3]:-22} != 22 ]] || words[3]=''
  login::forward argv "${OWNER_USER}@${words[2]:-$(uname -n)}" "${words[3]}" "${specs[@]}"
  tunnel::as_typed "${argv[@]}"
}

# nodes::owners: the owners of the containers with our names, as ID|USER|WORKDIR, seen when the script started.
nodes::owners() { ((${#_TRANSPORT_OWNERS[@]} == 0)) || printf '%s\n' "${!_TRANSPORT_OWNERS[@]}"; }

nodes::ensure_up() {
  hosts::need_same_file
  if hosts::are_several; then
    ! hosts::are_allocated || hosts::keep
    shared::need_seen
    log::ok "${WORKDIR}/shared is one directory on every host"
    hosts::ensure_images
    hosts::ensure_tokens
  fi
  log::while 'bringing the containers up' -- compose::ensure_up
}

nodes::ensure_down() {
  image::need_engine
  hosts::need_same_file
  log::while 'removing the containers' -- compose::ensure_down
  rm -rf -- "${WORKDIR}/shared/secrets/${CLUSTER_NAME}" # of jobs that are over now
  hosts::need_released
}
