# lifecycle/hosts_put: what a host of HOSTS_FILE gets before its container (the image, Ray's token), where that is, and that it is
# removed again.
# shellcheck shell=bash

# hosts::ensure_images: every host has the node image; what it lacks is carried over, to all hosts at once. Images are compared by
# their layers and when they were made: engines that store them in different ways call the same image by different ids.
hosts::ensure_images() {
  local node own lacking=() dir
  cli::temp_dir dir
  own=$(hosts::_image_of this)
  node::ask_all "$dir" hosts::_image_if_there
  for node in $(node::list); do
    [[ $(<"${dir}/${node}") == "$own" ]] || lacking+=("$node")
  done
  ((${#lacking[@]} == 0)) ||
    log::while "carrying the image ${NODE_IMAGE} to the host of ${lacking[*]}" -- \
      node::ask "$dir" "${lacking[*]}" hosts::_carry "${own%% *}"
}

hosts::_image_of() { hosts::docker "$1" image inspect --format '{{.Architecture}} {{.Created}} {{.RootFS.Layers}}' "$NODE_IMAGE"; }

hosts::_image_if_there() { hosts::_image_of "$1" 2>/dev/null || true; }

# hosts::_carry NODE ARCHITECTURE
hosts::_carry() {
  [[ ${_HOSTS_FACT["$1:arch"]} == "$2" ]] ||
    cli::die 1 "$(hosts::describe "$1") is of the architecture ${_HOSTS_FACT["$1:arch"]}, and the image ${NODE_IMAGE} is for $2: use hosts of one architecture."
  docker save "$NODE_IMAGE" | hosts::docker "$1" load --quiet >/dev/null ||
    cli::die 1 "The image ${NODE_IMAGE} could not be carried to $(hosts::describe "$1") (the reason is above): check the disk there, then run this again."
  log::changed "$(hosts::describe "$1"): carried the image ${NODE_IMAGE} over"
}

# hosts::ensure_tokens: every host has this cluster's token, for the user of the containers alone and outside the shared root.
hosts::ensure_tokens() {
  local node dir
  cli::temp_dir dir
  node::ask_all "$dir" hosts::_put_token
  for node in $(node::list); do
    [[ $(<"${dir}/${node}") != put ]] || log::changed "$(hosts::describe "$node"): put Ray's token at $(hosts::_token "$node") (mode 600)"
  done
}

# hosts::_put_token NODE: prints put if its host is another one, and had not the same token.
hosts::_put_token() {
  hosts::_is_remote "$1" || return 0
  # shellcheck disable=SC2016  # expanded there; the token itself comes on stdin
  hosts::on "$1" '
    set -e; umask 077; file="$HOME/.verl-regress/$1.token"; token=$(cat)
    mkdir -p "${file%/*}"; chmod 700 "${file%/*}"
    own() { [ "$(id -u)" != 0 ] || chown "$2" "$1"; }
    [ ! -f "$file" ] || [ "$(cat "$file")" != "$token" ] || { chmod 600 "$file"; own "$file" "$2"; exit; }
    new=$(mktemp "$file.XXXXXX") # hosts may share this home
    printf %s "$token" >"$new"; own "$new" "$2"; mv "$new" "$file"; echo put' "$CLUSTER_NAME" "$RUN_AS" \
    <"${WORKDIR}/secrets/${CLUSTER_NAME}.token" ||
    cli::die 1 "Ray's token could not be put on $(hosts::describe "$1") (the reason is above): fix that, then run this again."
}

hosts::_token() { printf '%s/.verl-regress/%s.token\n' "${_HOSTS_FACT["$1:home"]}" "$CLUSTER_NAME"; }

# hosts::token NODE: the file of Ray's token on its host.
hosts::token() {
  if hosts::_is_remote "$1"; then hosts::_token "$1"; else printf '%s/secrets/%s.token\n' "$WORKDIR" "$CLUSTER_NAME"; fi
}

# hosts::_release NODE: no token is left on its host, if that answers. Prints which host it is if its engine does not.
hosts::_release() {
  hosts::is_answering "$1" || hosts::describe "$1"
  hosts::_is_remote "$1" || return 0
  # shellcheck disable=SC2016  # expanded there
  (hosts::on "$1" 'dir="$HOME/.verl-regress"; rm -f "$dir/$1.token"; rmdir "$dir" 2>/dev/null || true' "$CLUSTER_NAME") 2>/dev/null || true
  login::disconnect "$1"
}

# hosts::need_released: every host has answered, so nothing is left on any; then lets go of them.
hosts::need_released() {
  local lost dir
  hosts::are_several || return 0
  cli::temp_dir dir
  node::ask "$dir" "$(hosts::engines)" hosts::_release
  lost=$(cat -- "$dir"/* | paste -sd, | sed 's/,\([^ ]\)/, \1/g')
  [[ -z $lost ]] || cli::die 8 "Containers and Ray's token may still be on ${lost}: run 'make down' again when they answer."
}
