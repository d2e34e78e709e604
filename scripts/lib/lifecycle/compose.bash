# lifecycle/compose: creating and removing the containers of a cluster. Only what has our label is ever removed.
# shellcheck shell=bash

readonly COMPOSE_LABEL='verl-regress.cluster'
# The owner of what has our label, for --format: ID|USER|WORKDIR.
readonly COMPOSE_OWNER='{{.Label "verl-regress.owner"}}|{{.Label "verl-regress.user"}}|{{.Label "verl-regress.workdir"}}'

# compose::need_image: the image exists; NODE_IMAGE has its name for docker-compose.yaml.
compose::need_image() {
  [[ -n $NODE_IMAGE ]] || ENV_ORIGIN[NODE_IMAGE]='the inputs of the image'
  NODE_IMAGE=$(image::name)
  image::is_present "$NODE_IMAGE" || {
    image::need_engine
    cli::die 1 "The node image ${NODE_IMAGE} is not on this machine: build it with 'make build'."
  }
}

# compose::_template: the file whose service "worker" all workers extend, from REPO_DIR: the profile's own if it has one.
compose::_template() {
  local file="docker-compose.${PROFILE}.yaml"
  [[ -f ${REPO_DIR}/${file} ]] || file=docker-compose.yaml
  printf '%s\n' "$file"
}

# compose::render ENGINE: prints a compose file with the services of that engine (hosts::engines).
compose::render() {
  local node common
  common=$(compose::_render_common)
  printf 'services:\n'
  for node in $(hosts::nodes_of "$1"); do
    if [[ $node != head ]]; then
      compose::_render_worker "$node"
    elif [[ $1 != this || -n $common ]]; then
      printf '  head:\n'
    fi
    [[ -z $common ]] || printf '%s\n' "$common"
    [[ $1 == this ]] || compose::_render_host "$node"
  done
  [[ $1 == this || $1 == head ]] || printf '  head: {profiles: [elsewhere]}\n'
}

# compose::_render_common: what all nodes have: their processes are in SHARED_GROUP, and SELinux does not keep them from the shared root,
# whose files have no label for containers.
compose::_render_common() {
  local gid
  engine::ask
  [[ $ENGINE_SECURITY != *name=selinux* ]] || printf '    security_opt: ["label=disable"]\n'
  [[ -n $SHARED_GROUP ]] || return 0
  gid=$(nodes::shared_group)
  printf '    group_add: ["%s"]\n' "$gid"
}

compose::_render_worker() {
  local devices=() ids=()
  printf '  %s:\n    extends: {file: %s, service: worker}\n    container_name: %s\n    profiles: !reset []\n' \
    "$1" "$(compose::_template)" "${CLUSTER_NAME}-$1"
  read -r -a devices <<<"$WORKER_DEVICES"
  [[ $PROFILE != npu ]] || IFS=, read -r -a ids <<<"$(compose::_gpus "$1")"
  devices+=("${ids[@]/#//dev/davinci}")
  ((${#devices[@]} == 0)) || printf '    devices: [%s]\n' "$(compose::_joined "${devices[@]}")"
  compose::_render_gpus "$1"
}

# compose::_render_host NODE: a node on its host's own network. Its name means its address on every node, because a host's own name
# often means 127.0.1.1 there, which Gloo would tell the others.
compose::_render_host() {
  local node
  [[ $1 != head ]] || printf '    ports: !reset []\n'
  printf '    network_mode: host\n    networks: !reset null\n    hostname: %s\n    labels: {verl-regress.address: "%s"}\n' \
    "${CLUSTER_NAME}-$1" "$(hosts::address "$1")"
  printf '    secrets: !reset []\n    volumes:\n      - {type: bind, source: "%s", target: /run/secrets/ray_token, read_only: true}\n' "$(hosts::token "$1")"
  printf '    extra_hosts:\n'
  for node in $(node::list); do printf '      - "%s=%s"\n' "${CLUSTER_NAME}-${node}" "$(hosts::address "$node")"; done
}

# compose::_gpus WORKER: the ids, on its host, of the GPUs of that worker; no other function computes them.
compose::_gpus() {
  local first=$((${1#worker-} * GPUS_PER_WORKER))
  if hosts::are_several; then
    hosts::gpus "$1"
  elif [[ -n $GPU_IDS ]]; then
    cut -d, -f"$((first + 1))-$((first + GPUS_PER_WORKER))" <<<"$GPU_IDS"
  else
    seq -s, "$first" "$((first + GPUS_PER_WORKER - 1))"
  fi
}

# compose::list_gpus: those of all workers, one line each.
compose::list_gpus() {
  local worker
  for worker in $(node::list_workers); do compose::_gpus "$worker"; done | tr , '\n'
}

# compose::_render_gpus WORKER: how that worker gets its GPUs, which depends on the vendor, and its environment.
compose::_render_gpus() {
  local ids name
  local -A set=()
  for name in "${!ENV_OF_WORKERS[@]}"; do set[$name]=${ENV_OF_WORKERS[$name]}; done
  ids=$(compose::_gpus "$1")
  case $PROFILE in
    gpu)
      printf '    deploy: {resources: {reservations: {devices: [{driver: nvidia, device_ids: ["%s"], capabilities: [gpu]}]}}}\n' \
        "${ids//,/\", \"}"
      ;;
    rocm) for name in HIP ROCR CUDA; do set["${name}_VISIBLE_DEVICES"]=$ids; done ;;
    npu) set[ASCEND_RT_VISIBLE_DEVICES]=$(seq -s, 0 "$((GPUS_PER_WORKER - 1))") ;; # a container counts its own from 0
  esac
  ((${#set[@]})) || return 0
  printf '    environment:\n'
  for name in "${!set[@]}"; do printf '      %s: "%s"\n' "$name" "${set[$name]}"; done | sort
}

# compose::driver: the files of this host's driver that the profile's containers get, one line each.
compose::driver() { sed -nE 's/.* source: (\/[^,]+), .*/\1/p' "${REPO_DIR}/$(compose::_template)"; }

# compose::export_words ARRAY TO: what the cluster is made of beyond the knobs, as options of the helper's `export`.
compose::export_words() {
  local -n _options=$1
  local worker name user volume=$EXPORT_VOLUME
  [[ $TRANSPORT == container || -n $NODE_IMAGE ]] ||
    cli::die 2 "With TRANSPORT=${TRANSPORT} (from ${ENV_ORIGIN[TRANSPORT]}) the nodes have no image of ours: name the one to run elsewhere in NODE_IMAGE."
  case $volume,$2 in
    ,kuberay) volume="${CLUSTER_NAME//_/-}-shared" ;;
    ,dstack) volume=$SHARED_ROOT ;;
    ,*) volume=$(nodes::shown "$SHARED_ROOT") ;;
  esac
  user="$(node::exec head id -u):$(node::exec head id -g)"
  _options+=("--volume=${volume}" "--image=$(image::name)" "--user=${user}")
  _options+=("--worker-resources=$(cluster::resources)" "--driver=$(compose::driver | paste -sd" ")")
  [[ $PROFILE != rocm ]] || _options+=("--unset=${CLUSTER_ROCM_UNSET[*]}")
  for worker in $(node::list_workers); do _options+=("--worker=$(compose::_gpus "$worker")"); done
  for name in "${!ENV_OF_WORKERS[@]}"; do _options+=("--worker-env=${name}=${ENV_OF_WORKERS[$name]}"); done
}

# compose::run ENGINE ARGS...: docker compose for all that this engine runs of the rendered cluster. Its user is the owner of WORKDIR, so
# that `sudo make up` changes nothing.
compose::run() {
  local engine=$1 files=(--file "${REPO_DIR}/docker-compose.yaml") template
  shift
  template=$(compose::_template)
  [[ $template == docker-compose.yaml ]] || files+=(--file "${REPO_DIR}/${template}")
  compose::render "$engine" | CLUSTER_USER=$(stat -c %U -- "$WORKDIR") \
    hosts::docker "$engine" compose --project-directory "$REPO_DIR" "${files[@]}" --file - "$@"
}

# compose::ensure_up: all containers of this cluster run, with the current settings; those beyond WORKERS are removed. Before it
# changes anything, it finds out which running containers would end, and refuses if jobs would end with them.
compose::ensure_up() {
  local why='' other changed remade=() surplus=() missing=() ended=()
  other=$({ nodes::owners && compose::owners; } | owner::first_other)
  owner::refuse "$other"
  compose::need_own_network
  engine::ask # for what is rendered
  devices::take
  compose::_compare
  output::read_lines changed cluster_knobs::changed containers
  ((${#remade[@]} + ${#surplus[@]} == 0)) || why=$(compose::_why)
  ((${#ended[@]} == 0)) || compose::_need_idle "$why"
  if ((${#remade[@]} + ${#surplus[@]} + ${#missing[@]} > 0)); then
    ((${#surplus[@]} == 0)) || docker rm --force "${surplus[@]/#/${CLUSTER_NAME}-}" >/dev/null
    compose::_start_all
  fi
  ((${#surplus[@]} == 0)) || log::changed "removed $(compose::_joined "${surplus[@]}"): ${why}"
  ((${#remade[@]} == 0)) || log::changed "recreated $(compose::_joined "${remade[@]}"): ${why}"
  ((${#missing[@]} == 0)) || log::changed "containers brought up: ${missing[*]/#/${CLUSTER_NAME}-}"
  ((${#remade[@]} + ${#missing[@]} > 0)) || log::ok "containers run: $(node::list | sed "s/^/${CLUSTER_NAME}-/" | paste -sd' ')"
  # shellcheck disable=SC2046  # names of knobs, one word each
  cluster_knobs::keep containers $(compose::_knobs)
  engine::keep
  hosts::keep
}

# compose::_start_all: Compose creates or starts what an engine lacks, on all hosts at once.
compose::_start_all() {
  local dir
  cli::temp_dir dir
  node::ask "$dir" "$(hosts::engines)" compose::_start_at
}

# Compose starts no paused container. It reports every step; only errors are worth a line, and the last one says why containers did not come up.
compose::_start_at() {
  local said status=0 cure='correct that, then run this again' paused=()
  output::read_lines paused hosts::docker "$1" ps --quiet --filter status=paused --filter "label=${COMPOSE_LABEL}=${CLUSTER_NAME}"
  ((${#paused[@]} == 0)) || hosts::docker "$1" unpause "${paused[@]}" >/dev/null
  said=$(compose::run "$1" up --detach --no-build --quiet-pull 2>&1) || status=$?
  said=$(grep -vE '^ *(Container|Network|Volume) .*(Creating|Created|Starting|Started|Running|Recreate|Recreated|Waiting|Healthy)$' <<<"$said") || said=''
  if ((status != 0)); then
    [[ $said != *'address pool'* ]] ||
      cure="remove networks that nothing uses ('docker network prune'), end a VPN whose routes cover all addresses, or add default-address-pools to the engine's daemon.json"
    cli::die 1 "The containers did not come up ($(cli::shown "${said##*$'\n'}")): ${cure}."
  fi
  [[ -z $said ]] || printf '%s\n' "$said" >&2
}

# compose::ensure_down: nothing with this cluster's label is left; the shared directory is not touched.
compose::ensure_down() {
  local owners
  owners=$(compose::owners)
  if [[ -z $owners ]]; then
    log::skip "nothing has the label ${COMPOSE_LABEL}=${CLUSTER_NAME}"
    return
  fi
  owner::refuse "$(owner::first_other <<<"$owners")"
  job::need_idle "Taking ${CLUSTER_NAME} down" "wait for them, stop them ('make stop JOB=…')"
  compose::_remove_all
}

# compose::_remove_all: removes exactly what has this cluster's label, at all engines at once. Hosts that do not answer are left out.
compose::_remove_all() {
  local removed names
  cli::temp_dir removed
  node::ask "$removed" "$(hosts::engines)" compose::_remove_at
  names=$(cat -- "$removed"/* | sed -n 's/^container //p' | sort | paste -sd' ')
  log::changed "removed $(wc -w <<<"$names") containers (${names:-none}) and $(cat -- "$removed"/* | grep -c '^network ' || true) network; ${WORKDIR}/shared is as it was"
}

# compose::_remove_at ENGINE: prints what it removed, one per line.
compose::_remove_at() {
  local ids=() names=() networks=()
  ! hosts::are_several || hosts::is_answering "$1" || return 0
  output::read_lines ids compose::list_at "$1" '{{.ID}}'
  output::read_lines names compose::list_at "$1" '{{.Names}}'
  output::read_lines networks hosts::docker "$1" network ls --quiet --filter "label=${COMPOSE_LABEL}=${CLUSTER_NAME}"
  ((${#ids[@]} == 0)) || hosts::docker "$1" rm --force "${ids[@]}" >/dev/null
  ((${#networks[@]} == 0)) || hosts::docker "$1" network rm "${networks[@]}" >/dev/null
  ((${#names[@]} == 0)) || printf 'container %s\n' "${names[@]}"
  ((${#networks[@]} == 0)) || printf 'network %s\n' "${networks[@]}"
}

# compose::owners: the owners of this cluster's containers and networks. Hosts that do not answer are left out.
compose::owners() {
  local owners
  cli::temp_dir owners
  node::ask "$owners" "$(hosts::engines)" compose::_owners_at
  cat -- "$owners"/* | sort -u # a pipe, because Bash would become a last command, and clean nothing up
}

# compose::need_own_network: the network of our name bears our label, or is not there yet. Nodes on several hosts have none.
compose::need_own_network() {
  local found
  ! hosts::are_several || return 0
  found=$(docker network inspect --format "{{index .Labels \"${COMPOSE_LABEL}\"}}" "${CLUSTER_NAME}_ray" 2>/dev/null) || return 0
  [[ $found == "$CLUSTER_NAME" ]] ||
    cli::die 2 "The network ${CLUSTER_NAME}_ray does not bear our label (an older version made it, or another tool): remove it with 'docker network rm ${CLUSTER_NAME}_ray', or set another CLUSTER_NAME (and DASHBOARD_PORT)."
}

compose::_owners_at() {
  ! hosts::are_several || hosts::is_answering "$1" || return 0
  hosts::docker "$1" ps --all --filter "label=${COMPOSE_LABEL}=${CLUSTER_NAME}" --format "$COMPOSE_OWNER"
  hosts::docker "$1" network ls --filter "label=${COMPOSE_LABEL}=${CLUSTER_NAME}" --format "$COMPOSE_OWNER"
}

# compose::_compare: fills its caller's arrays with nodes: those that Compose would recreate (`remade`), those beyond WORKERS (`surplus`),
# those that do not exist or do not run (`missing`), and the running ones of the first two (`ended`). Compose decides by these two labels whether a container is up to date; its own --dry-run takes 1.5 s.
compose::_compare() {
  local engine node dir
  local -A found=()
  cli::temp_dir dir
  node::ask "$dir" "$(hosts::engines)" compose::_ask
  for engine in $(hosts::engines); do compose::_compare_at "${dir}/${engine}"; done
  for node in $(node::list); do [[ -v found[$node] ]] || missing+=("$node"); done
}

# compose::_ask ENGINE: prints what should run there as "wanted NODE HASH|IMAGE", then what there is as "found NODE STATE HASH|IMAGE".
compose::_ask() {
  local image
  image=$(hosts::docker "$1" image inspect --format '{{.Id}}' "$NODE_IMAGE")
  compose::run "$1" config --hash '*' | sed "s/.*/wanted &|${image}/"
  compose::list_at "$1" '{{.Names}} {{.State}} {{.Label "com.docker.compose.config-hash"}}|{{.Label "com.docker.compose.image"}}' |
    sed "s/^${CLUSTER_NAME}-/found /"
}

# compose::_compare_at FILE: FILE is what compose::_ask printed.
compose::_compare_at() {
  local what node status of
  local -A wanted=()
  while read -r what node status of; do
    if [[ $what == wanted ]]; then
      wanted[$node]=$status
      continue
    elif [[ ! -v wanted[$node] ]]; then
      surplus+=("$node")
    elif found[$node]=$status && [[ $of != "${wanted[$node]}" ]]; then
      remade+=("$node")
    else
      [[ $status == running ]] || missing+=("$node")
      continue
    fi
    [[ $status != @(running|paused) ]] || ended+=("$node")
  done <"$1"
}

# compose::_why: says why existing containers cannot stay: its caller's `changed` has the knobs.
compose::_why() {
  if ((${#changed[@]} > 0)); then
    cluster_knobs::describe "${changed[@]}"
  elif ((${#remade[@]} == 0)); then
    printf 'WORKERS is %s from %s\n' "$WORKERS" "${ENV_ORIGIN[WORKERS]}"
  else
    printf 'docker-compose.yaml, the image or an export in env/*.env has changed\n'
  fi
}

# compose::_need_idle WHY: no job runs on the cluster, because the nodes `ended` would be removed.
compose::_need_idle() {
  local doing=() cure='wait for them'
  ((${#remade[@]} == 0)) || doing+=("Recreating $(compose::_joined "${remade[@]}")")
  ((${#surplus[@]} == 0)) || doing+=("Removing $(compose::_joined "${surplus[@]}")")
  ((${#changed[@]} == 0)) || cure="give ${changed[*]} again, wait for them"
  job::need_idle "$(printf '%s\n' "${doing[@]}" | paste -sd@ | sed 's/@R/ and r/') ($1)" "$cure"
}

compose::_joined() { printf '%s\n' "$@" | paste -sd, | sed 's/,/, /g'; }

# compose::_knobs: the knobs that affect the containers: all that the compose files name, and all that rendering the workers reads.
compose::_knobs() {
  {
    printf '%s\n' WORKERS PROFILE GPUS_PER_WORKER GPU_IDS WORKER_DEVICES SHARED_GROUP HOSTS_FILE
    cat -- "${REPO_DIR}/docker-compose.yaml" "${REPO_DIR}/$(compose::_template)" | sed -nE 's/.*\$\{([A-Z_]+)\}.*/\1/p' |
      grep -vxE 'CLUSTER_NAME|CLUSTER_USER|OWNER_ID|WORKDIR'
  } | sort -u
}

# compose::list_at ENGINE FORMAT: our containers at that engine, running or not, sorted by name.
compose::list_at() {
  hosts::docker "$1" ps --all --no-trunc --filter "label=${COMPOSE_LABEL}=${CLUSTER_NAME}" --format "{{.Names}}\t$2" | sort | cut -f2-
}
