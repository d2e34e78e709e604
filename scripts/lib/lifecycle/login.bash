# login: connections by ssh, one for each name: of a node (TRANSPORT=ssh) or of the host of one (HOSTS_FILE). How a machine is
# reached (keys, known hosts, jump hosts) comes from ssh's own configuration, or SSH_CONFIG. An unknown host key is refused.
# shellcheck shell=bash

declare -gA LOGIN_TARGET=() LOGIN_PORT=() _LOGIN_SEEN=()
_LOGIN_MASTER=no # ssh's ControlMaster
# Short, because the path of a socket has at most 107 bytes. Only tests set HOST_ROOT.
readonly LOGIN_FILES="${HOST_ROOT:-}/tmp/verl-regress-${UID}"
# [USER@]HOST[:PORT], where HOST is a name or [IPv6].
readonly LOGIN_FORM='^(([A-Za-z0-9_][A-Za-z0-9_.-]*@)?([A-Za-z0-9][A-Za-z0-9_.-]*|\[([0-9A-Fa-f:.]+)\]))(:([1-9][0-9]{0,4}))?$'

# login::take NAME TEXT: the login of that name; TEXT is of LOGIN_FORM.
login::take() {
  [[ $2 =~ $LOGIN_FORM ]]
  LOGIN_TARGET[$1]=${BASH_REMATCH[2]}${BASH_REMATCH[4]:-${BASH_REMATCH[3]}} LOGIN_PORT[$1]=${BASH_REMATCH[6]}
}

# login::connect NAME FILE: all commands share one connection for each name; it closes five minutes after the last one. ssh's own
# words go into FILE. `auto` removes the socket of one that was killed, which `yes` (-M) would keep, and then share nothing.
login::connect() {
  local _LOGIN_MASTER=auto lock
  login::ensure_files
  login::is_connected "$1" || (
    # The connection outlives this script, and would keep our locks if it inherited them.
    for lock in ${CLUSTER_LOCK:-} ${VERIFY_LOCK:-}; do exec {lock}>&-; done
    login::client "$1" -E "$2" -o ControlPersist=300 -N -f </dev/null >/dev/null 2>&1
  )
}

# login::need NAME WHO: connects, or says why WHO cannot be reached; once for each name and script.
login::need() {
  local said="${LOGIN_FILES}/${BASHPID}.said"
  [[ -z ${_LOGIN_SEEN[$1]:-} ]] || return 0
  login::connect "$1" "$said" ||
    cli::die 8 "$2 cannot be reached ($(login::last_words "$said")): 'ssh ${LOGIN_PORT[$1]:+-p ${LOGIN_PORT[$1]} }${LOGIN_TARGET[$1]} true' must work without a prompt; fix that first."
  rm -f -- "$said"
  _LOGIN_SEEN[$1]=1
}

login::ensure_files() {
  mkdir -m 700 -- "$LOGIN_FILES" 2>/dev/null || [[ -d $LOGIN_FILES && ! -L $LOGIN_FILES && -O $LOGIN_FILES ]] ||
    cli::die 1 "${LOGIN_FILES}, where connections and messages are kept, belongs to another user: have it removed."
}

login::is_connected() { login::client "$1" -O check >/dev/null 2>&1; }

# login::disconnect NAME: closes the connection that is kept open for the next script.
login::disconnect() { login::client "$1" -O exit >/dev/null 2>&1 || true; }

# login::client NAME ARGS...: ssh to that name.
login::client() {
  local name=$1 options=()
  shift
  login::options
  [[ -z ${LOGIN_PORT[$name]} ]] || options+=(-p "${LOGIN_PORT[$name]}")
  # shellcheck disable=SC2029  # the words are for there as they are
  ssh "${options[@]}" "${LOGIN_TARGET[$name]}" "$@"
}

# login::options: puts ssh's options into the caller's `options`: no questions, no terminal, none of our keys forwarded.
login::options() {
  options=(-T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 -o LogLevel=ERROR
    -o ForwardAgent=no -o ForwardX11=no -o ClearAllForwardings=yes -o RemoteCommand=none -o ControlMaster="$_LOGIN_MASTER"
    -o ControlPath="${LOGIN_FILES}/%C")
  [[ -z $SSH_CONFIG ]] || options=(-F "$SSH_CONFIG" "${options[@]}")
}

# login::packed SCRIPT: a plain sh script as the one string that sshd passes to the login shell, whichever it is: sh, csh and fish
# read it the same way. What that shell prints as it starts is not the script's: login::run leaves out what is before a mark.
login::packed() {
  local script="echo ${LOGIN_MARK}; echo ${LOGIN_MARK} >&2"$'\n'$1
  # shellcheck disable=SC2016  # expanded there
  printf 'exec sh -c '\''script=$(printf %%s %s | base64 -d) && eval "$script"'\' "$(printf '%s' "$script" | base64 | tr -d '\n')"
}
readonly LOGIN_MARK='--- verl-regress ---'

# login::run UNMARKED COMMAND...: runs a client that runs what login::packed made, with our stdin, and passes on its stdout, stderr and exit
# status. If no mark came, the script did not run, and the file UNMARKED has what came instead.
login::run() (
  rm -f -- "$1" "$1.stderr"
  {
    "${@:2}" 2>&1 >&"$out" {out}>&- | login::_after_mark "$1.stderr" >&2 {out}>&-
    exit "${PIPESTATUS[0]}"
  } {out}>&1 | login::_after_mark "$1"
  status=${PIPESTATUS[0]}
  [[ ! -e $1 ]] || cat -- "$1.stderr" >>"$1"
  rm -f -- "$1.stderr"
  exit "$status"
)

# login::_after_mark UNMARKED: stdin after the first mark, on stdout; all of it in UNMARKED, if it has none.
login::_after_mark() {
  local line before=''
  while IFS= read -r line || [[ -n $line ]]; do
    if [[ $line == *"$LOGIN_MARK" ]]; then
      cat
      return
    fi
    before+=$line$'\n'
  done
  printf '%s' "$before" >>"$1"
}

# login::need_mark UNMARKED WHOSE STATUS: after login::run, the script has run.
login::need_mark() {
  [[ -e $1 ]] || return 0
  cli::die 8 "The login shell of $2 did not run our command: it ended with exit status $3 ($(login::last_words "$1" 'it')): let the files that it reads first (such as ~/.bashrc or ~/.zshenv) neither exit nor run another shell, and give the user a shell that runs commands."
}

# login::quoted WORD: as plain sh reads it unchanged.
login::quoted() {
  local single=\' escaped="'\\''"
  printf "'%s'" "${1//$single/$escaped}"
}

login::shown() { printf '%s\n' "${LOGIN_TARGET[$1]}${LOGIN_PORT[$1]:+:${LOGIN_PORT[$1]}}"; }

# login::forward ARRAY TARGET PORT LOCAL:HOST:PORT...: the argv that forwards ports of this host there, as a user can type it.
login::forward() {
  local -n _argv=$1
  local target=$2 port=$3 spec
  _argv=(ssh -N)
  [[ -z $SSH_CONFIG ]] || _argv+=(-F "$SSH_CONFIG")
  [[ -z $port ]] || _argv+=(-p "$port")
  for spec in "${@:4}"; do _argv+=(-L "$spec"); done
  _argv+=("$target")
}

# login::show_forwards LOCAL:NODE:PORT...: prints a command for each, to type where the user sits: the port is only on the 127.0.0.1 of that
# node's host. One without a login is this machine.
login::show_forwards() {
  local forward node port argv=()
  for forward; do
    IFS=: read -r _ node port <<<"$forward"
    login::forward argv "${LOGIN_TARGET[$node]:-${OWNER_USER}@$(uname -n)}" "${LOGIN_PORT[$node]:-}" "${forward%%:*}:127.0.0.1:${port}"
    tunnel::as_typed "${argv[@]}"
  done
}

# login::dashboard_address: where a browser on this host finds the dashboard, which listens on the 127.0.0.1 of the head's host alone.
login::dashboard_address() {
  if [[ -v LOGIN_TARGET[head] ]]; then
    printf "http://127.0.0.1:%s after '%s'\n" "$DASHBOARD_PORT" "$(login::show_forwards "${DASHBOARD_PORT}:head:8265")"
  else
    printf 'http://127.0.0.1:8265\n'
  fi
}

# login::last_words FILE [PROGRAM]: the last line that ssh, or PROGRAM, left there, without its name and a full stop.
login::last_words() {
  local program=${2:-ssh} words
  words=$(grep -vE '^ *$|lacks support for cpu binding' -- "$1" 2>/dev/null | tail -n 1 | tr -d '\r') || true
  words=${words#"${program}: "} words=${words#error: } words=${words%.}
  printf '%s\n' "${words:-${program} says nothing}"
  rm -f -- "$1"
}
