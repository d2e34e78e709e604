# lifecycle/compose: creating and removing the containers of a cluster. Only what has our label is ever removed.
# shellcheck shell=bash

readonly COMPOSE_LABEL='verl-regress.cluster'
# The owner of what has our label, for --format: ID|USER|WORKDIR.
readonly COMPOSE_OWNER='{{.Label "verl-regress.owner"}}|{{.Label "verl-regress.user"}}|{{.Label "verl-regress.workdir"}}'

# compose::need_image: the image exists; NODE_IMAGE has its name for docker-compose.yaml.
compose::need_image() {
  if look::knows image; then
    NODE_IMAGE=${LOOK[image]}
    return
  fi
  NODE_IMAGE=$(image::name)
  if ! image::is_present "$NODE_IMAGE"; then
    image::need_engine
    cli::die 1 "The node image ${NODE_IMAGE} is not on this machine: build it with 'make build'."
  fi
}

# compose::_template: the file whose service "worker" all workers extend, from REPO_DIR: the profile's own if it has one.
compose::_template() {
  local file="docker-compose.${PROFILE}.yaml"
  [[ -f ${REPO_DIR}/${file} ]] || file=docker-compose.yaml
  printf '%s\n' "$file"
}

# compose::render_workers: prints the worker services as a compose file on stdout.
compose::render_workers() {
  local worker template group
  template=$(compose::_template)
  group=$(compose::_render_group)
  printf 'services:\n'
  [[ -z $group ]] || printf '  head:\n%s\n' "$group"
  for worker in $(node::list_workers); do
    printf '  %s:\n    extends: {file: %s, service: worker}\n    container_name: %s\n    profiles: !reset []\n' \
      "$worker" "$template" "${CLUSTER_NAME}-${worker}"
    [[ -z $group ]] || printf '%s\n' "$group"
    [[ -z $WORKER_DEVICES ]] || printf '    devices: [%s]\n' "${WORKER_DEVICES// /, }"
    compose::_render_gpus "${worker#worker-}"
  done
}

# compose::_render_group: that the processes of a node are in SHARED_GROUP.
compose::_render_group() {
  local gid
  [[ -n $SHARED_GROUP ]] || return 0
  gid=$(nodes::shared_group)
  printf '    group_add: ["%s"]\n' "$gid"
}

# compose::_gpus INDEX: the ids, on this host, of the GPUs of worker-INDEX; no other function computes them.
compose::_gpus() { seq -s, "$(($1 * GPUS_PER_WORKER))" "$((($1 + 1) * GPUS_PER_WORKER - 1))"; }

# compose::_render_gpus INDEX: how worker-INDEX gets its GPUs, which depends on the vendor.
compose::_render_gpus() {
  local ids
  ids=$(compose::_gpus "$1")
  case $PROFILE in
    gpu)
      printf '    deploy: {resources: {reservations: {devices: [{driver: nvidia, device_ids: ["%s"], capabilities: [gpu]}]}}}\n' \
        "${ids//,/\", \"}"
      ;;
    rocm)
      printf '    environment: {HIP_VISIBLE_DEVICES: "%s", ROCR_VISIBLE_DEVICES: "%s", CUDA_VISIBLE_DEVICES: "%s"}\n' \
        "$ids" "$ids" "$ids"
      ;;
  esac
}

# compose::export_words ARRAY TO: what the cluster is made of, as options of the helper's `export`.
compose::export_words() {
  local -n _options=$1
  local worker name names user volume=$EXPORT_VOLUME
  [[ $TRANSPORT == container || -n $NODE_IMAGE ]] ||
    cli::die 2 "With TRANSPORT=${TRANSPORT} (from ${ENV_ORIGIN[TRANSPORT]}) the nodes have no image of ours: name the one to run elsewhere in NODE_IMAGE."
  case $volume,$2 in
    ,kuberay) volume="${CLUSTER_NAME//_/-}-shared" ;;
    ,dstack) volume=$SHARED_ROOT ;;
    ,*) volume=$(nodes::shown "$SHARED_ROOT") ;;
  esac
  user="$(node::exec head id -u):$(node::exec head id -g)"
  _options+=("--volume=${volume}" "--image=$(image::name)" "--user=${user}" "--shm-size=${SHM_SIZE}")
  _options+=("--gpus-per-worker=${GPUS_PER_WORKER}" "--worker-resources=${WORKER_RESOURCES}" "--devices=${WORKER_DEVICES}")
  _options+=("--unset=${RAY_UNSET}" "--object-store-bytes=${OBJECT_STORE_BYTES}" "--gcs-port=${GCS_PORT}" "--cluster-timeout=${CLUSTER_TIMEOUT}")
  _options+=("--pull-timeout=${IMAGE_PULL_TIMEOUT}")
  [[ -z $WORKER_CPUS ]] || _options+=("--worker-cpus=${WORKER_CPUS}")
  [[ -z $WORKER_GPUS ]] || _options+=("--worker-gpus=${WORKER_GPUS}")
  for worker in $(node::list_workers); do _options+=("--worker=$(compose::_gpus "${worker#worker-}")"); done
  names=$(compose::_worker_environment)
  for name in $names; do _options+=("--worker-env=${name}=${!name}"); done
}

# compose::_worker_environment: the knobs that the profile's template passes to each worker under their own names.
compose::_worker_environment() { sed -nE '/SHARED_ROOT/d; s/^ +([A-Z_]+): \$\{\1\}$/\1/p' "${REPO_DIR}/$(compose::_template)"; }

# compose::run ARGS...: docker compose for the whole rendered cluster.
compose::run() {
  local files=(--file "${REPO_DIR}/docker-compose.yaml") template
  template=$(compose::_template)
  [[ $template == docker-compose.yaml ]] || files+=(--file "${REPO_DIR}/${template}")
  compose::render_workers | CLUSTER_USER=$(compose::_user) docker compose --project-directory "$REPO_DIR" "${files[@]}" --file - "$@"
}

# compose::_user: the user of the containers. If they are ours, it is the user who created them: `sudo make up` changes nothing.
compose::_user() {
  local other
  other=$(owner::other)
  if [[ -z $other ]] && ((${#_TRANSPORT_OWNERS[@]} > 0)); then
    nodes::owners | sed -n 1p | cut -d'|' -f2
  else
    printf '%s\n' "$OWNER_USER"
  fi
}

# compose::ensure_up: all containers of this cluster run, with the current settings; those beyond WORKERS are removed. Before it
# changes anything, it finds out which running containers would end, and refuses if jobs would end with them.
compose::ensure_up() {
  local other why remade=() surplus=() missing=() ended=()
  other=$(compose::owners | owner::first_other)
  owner::need_own_or_adopt "$other"
  compose::_compare "$other"
  why=$(compose::_why "$other")
  ((${#ended[@]} == 0)) || compose::_need_idle "$why"
  [[ -z $other ]] || compose::_remove_all
  if ((${#remade[@]} + ${#surplus[@]} + ${#missing[@]} > 0)); then
    ((${#surplus[@]} == 0)) || docker rm --force "${surplus[@]/#/${CLUSTER_NAME}-}" >/dev/null
    compose::run up --detach --no-build --quiet-pull 2>&1 | compose::_errors_only
  fi
  ((${#surplus[@]} == 0)) || log::changed "removed $(compose::_joined "${surplus[@]}"): ${why}"
  ((${#remade[@]} == 0)) || log::changed "recreated $(compose::_joined "${remade[@]}"): ${why}"
  ((${#missing[@]} == 0)) || log::changed "containers brought up: ${missing[*]/#/${CLUSTER_NAME}-}"
  ((${#remade[@]} + ${#missing[@]} > 0)) || log::ok "containers run: $(node::list | sed "s/^/${CLUSTER_NAME}-/" | paste -sd' ')"
  # shellcheck disable=SC2046  # names of knobs, one word each
  made::keep containers $(compose::_knobs)
  engine::keep
}

# compose::ensure_down: nothing with this cluster's label is left; the shared directory is not touched.
compose::ensure_down() {
  local owners
  owners=$(compose::owners)
  if [[ -z $owners ]]; then
    log::skip "nothing has the label ${COMPOSE_LABEL}=${CLUSTER_NAME}"
    return
  fi
  owner::need_own_or_adopt "$(owner::first_other <<<"$owners")"
  job::need_idle "Taking ${CLUSTER_NAME} down" "wait for them, stop them ('make stop JOB=…')"
  compose::_remove_all
}

# compose::_remove_all: removes exactly what has this cluster's label.
compose::_remove_all() {
  local ids names networks
  mapfile -t ids < <(compose::list '{{.ID}}')
  names=$(compose::list '{{.Names}}' | paste -sd' ')
  networks=$(docker network ls --quiet --filter "label=${COMPOSE_LABEL}=${CLUSTER_NAME}")
  ((${#ids[@]} == 0)) || docker rm --force "${ids[@]}" >/dev/null
  # shellcheck disable=SC2086  # ids, one word each
  [[ -z $networks ]] || docker network rm $networks >/dev/null
  log::changed "removed ${#ids[@]} containers (${names:-none}) and $(wc -w <<<"$networks") network; ${WORKDIR}/shared is as it was"
}

# compose::owners: the owners of this cluster's containers and networks, one line each.
compose::owners() {
  if look::knows owners; then
    printf '%s' "${LOOK[owners]:+${LOOK[owners]}$'\n'}"
    return
  fi
  docker ps --all --filter "label=${COMPOSE_LABEL}=${CLUSTER_NAME}" --format "$COMPOSE_OWNER"
  docker network ls --filter "label=${COMPOSE_LABEL}=${CLUSTER_NAME}" --format "$COMPOSE_OWNER"
}

# compose::_compare OTHER: fills its caller's arrays with nodes: those that Compose would recreate (`remade`; also all that belong
# to OTHER), those beyond WORKERS (`surplus`), those that do not exist or do not run (`missing`), and the running ones of the first
# two (`ended`). Compose decides by these two labels whether a container is up to date; its own --dry-run takes 1.5 s.
compose::_compare() {
  local other=$1 hashes image node name status hash of
  local -A wanted=() found=()
  hashes=$(compose::run config --hash '*')
  image=$(docker image inspect --format '{{.Id}}' "$NODE_IMAGE")
  while read -r node hash; do wanted[$node]="${hash}|${image}"; done <<<"$hashes"
  while IFS='|' read -r name status hash of; do
    node=${name#"${CLUSTER_NAME}-"}
    found[$node]=$status
    if [[ ! -v wanted[$node] ]]; then
      surplus+=("$node")
    elif [[ -n $other || "${hash}|${of}" != "${wanted[$node]}" ]]; then
      remade+=("$node")
    elif [[ $status == running ]]; then
      continue
    else
      missing+=("$node")
    fi
    [[ $status != running ]] || ended+=("$node")
  done < <(compose::list '{{.Names}}|{{.State}}|{{.Label "com.docker.compose.config-hash"}}|{{.Label "com.docker.compose.image"}}')
  for node in $(node::list); do [[ -v found[$node] ]] || missing+=("$node"); done
}

# compose::_why OTHER: says why existing containers cannot stay.
compose::_why() {
  local changed
  mapfile -t changed < <(made::changed containers)
  if [[ -n $1 ]]; then
    printf 'ADOPT=1 takes them over\n'
  elif ((${#changed[@]} > 0)); then
    made::describe "${changed[@]}"
  elif ((${#remade[@]} == 0)); then
    printf 'WORKERS is %s from %s\n' "$WORKERS" "${ENV_ORIGIN[WORKERS]}"
  else
    printf 'docker-compose.yaml or the image has changed\n'
  fi
}

# compose::_need_idle WHY: no job runs on the cluster whose nodes `ended` would be removed.
compose::_need_idle() {
  local changed doing=() cure='wait for them'
  ((${#remade[@]} == 0)) || doing+=("Recreating $(compose::_joined "${remade[@]}")")
  ((${#surplus[@]} == 0)) || doing+=("Removing $(compose::_joined "${surplus[@]}")")
  mapfile -t changed < <(made::changed containers)
  ((${#changed[@]} == 0)) || cure="give ${changed[*]} again, wait for them"
  job::need_idle "$(printf '%s\n' "${doing[@]}" | paste -sd@ | sed 's/@R/ and r/') ($1)" "$cure"
}

compose::_joined() { printf '%s\n' "$@" | paste -sd, | sed 's/,/, /g'; }

# compose::_knobs: the knobs that affect the containers: all that the compose files name, and all that rendering the workers reads.
compose::_knobs() {
  {
    printf '%s\n' WORKERS PROFILE GPUS_PER_WORKER WORKER_DEVICES SHARED_GROUP
    cat -- "${REPO_DIR}/docker-compose.yaml" "${REPO_DIR}/$(compose::_template)" | sed -nE 's/.*\$\{([A-Z_]+)\}.*/\1/p' |
      grep -vxE 'CLUSTER_NAME|CLUSTER_USER|OWNER_ID|WORKDIR'
  } | sort -u
}

# compose::list FORMAT: our containers, running or not, sorted by name.
compose::list() {
  docker ps --all --no-trunc --filter "label=${COMPOSE_LABEL}=${CLUSTER_NAME}" --format "{{.Names}}\t$1" | sort | cut -f2-
}

# compose::names: all containers of this engine, each with the cluster that its label names.
compose::names() {
  if look::knows names; then
    printf '%s\n' "${LOOK[names]}"
  else
    docker ps --all --format "{{.Names}} {{.Label \"${COMPOSE_LABEL}\"}}"
  fi
}

# compose::foreign: containers with one of our names but without our label.
compose::foreign() {
  compose::names |
    awk 'NR == FNR { ours[$1]; next } NF == 1 && $1 in ours { print $1 }' <(node::list | sed "s/^/${CLUSTER_NAME}-/") -
}

# Compose reports every step; only errors are worth a line. Its exit status still decides (pipefail).
compose::_errors_only() { grep -vE '^ *(Container|Network|Volume) .*(Creating|Created|Starting|Started|Running|Recreate|Recreated|Waiting|Healthy)$' >&2 || true; }
