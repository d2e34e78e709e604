# port: who listens on a TCP port of this host's loopback, as the kernel lists it. Only tests set HOST_ROOT.
# shellcheck shell=bash

# port::is_taken PORT: a process listens there. This asks only the kernel's list; port::holder searches all processes, too.
port::is_taken() {
  local listener
  listener=$(port::_listener "$1")
  [[ -n $listener ]]
}

# port::_listener PORT: uid and inode of the socket that listens there; prints nothing if the port is free. A listener (0A) is on
# 127.0.0.1 or on all addresses, IPv4 or IPv6. The bytes of an address are in the host's order.
port::_listener() {
  local proc="${HOST_ROOT:-}/proc" hex
  printf -v hex '%04X' "$1"
  cat -- "${proc}/net/tcp" "${proc}/net/tcp6" 2>/dev/null |
    awk -v port="$hex" '$4 == "0A" && $2 ~ "^(0100007F|0+|0+FFFF00000100007F):" port "$" && !seen++ { print $8, $10 }' || true
}

# port::holder PORT: "PROGRAM (pid N)" of the process that listens there; prints nothing if the port is free.
port::holder() {
  local proc="${HOST_ROOT:-}/proc" uid inode file pid
  read -r uid inode < <(port::_listener "$1") || return 0
  file=$(find "${proc}"/[0-9]*/fd -maxdepth 1 -lname "socket:\\[${inode}\\]" -print -quit 2>/dev/null) || true # others' cannot be read
  if [[ -z $file ]]; then
    printf 'a process of user %s, which you may not see\n' "$(id -un "$uid" 2>/dev/null || printf '%s\n' "$uid")"
    return
  fi
  pid=${file#"${proc}/"} pid=${pid%%/*}
  printf '%s (pid %s)\n' "$(<"${proc}/${pid}/comm")" "$pid"
}

# port::need_free PORT KNOB CURE: nothing listens there; the port came from KNOB, and another can be chosen with CURE.
port::need_free() { ! port::is_taken "$1" || port::refuse "$@"; }

# port::refuse PORT KNOB CURE: the same when a listener was seen there.
port::refuse() {
  local holder
  holder=$(port::holder "$1")
  cli::die 1 "Port 127.0.0.1:$1 ($2, from ${ENV_ORIGIN[$2]}) is taken by ${holder:-a process that has just ended}: end that process, or set $3 to a free port."
}
