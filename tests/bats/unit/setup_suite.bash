# shellcheck shell=bash
source "${BASH_SOURCE[0]%/*}/../hermetic.bash"
