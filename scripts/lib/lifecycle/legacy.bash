# lifecycle/legacy: what version 1 of this distribution left behind: containers named exactly as it named them.
# shellcheck shell=bash

# legacy::list: their names, one a line; never one that bears our label, whatever its name.
legacy::list() {
  docker ps --all --format "{{.Names}} {{.Label \"${COMPOSE_LABEL}\"}}" |
    awk 'NF == 1 && $1 ~ /^mvp-ray-(head|worker-[0-9]+)$/ { print $1 }'
}

# legacy::ensure_removed: they are gone. Best effort: one that cannot be removed is said and does not keep the others.
legacy::ensure_removed() {
  local name left=()
  for name in $(legacy::list); do
    if docker rm --force "$name" >/dev/null; then
      log::changed "removed the container ${name} of version 1"
    else
      left+=("$name")
    fi
  done
  ((${#left[@]} == 0)) ||
    cli::die 1 "The engine did not remove ${left[*]}, as it says above: remove them by hand."
}
