# lifecycle/legacy: what version 1 of this project left: containers with exactly the names that it used.
# shellcheck shell=bash

# legacy::ensure_removed: they are removed, but never one with our label. Best effort: one that cannot be removed is reported, and the others
# are still removed.
legacy::ensure_removed() {
  local names name left=()
  names=$(docker ps --all --format "{{.Names}} {{.Label \"${COMPOSE_LABEL}\"}}" |
    awk 'NF == 1 && $1 ~ /^mvp-ray-(head|worker-[0-9]+)$/ { print $1 }')
  for name in $names; do
    if docker rm --force "$name" >/dev/null; then
      log::changed "removed the container ${name} of version 1"
    else
      left+=("$name")
    fi
  done
  ((${#left[@]} == 0)) ||
    cli::die 1 "The engine did not remove ${left[*]} (the reason is above): remove them by hand."
}
