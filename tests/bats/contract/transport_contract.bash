# The contract of scripts/lib/node.bash for every transport; NODE is alive.
# shellcheck shell=bash

bats_require_minimum_version 1.5.0
REPO=$(cd "${BATS_TEST_DIRNAME}/../../.." && pwd)
NODE=worker-0

# on ARGV...: calls the node library in a separate shell, as scripts do.
on() { PROFILE=cpu bash -c 'source "$0/scripts/lib/regress.bash"; cli::begin; trap - EXIT; env::load; "$@"' "$REPO" "$@"; }

fail() { printf '%s\n' "$1" >&2 && false; }

# contract::all: every test of the contract, with the default NODE.
contract::all() {
  contract::hostile_words
  contract::exit_status
  contract::stdin
  contract::big_output
  contract::put_and_get
  contract::spawn
}

contract::hostile_words() {
  # shellcheck disable=SC2016  # nothing here may be expanded anywhere
  local words=('a b' '' "it's" '"quoted"' '$HOME' '$(id)' '`id`' $'two\nlines' '-n' '--help' 'ünï' '*' 'back\slash' ';exit 9' 'a&b|c>d')
  run on node::exec "$NODE" printf '<%s>\n' "${words[@]}"
  # shellcheck disable=SC2154  # bats' run sets them
  [[ $status == 0 && $output == "$(printf '<%s>\n' "${words[@]}")" ]]
}

contract::exit_status() {
  run on node::exec "$NODE" sh -c 'exit 7'
  [[ $status == 7 ]]
  run on node::exec_in "$NODE" sh -c 'exit 7'
  [[ $status == 7 ]]
  run on node::exec "$NODE" sh -c 'exit 255'
  [[ $status == 255 ]]
  # shellcheck disable=SC2016  # expanded on the node
  run on node::exec "$NODE" sh -c 'kill -9 "$$"'
  [[ $status == 137 ]]
}

contract::stdin() {
  [[ $(printf 'one\ntwo' | on node::exec_in "$NODE" cat) == $'one\ntwo' ]]
  [[ -z $(printf 'mine' | on node::exec "$NODE" cat) ]]
}

contract::big_output() {
  [[ $(on node::exec "$NODE" head -c 20000000 /dev/zero | wc -c) == 20000000 ]]
  [[ $(head -c 20000000 /dev/zero | on node::exec_in "$NODE" wc -c) == 20000000 ]]
}

contract::put_and_get() {
  local from="${BATS_TEST_TMPDIR}/from dir" to
  to=$(on node::exec "$NODE" mktemp -d)/put
  mkdir -p "${from}/sub" "${from}/__pycache__"
  printf 'x' >"${from}/sub/a b"
  printf 'x' >"${from}/__pycache__/left.out"
  on node::put "$NODE" "$from" "$to"
  [[ $(on node::get "$NODE" "$to" | tar -t | sort) == $'./\n./sub/\n./sub/a b' ]]
  printf 'y' >"${from}/sub/a b" # it exists already and must not change
  on node::put "$NODE" "$from" "$to"
  [[ $(on node::exec "$NODE" cat "${to}/sub/a b") == x ]]
  on node::exec "$NODE" rm -rf "${to%/*}"
}

contract::spawn() {
  local dir
  dir=$(on node::exec "$NODE" mktemp -d)
  on node::exec "$NODE" mkfifo "${dir}/go"
  # shellcheck disable=SC2016  # expanded on the node
  on node::spawn "$NODE" "${dir}/a/log" timeout 60 sh -c 'echo begun; read -r _ <"$1/go"; exit 5' spawned "$dir"
  on wait::until 20 - node::exec "$NODE" grep -qx begun "${dir}/a/log"
  run ! on node::exec "$NODE" test -e "${dir}/a/log.exit"
  # shellcheck disable=SC2016  # expanded on the node
  on node::exec "$NODE" sh -c 'echo >"$1/go"' go "$dir"
  on wait::until 20 - node::exec "$NODE" grep -qx 5 "${dir}/a/log.exit"
  on node::exec "$NODE" rm -rf "$dir"
}
