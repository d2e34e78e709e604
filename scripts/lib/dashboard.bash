# dashboard: Ray's dashboard: where it is, how to log in, and whether it answers with this cluster's token.
# shellcheck shell=bash

# Asks HOST PORT for PATH with the token in TOKEN_FILE (without it, that of the node), and prints the HTTP status, or nothing if
# nothing answers. Bash alone, because a node may have no curl; the token is in the request only, not in an argument.
# shellcheck disable=SC2016  # expanded by the shell that runs it
# shellcheck disable=SC2034  # scripts/lib/lifecycle/*.bash read it
readonly DASHBOARD_ASK='
  { exec 3<>"/dev/tcp/$1/$2"; } 2>/dev/null || exit 0
  token=$(cat -- "${4:-$RAY_AUTH_TOKEN_PATH}") || exit
  printf "GET %s HTTP/1.1\r\nHost: %s:%s\r\nConnection: close\r\n${token:+Authorization: Bearer ${token}\r\n}\r\n" "$3" "$1" "$2" >&3
  read -r -t 10 _ status _ <&3 || exit 0
  printf "%s\n" "$status"'

# dashboard::token_file: the file on this host with Ray's token of this cluster.
dashboard::token_file() { printf '%s/secrets/%s.token\n' "$WORKDIR" "$CLUSTER_NAME"; }

# dashboard::need_token: this user can read it.
dashboard::need_token() {
  local token name
  token=$(dashboard::token_file)
  [[ ! -r $token ]] || return 0
  name=$(stat -c %U -- "$token" 2>/dev/null) || name=$(stat -c %U -- "${token%/*}")
  cli::die 1 "${token}, which has Ray's token, is not readable for ${OWNER_USER}: run this as ${name}, who brought ${CLUSTER_NAME} up, or 'make up' if it is missing."
}

# dashboard::tell: one line for `make up`.
dashboard::tell() { log::ok "dashboard: $(nodes::dashboard_address), token in $(dashboard::token_file)"; }

# dashboard::show: the address, the token's file and how to log in, on stdout. With a token Ray 2.60 shows every visitor a field for
# it, and then sets a cookie for 30 days.
dashboard::show() {
  printf 'address  %s\ntoken    %s\n' "$(nodes::dashboard_address)" "$(dashboard::token_file)"
  printf 'log in   open the address, paste the content of that file where it asks for a token; a cookie keeps it for 30 days\n'
}

# dashboard::check: it answers, and takes our token.
dashboard::check() {
  local status
  status=$(nodes::ask_dashboard)
  case $status in
    200) log::ok 'it answers, and takes the token' ;;
    '') cli::die 8 "The dashboard of ${CLUSTER_NAME} does not answer: bring the cluster up with 'make up'." ;;
    401 | 403) cli::die 8 "The dashboard of ${CLUSTER_NAME} refuses the token in $(dashboard::token_file) (HTTP ${status}): the cluster was started with another one; 'make down up FORCE=1' starts it with this one and ends its jobs." ;;
    *) cli::die 8 "What answers where the dashboard of ${CLUSTER_NAME} should be is not Ray (HTTP ${status}): check what listens there, then 'make up'." ;;
  esac
}
