# memory: temporary files of unit tests, in memory: they make thousands of small directories, which takes five times as long on a disk.
# shellcheck shell=bash

readonly MEMORY_ROOT=/dev/shm MEMORY_MIB=1024 # the unit tests take up to 200 MiB

# memory::temp_dir NAME: a directory in the variable NAME, removed when the script ends. It is in memory if there is room, and if the
# user has not set TMPDIR: a container's /dev/shm is often small, or runs no programs.
memory::temp_dir() {
  local -n _in_memory=$1
  if [[ -n ${TMPDIR-} ]] || ! memory::_has_room; then
    cli::temp_dir _in_memory
    return
  fi
  TMPDIR=$MEMORY_ROOT cli::temp_dir _in_memory
  memory::_runs_programs "$_in_memory" || cli::temp_dir _in_memory
}

memory::_has_room() {
  local kind blocks size
  [[ -w $MEMORY_ROOT ]] || return 1
  read -r kind blocks size < <(stat --file-system --format='%T %a %S' "$MEMORY_ROOT")
  [[ $kind == tmpfs ]] && ((blocks * size >= MEMORY_MIB << 20))
}

memory::_runs_programs() {
  printf '#!/bin/sh\n' >"$1/program"
  chmod +x "$1/program"
  "$1/program" 2>/dev/null
}
