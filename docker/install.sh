#!/bin/sh
# The node image's Python: Python 3.11 with Ray, torch and one pinned verl in /opt/venv. Runs inside a container of the base
# image that has the wheelhouse at /wheels and no network (scripts/lib/lifecycle/image.bash).
set -eu

# --no-deps: the wheelhouse holds exactly what the image should.
install() {
  /opt/venv/bin/python -m pip install --quiet --no-cache-dir --disable-pip-version-check --no-compile --no-index --no-deps "$@"
}

python3.11 -m venv /opt/venv
# torch is half of all bytes and shares no directory with the others.
install /wheels/torch-*.whl &
torch=$!
for wheel in /wheels/*.whl; do
  case $wheel in
    /wheels/torch-*) ;;
    *) set -- "$@" "$wheel" ;;
  esac
done
install "$@"
wait "$torch"

# The C++ headers and pyarrow's own tests are dead weight.
cd /opt/venv/lib/python3.11/site-packages
rm -rf torch/include pyarrow/include pyarrow/tests
# Nodes do not run as root and could not keep bytecode. As with pip, a file that Python cannot compile is left as it is.
/opt/venv/bin/python -m compileall -qq -j 0 . || true
