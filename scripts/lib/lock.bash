# lock: who holds a lock that other scripts wait for. It is written into a file after the lock was taken, and read only by who does not
# get the lock: what a killed script has left there says nothing, and the next holder overwrites it.
# shellcheck shell=bash

# lock::sign FILE [WORDS]: this script has the lock.
lock::sign() {
  local now
  TZ=UTC printf -v now '%(%Y-%m-%dT%H:%M:%SZ)T' -1
  printf '%s%s (pid %d on %s, since %s)\n' "${CLI_NAME%.sh}" "${2:+ $2}" "$$" "$HOSTNAME" "$now" >"$1"
}

# lock::holder FILE: who that is.
lock::holder() {
  local holder=''
  [[ ! -r $1 ]] || read -r holder <"$1" || true
  printf '%s\n' "${holder:-another script}"
}
