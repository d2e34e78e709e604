#!/usr/bin/env bash
# 10_build_image: the image that the nodes run; its tag is a hash of its inputs.
#
#   scripts/10_build_image.sh          build it; unchanged inputs: skip
#   scripts/10_build_image.sh --name   print its name, build nothing
#
# Knobs: BASE_IMAGE, TORCH_INDEX_URL, NODE_IMAGE (use that image, build nothing).
# The packages are downloaded on the host into ${WORKDIR}/cache/wheelhouse, with the host's pip configuration; the build itself
# needs no network. Where there is none, use a kit (docs/air-gap.md).
source "$(dirname "$0")/lib/regress.bash"
cli::begin_with --name "$@"
env::load

if [[ ${1:-} == --name ]]; then
  image::name
  exit 0
fi

image::need_engine
image::ensure
