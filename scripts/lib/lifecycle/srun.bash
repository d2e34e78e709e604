# lifecycle/srun: what differs for the hosts of a Slurm allocation from other nodes that exist already (lifecycle/existing_nodes).
# shellcheck shell=bash

# shellcheck source=scripts/lib/lifecycle/existing_nodes.bash
source "${REPO_DIR}/scripts/lib/lifecycle/existing_nodes.bash"

# nodes::shown PATH: a path of the nodes, as the user can use it: a cluster's file systems have the same paths everywhere.
nodes::shown() { printf '%s\n' "$1"; }

nodes::_source() { printf 'the Slurm job %s\n' "$SLURM_JOB_ID"; }
nodes::_where() { allocation::where "$1"; }
nodes::_token_shown() { printf '%s/ray.token\n' "$(transport::ray_directory)"; }
nodes::_address_cure() { allocation::address_cure; }

# nodes::_leave NODE: Ray has ended there.
nodes::_leave() { node::exec "$1" rm -rf -- "$(transport::ray_directory)"; }
