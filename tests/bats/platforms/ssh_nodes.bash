# Three "hosts" that a platform made: containers of the node image with a real sshd, temporary keys, one shared directory. The
# cluster's own code does not see the engine behind them.
# shellcheck shell=bash
source "${BASH_SOURCE[0]%/*}/node_image.bash"

# ssh_nodes::make: head, worker-0 and worker-1 are up and accept our login; NODES_FILE and SSH_CONFIG name them. The login shell is
# bash on head and worker-0, and dash on worker-1.
ssh_nodes::make() {
  local dir=$1 node ip
  SSH_UID=$(id -u)
  ((SSH_UID != 0)) || SSH_UID=4242 # training must not need root
  mkdir -p "${dir}/shared"
  container::seed "${dir}/shared"
  [[ $(id -u) != 0 ]] || chown -R "$SSH_UID" "${dir}/shared"
  ssh-keygen -q -t ed25519 -N '' -f "${dir}/key"
  ssh_nodes::_image "$dir"
  docker network create --label "verl-regress.cluster=${CLUSTER_NAME}" "$CLUSTER_NAME" >/dev/null
  : >"${dir}/known_hosts"
  : >"${dir}/nodes"
  for node in head worker-0 worker-1; do
    docker run --detach --init --name "${CLUSTER_NAME}-${node}" --network "$CLUSTER_NAME" --shm-size 2g \
      --label "verl-regress.cluster=${CLUSTER_NAME}" --volume "${dir}/shared:/private" "$CLUSTER_NAME" \
      /usr/sbin/sshd -D -e -o UsePAM=no -o AuthorizedKeysFile=/etc/ssh/authorized_keys >/dev/null
    ip=$(container::ip "$node")
    printf '%s %s\n' "$ip" "$(docker exec "${CLUSTER_NAME}-${node}" cat /etc/ssh/ssh_host_ed25519_key.pub)" >>"${dir}/known_hosts"
    printf '%s trainer@%s path=/opt/venv/bin\n' "$node" "$ip" >>"${dir}/nodes"
  done
  docker exec "${CLUSTER_NAME}-worker-1" usermod --shell /bin/dash trainer
  printf 'IdentityFile %s\nIdentitiesOnly yes\nUserKnownHostsFile %s\n' "${dir}/key" "${dir}/known_hosts" >"${dir}/config"
  export NODES_FILE="${dir}/nodes" SSH_CONFIG="${dir}/config"
}

# ssh_nodes::remove: removes the containers, the network, the image, and files that read-only snapshots would keep.
ssh_nodes::remove() {
  docker rm --force "${CLUSTER_NAME}"-{head,worker-0,worker-1} >/dev/null 2>&1
  docker network rm "$CLUSTER_NAME" >/dev/null 2>&1
  docker image rm --force "$CLUSTER_NAME" >/dev/null 2>&1
  chmod -R u+w "$1/shared"
}

ssh_nodes::_image() {
  mkdir -p "$1/context"
  cp "$1/key.pub" "$1/context/authorized_keys"
  node_image::add "$1" openssh-server <<DOCKERFILE
RUN mkdir -p /run/sshd && useradd --uid ${SSH_UID} --create-home --shell /bin/bash --password '*' trainer
COPY authorized_keys /etc/ssh/authorized_keys
DOCKERFILE
}
