# Before and after all fault tests: as for the container tests, with separate clusters on the same prepared data.
# shellcheck shell=bash
source "${BASH_SOURCE[0]%/*}/../container/setup_suite.bash"
SUITE_CLUSTERS=vrfault
