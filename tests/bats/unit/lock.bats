#!/usr/bin/env bats
# What the file of a lock says about its holder.

setup() {
  load ../test_helper
  sandbox::make
  # shellcheck disable=SC2016  # expanded when the script runs
  printf '%s\n' 'source "$(dirname "$0")/lib/regress.bash"' CLI_NAME=verb.sh '"$@"' >"${HERE}/scripts/verb.sh"
  FILE="${BOX}/holder"
}

@test "a holder signs with script, words, pid, host and UTC time, and is read back" {
  local before after
  before=$(date -u +%Y-%m-%dT%H:%M:%SZ)
  sandbox::run TZ=Asia/Tokyo scripts/verb.sh eval "lock::sign '${FILE}' 'of user alice' && echo \$\$ \$HOSTNAME"
  assert_status 0
  after=$(date -u +%Y-%m-%dT%H:%M:%SZ)
  [[ $(<"$FILE") == "verb of user alice (pid ${output% *} on ${output#* }, since "*')' ]] || fail "$(<"$FILE")"
  [[ $(<"$FILE") =~ since\ (20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z)\)$ ]] || fail "$(<"$FILE")"
  [[ ! ${BASH_REMATCH[1]} < $before && ! ${BASH_REMATCH[1]} > $after ]] || fail "${before} ${BASH_REMATCH[1]} ${after}"
  sandbox::run scripts/verb.sh lock::holder "$FILE"
  [[ $status == 0 && $output == "$(<"$FILE")" ]]
}

@test "a file that is not there, or is empty, names nobody, and fails nothing" {
  sandbox::run scripts/verb.sh lock::holder "$FILE"
  [[ $status == 0 && $output == 'another script' ]]
  : >"$FILE"
  sandbox::run scripts/verb.sh lock::holder "$FILE"
  [[ $status == 0 && $output == 'another script' ]]
}
