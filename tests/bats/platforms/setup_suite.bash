# Before and after all tests on podman, ssh, several hosts and Slurm: as for the container tests, with separate clusters.
# shellcheck shell=bash
source "${BASH_SOURCE[0]%/*}/../container/setup_suite.bash"
SUITE_CLUSTERS=vrplatform
