# lifecycle/compose: making and removing the containers of a cluster. Only what bears our label is ever removed.
# shellcheck shell=bash

readonly COMPOSE_LABEL='verl-regress.cluster'

# compose::need_image: the image is there; NODE_IMAGE holds its name for docker-compose.yaml.
compose::need_image() {
  NODE_IMAGE=$(image::name)
  if ! image::is_present "$NODE_IMAGE"; then
    image::need_engine
    cli::die 1 "The node image ${NODE_IMAGE} is not on this machine: build it with 'make build'."
  fi
}

# compose::_template: the file whose service "worker" all workers extend, from REPO_DIR: the profile's own where it has one.
compose::_template() {
  local file="docker-compose.${PROFILE}.yaml"
  [[ -f ${REPO_DIR}/${file} ]] || file=docker-compose.yaml
  printf '%s\n' "$file"
}

# compose::render_workers: the worker services, as a compose file on stdout.
compose::render_workers() {
  local worker template
  template=$(compose::_template)
  printf 'services:\n'
  for worker in $(node::list_workers); do
    printf '  %s:\n    extends: {file: %s, service: worker}\n    container_name: %s\n    profiles: !reset []\n' \
      "$worker" "$template" "${CLUSTER_NAME}-${worker}"
    [[ -z $WORKER_DEVICES ]] || printf '    devices: [%s]\n' "${WORKER_DEVICES// /, }"
    compose::_render_gpus "${worker#worker-}"
  done
}

# compose::_gpus INDEX: the ids, on this host, of the GPUs of worker-INDEX: the one place that knows them.
compose::_gpus() { seq -s, "$(($1 * GPUS_PER_WORKER))" "$((($1 + 1) * GPUS_PER_WORKER - 1))"; }

# compose::_render_gpus INDEX: how worker-INDEX is given its GPUs, which is another way for each vendor.
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

# compose::run ARGS...: docker compose over the whole rendered cluster.
compose::run() {
  local files=(--file "${REPO_DIR}/docker-compose.yaml") template
  template=$(compose::_template)
  [[ $template == docker-compose.yaml ]] || files+=(--file "${REPO_DIR}/${template}")
  compose::render_workers | docker compose --project-directory "$REPO_DIR" "${files[@]}" --file - "$@"
}

# compose::ensure_up: all containers of this cluster run, with today's settings; those beyond WORKERS are removed.
compose::ensure_up() {
  local before after names
  compose::_remove_surplus
  before=$(compose::list '{{.ID}} {{.Names}} {{.State}}')
  compose::run up --detach --no-build --quiet-pull 2>&1 | compose::_errors_only
  after=$(compose::list '{{.ID}} {{.Names}} {{.State}}')
  names=$(cut -d' ' -f2 <<<"$after" | paste -sd' ')
  if [[ $before == "$after" ]]; then
    log::ok "containers run: ${names}"
  else
    log::changed "containers brought up: ${names}"
  fi
}

# compose::ensure_down: nothing with this cluster's label is left; the shared directory is not touched.
compose::ensure_down() {
  local ids names networks
  mapfile -t ids < <(compose::list '{{.ID}}')
  names=$(compose::list '{{.Names}}' | paste -sd' ')
  networks=$(docker network ls --quiet --filter "label=${COMPOSE_LABEL}=${CLUSTER_NAME}")
  if ((${#ids[@]} == 0)) && [[ -z $networks ]]; then
    log::skip "nothing bears the label ${COMPOSE_LABEL}=${CLUSTER_NAME}"
    return
  fi
  ((${#ids[@]} == 0)) || docker rm --force "${ids[@]}" >/dev/null
  # shellcheck disable=SC2086  # ids, one word each
  [[ -z $networks ]] || docker network rm $networks >/dev/null
  log::changed "removed ${#ids[@]} containers (${names:-none}) and $(wc -w <<<"$networks") network; ${WORKDIR}/shared is as it was"
}

# compose::list FORMAT: our containers, running or not, sorted by name.
compose::list() {
  docker ps --all --no-trunc --filter "label=${COMPOSE_LABEL}=${CLUSTER_NAME}" --format "{{.Names}}\t$1" | sort | cut -f2-
}

# compose::foreign: containers that have one of our names without our label.
compose::foreign() {
  docker ps --all --format "{{.Names}} {{.Label \"${COMPOSE_LABEL}\"}}" |
    awk 'NR == FNR { ours[$1]; next } NF == 1 && $1 in ours { print $1 }' <(node::list | sed "s/^/${CLUSTER_NAME}-/") -
}

compose::_remove_surplus() {
  local name wanted
  wanted=" $(node::list | sed "s/^/${CLUSTER_NAME}-/" | paste -sd' ') "
  for name in $(compose::list '{{.Names}}'); do
    [[ $wanted != *" $name "* ]] || continue
    docker rm --force "$name" >/dev/null
    log::changed "removed ${name} (WORKERS=${WORKERS})"
  done
}

# Compose narrates every step; only what went wrong is worth a line. Its exit status still decides (pipefail).
compose::_errors_only() { grep -vE '^ *(Container|Network|Volume) .*(Creating|Created|Starting|Started|Running|Recreate|Recreated|Waiting|Healthy)$' >&2 || true; }
