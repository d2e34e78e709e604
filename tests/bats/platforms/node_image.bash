# The image of test hosts: the node image with more packages, from those that apt finds missing there: no registry, no network in the build.
# shellcheck shell=bash

# node_image::add DIR PACKAGE...: makes the image CLUSTER_NAME. The lines on stdin go to the end of its Dockerfile; COPY there takes
# files of DIR/context.
node_image::add() {
  local dir=$1 image
  shift
  image=$(TRANSPORT=container scripts/10_build_image.sh --name 2>/dev/null)
  mkdir -p "${dir}/context/partial"
  docker run --rm --network none "$image" cat /var/lib/dpkg/status >"${dir}/dpkg-status"
  apt-get -qq --yes --no-install-recommends --download-only -o "Dir::State::status=${dir}/dpkg-status" \
    -o "Dir::Cache::archives=${dir}/context" -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=1 install "$@" >/dev/null
  {
    printf '%s\n' "FROM ${image}" 'COPY *.deb /debs/' 'RUN DEBIAN_FRONTEND=noninteractive dpkg --install /debs/*.deb >/dev/null && rm -r /debs'
    cat
  } >"${dir}/context/Dockerfile"
  docker build --quiet --network none --tag "$CLUSTER_NAME" "${dir}/context" >/dev/null 2>&1
}
