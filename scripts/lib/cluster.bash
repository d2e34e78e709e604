# cluster: Ray on the nodes. It starts detached, with its output on the shared root; then we wait until it is ready.
# shellcheck shell=bash

# Ray gives each process its AMD GPU only through HIP_VISIBLE_DEVICES. verl (0.7 to 0.9) refuses a ROCR_VISIBLE_DEVICES next to it and a
# CUDA_VISIBLE_DEVICES that differs, and ROCm counts HIP's ids within ROCR's: of 4-7, none would be left.
readonly CLUSTER_ROCM_UNSET=(ROCR_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES)

# cluster::lock: only one script at a time changes this cluster; the lock is released when the process ends. Who has it writes its name into
# the file, which only who waits for it reads. After waiting, the script reads the list of nodes again, because it may have changed.
cluster::lock() {
  local file="${WORKDIR}/locks/${CLUSTER_NAME}" holder=''
  owner::need_workdir
  mkdir -p "${WORKDIR}/locks"
  exec {CLUSTER_LOCK}>>"$file"
  if ! flock --nonblock "$CLUSTER_LOCK"; then
    read -r holder <"$file" || holder='another script'
    log::info "waiting for ${holder}, which is changing the cluster ${CLUSTER_NAME}"
    log::while "waiting for ${holder}" -- flock --wait "$CLUSTER_TIMEOUT" "$CLUSTER_LOCK" ||
      cli::die 1 "${holder} has been changing the cluster ${CLUSTER_NAME} for ${CLUSTER_TIMEOUT} s (lock ${file}): wait for it to end, or end it there; or raise CLUSTER_TIMEOUT."
    transport::load
  fi
  printf '%s of user %s (pid %d on %s, since %s)\n' "${CLI_NAME%.sh}" "$OWNER_USER" "$$" "$HOSTNAME" "$(date -u +%FT%TZ)" >"$file"
}

# cluster::ensure_directories: the directories that are mounted or kept next to them, created by this user before any container.
cluster::ensure_directories() {
  owner::need_workdir
  mkdir -p "${WORKDIR}/shared" "${WORKDIR}/cache" "${WORKDIR}/secrets"
  chmod 700 "${WORKDIR}/secrets"
  [[ -e ${WORKDIR}/id ]] || owner::need_own # a cluster that runs may have an id that was lost
  owner::ensure_id
  # shellcheck disable=SC2034  # for cluster_knobs::describe
  [[ -n $RUN_AS ]] || ENV_ORIGIN[RUN_AS]='the owner of WORKDIR'
  RUN_AS=$(engine::user)
  export RUN_AS
}

# cluster::ensure_token: Ray's token for this cluster, readable only by its owner; never an argument, never printed. A Ray that runs keeps
# the token that it was started with, so a file that was lost is written again from a node.
cluster::ensure_token() {
  local file="${WORKDIR}/secrets/${CLUSTER_NAME}.token" how
  if [[ ! -s $file ]]; then
    how=$(
      umask 077
      cluster::_write_token "${file}.tmp"
      mv "${file}.tmp" "$file"
    )
    log::changed "${how} (${file}, mode 600)"
  fi
  chmod 600 "$file"
  [[ $(id -u) -ne 0 ]] || chown --reference="$WORKDIR" "${WORKDIR}/secrets" "$file" "${WORKDIR}/cache"
  # What SHARED_GROUP shares is not given to the owner of this WORKDIR, unless it was made just now.
  [[ $(id -u) -ne 0 || -n $SHARED_GROUP && -n $(ls -A "${WORKDIR}/shared/") ]] || chown --reference="$WORKDIR" "${WORKDIR}/shared"
}

# cluster::_write_token FILE: says how: with the token of a node that has one, or a new one.
cluster::_write_token() {
  local node
  owner::need_own
  for node in $(node::list); do
    node::is_alive "$node" || continue
    # shellcheck disable=SC2016  # expanded on the node
    node::exec "$node" sh -c 'cat -- "$RAY_AUTH_TOKEN_PATH"' >"$1" 2>/dev/null || true
    if grep -qxE '[0-9a-f]{64}' -- "$1"; then
      printf "wrote Ray's token for %s again, as %s has it\n" "$CLUSTER_NAME" "$node"
      return
    fi
  done
  head -c 32 /dev/urandom | od -An -vtx1 | tr -d ' \n' >"$1"
  printf "made Ray's token for %s\n" "$CLUSTER_NAME"
}

# cluster::ensure_head: Ray runs on the head or is starting there. This does not wait for it: the workers wait for a GCS that is not
# there yet, and await_ready waits for all of them.
cluster::ensure_head() {
  local running changed
  running=$(cluster::_running head)
  if cluster::_has "$running" ray-start; then
    log::ok "head: Ray is being started"
    return
  fi
  # A dead part of Ray is not restarted, and without one of these a head is useless.
  if cluster::_has "$running" gcs_server raylet dashboard.py; then
    changed=$(cluster_knobs::changed ray GCS_PORT)
    [[ -z $changed ]] ||
      cli::die 2 "$(cluster_knobs::describe "$changed"), and Ray runs with the old port: give ${changed} again, or run 'make down up'."
    log::ok "head: Ray runs, with the GCS on port ${GCS_PORT}"
    return
  fi
  cluster::_need_token_auth
  cluster::_start head --head --port="$GCS_PORT" --dashboard-host="$(nodes::dashboard_host)" --dashboard-port=8265 \
    --num-cpus=0 --num-gpus=0
  cluster_knobs::keep ray GCS_PORT OBJECT_STORE_BYTES
  log::changed "head: Ray started"
}

# cluster::ensure_workers: starts all workers that are not in the cluster, all at once. If a worker has a Ray, waits until Ray says whether
# it is ALIVE: a restart would end a job that it may be running.
cluster::ensure_workers() {
  local worker address at dir alive='' starting=()
  address=$(node::address head)
  [[ $address != *:* ]] || address="[${address}]" # as Ray wants an IPv6 before a port
  address+=":${GCS_PORT}"
  cli::temp_dir dir
  node::ask "$dir" "$(node::list_workers)" cluster::_running
  # The nodes that joined with their latest start, as name=address, as soon as Ray's API lists them.
  ! grep -qr ' raylet ' "$dir" || alive=$(log::while 'waiting for Ray to list its nodes' -- \
    helper::run head nodes --log-dir "$(cluster::_log_dir)" --deadline "$CLUSTER_TIMEOUT")
  for worker in $(node::list_workers); do
    at=$(node::address "$worker") # not within `if`: that it cannot be asked must end this
    if cluster::_has "$(<"${dir}/${worker}")" raylet && grep -qxF "${worker}=${at}" <<<"$alive"; then
      log::ok "${worker}: Ray is ALIVE in this cluster"
    else
      log::changed "${worker}: Ray starting"
      starting+=("$worker")
    fi
  done
  node::ask "$dir" "${starting[*]}" cluster::_start_worker "$address"
}

# cluster::await_ready: waits until Ray lists the head and every worker as ALIVE; prints the nodes.
cluster::await_ready() {
  local node nodes=() gpus=() unlisted answers
  cli::temp_dir answers
  node::ask_all "$answers" node::address
  for node in $(node::list); do nodes+=("${node}=$(<"${answers}/${node}")"); done
  [[ -n $WORKER_GPUS ]] || gpus=(--worker-gpus "$GPUS_PER_WORKER") # what Ray must have counted on a worker
  unlisted=$(helper::run head await-nodes --deadline "$CLUSTER_TIMEOUT" --log-dir "$(cluster::_log_dir)" --gcs-port "$GCS_PORT" \
    "${gpus[@]}" "${nodes[@]}")
  [[ -z $unlisted ]] ||
    log::while "listing the packages of ${unlisted//$'\n'/ }" -- node::ask "$answers" "$unlisted" cluster::_list_packages
}

# cluster::_list_packages NODE: if the list cannot be written, this reports the reason, and `make submit` the node.
cluster::_list_packages() { helper::run "$1" list-packages --cluster "$CLUSTER_NAME" --node "$1" || true; }

# cluster::tell_unused_knobs: a running Ray keeps the values that it was started with.
cluster::tell_unused_knobs() {
  local what changed=()
  mapfile -t changed < <(for what in ray $(node::list_workers); do cluster_knobs::changed "$what"; done | sort -u)
  ((${#changed[@]} == 0)) ||
    log::warn "$(cluster_knobs::describe "${changed[@]}"): Ray runs and keeps the old value; 'make down up' applies the new one."
}

# cluster::_running NODE: the parts of this cluster's Ray that run there, " gcs_server raylet … " with a space at either end, and
# "ray-start" while `ray start` runs; empty if nothing runs.
cluster::_running() {
  local names
  names=$(cluster::_ask "$1" base/processes.py running "$CLUSTER_NAME")
  printf '%s' "${names:+ ${names} }"
}

# cluster::_has RUNNING PROGRAM...: true if _running printed each of them.
cluster::_has() {
  local program
  for program in "${@:2}"; do
    [[ $1 == *" ${program} "* ]] || return 1
  done
}

# cluster::stop_ray NODE: ends every process of this cluster's Ray there, and no other; prints how many there were.
cluster::stop_ray() { cluster::_ask "$1" base/processes.py stop "$CLUSTER_NAME"; }

# cluster::ask_host NODE QUESTION...: asks a node that may not have the helper yet (py/verl_regress/cluster/node_probe.py).
cluster::ask_host() { cluster::_ask "$1" cluster/node_probe.py "${@:2}"; }

# cluster::_ask NODE FILE ARG...: runs a file of our Python there, from stdin.
cluster::_ask() { node::exec_in "$1" python3 - "${@:3}" <"${REPO_DIR}/py/verl_regress/$2"; }

cluster::_log_dir() { printf '%s/ray/%s\n' "$SHARED_ROOT" "$CLUSTER_NAME"; }

# cluster::resources: what a worker declares to Ray. Ray counts NPUs too, but has an option of its own for the number of GPUs only.
cluster::resources() {
  if [[ $PROFILE == npu && -n $WORKER_GPUS ]]; then
    printf '%s, "NPU": %s}\n' "${WORKER_RESOURCES%\}}" "$WORKER_GPUS"
  else
    printf '%s\n' "$WORKER_RESOURCES"
  fi
}

# cluster::_start_worker WORKER ADDRESS
cluster::_start_worker() {
  local worker=$1 address=$2 argv=()
  [[ -z $WORKER_CPUS ]] || argv+=(--num-cpus="$WORKER_CPUS")
  [[ -z $WORKER_GPUS || $PROFILE == npu ]] || argv+=(--num-gpus="$WORKER_GPUS")
  cluster::_start "$worker" --address="$address" --resources="$(cluster::resources)" "${argv[@]}"
  cluster_knobs::keep "$worker" OBJECT_STORE_BYTES WORKER_CPUS WORKER_GPUS WORKER_RESOURCES
}

# cluster::_start NODE ARGV...: ends what is left of an earlier start there, then starts Ray. Every start has its own mark, a label of the
# node in Ray's table: Ray lists a node as ALIVE for half a minute after its container was killed, and the new node has the same name and
# address.
cluster::_start() {
  local node=$1 mark stopped without=() tries=()
  shift
  stopped=$(log::while "ending what is left of Ray on ${node}" -- cluster::stop_ray "$node")
  ((stopped == 0)) || log::info "${node}: stopped the Ray of an earlier start"
  [[ $PROFILE != rocm ]] || without=("${CLUSTER_ROCM_UNSET[@]/#/--unset=}")
  mark="$(date +%s)-$$"
  # A worker's `ray start` tries so often, every 2 s, to find the head's raylet, which comes up after the GCS: a busy host needs more than
  # Ray's own 20.
  [[ $node == head ]] || tries=(RAY_NUM_REDIS_GET_RETRIES="$CLUSTER_TIMEOUT")
  # shellcheck disable=SC2016  # expanded on the node
  node::exec "$node" sh -c 'mkdir -p "$1" && printf "%s\n" "$3" >"$1/$2.start"' mark "$(cluster::_log_dir)" "$node" "$mark"
  node::spawn "$node" "$(cluster::_log_dir)/${node}.log" env "${without[@]}" VERL_REGRESS_RAY="$CLUSTER_NAME" \
    VERL_REGRESS_NODE="$node" VERL_REGRESS_OWNER="$OWNER_ID" \
    "${tries[@]}" python3 "$(helper::dir)/py/ray_start.py" start --node-name="$node" --node-ip-address="$(node::address "$node")" --labels="start=${mark},owner=${OWNER_ID}" \
    --object-store-memory="$OBJECT_STORE_BYTES" --disable-usage-stats "$@"
}

# cluster::_need_token_auth: the Ray of the nodes knows the token; an older one would start without a word, open to its whole network.
# Nodes that exist already have been checked for more (nodes::check).
cluster::_need_token_auth() {
  local said version older
  said=$(cluster::ask_host head ray 2.52)
  read -r version older <<<"$said"
  [[ -z $older ]] ||
    cli::die 1 "The head has Ray ${version}, which ignores Ray's token (2.52 and later know it), so that any process in its network could run code on the nodes: use a NODE_IMAGE with Ray 2.52 or later."
}
