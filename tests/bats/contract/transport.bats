#!/usr/bin/env bats
# What every transport must do: pass words unchanged, and return status, stdin and output. Here with stubs for engine, ssh and srun
# that run the words on this machine; the same tests run on real containers in tests/bats/container/50_transport.bats, over a real
# sshd in 80_ssh.bats, and in a real Slurm in 87_slurm.bats.
# shellcheck disable=SC2016  # text in single quotes is expanded on the node

setup() {
  load transport_contract
  # A copy, because the user's checkout has env/local.env and env/nodes; connections are kept below HOST_ROOT.
  REPO="${BATS_TEST_TMPDIR}/checkout"
  mkdir -p "$REPO" "${BATS_TEST_TMPDIR}/tmp"
  cp -r "${BATS_TEST_DIRNAME}/../../.."/{scripts,env,jobspecs} "$REPO"
  ln -s -t "$REPO" -- "$(realpath "${BATS_TEST_DIRNAME}/../../..")"/{py,judge,rehearsal}
  rm -f "${REPO}/env/local.env" "${REPO}/env/nodes"
  export CLUSTER_NAME=stand-in SHARED_ROOT=$BATS_TEST_TMPDIR HOST_ROOT=$BATS_TEST_TMPDIR
  mkdir "${BATS_TEST_TMPDIR}/bin"
  cat >"${BATS_TEST_TMPDIR}/bin/docker" <<'STANDIN'
#!/bin/bash
case $1 in
  inspect) if [[ $3 == *Name* ]]; then echo '/stand-in-worker-0|true||10.0.0.2 |stand-in|aa|me|/'; else echo true; fi ;;
  exec)
    shift
    if [[ $1 == --interactive ]]; then shift; else exec </dev/null; fi
    shift # the container's name
    mapfile -d '' -t profile <"${BATS_TEST_TMPDIR}/profile"
    exec env "${profile[@]}" "$@"
    ;;
esac
STANDIN
  # Joins the words after the host with spaces and gives them to the login shell, as sshd does.
  cat >"${BATS_TEST_TMPDIR}/bin/ssh" <<'STANDIN'
#!/bin/bash
host=''
while (($#)); do
  case $1 in
    -F | -p | -o | -E) shift 2 ;;
    -T | -N | -f) shift ;;
    -O) exit 0 ;;
    --) shift && break ;;
    *) host=$1 && shift ;;
  esac
done
[[ $host == me@10.0.0.2 ]] || exit 255
export HOME=/tmp SSH_CONNECTION='10.0.0.1 40000 10.0.0.2 22'
mapfile -d '' -t profile <"${BATS_TEST_TMPDIR}/profile"
exec env "${profile[@]}" "${LOGIN_SHELL:-sh}" -c "$*"
STANDIN
  # Slurm's commands. Like srun it takes a word ":" for the end of a command, and reports an exit status other than 0.
  cat >"${BATS_TEST_TMPDIR}/bin/srun" <<'STANDIN'
#!/bin/bash
input=all error=/dev/stderr status=0
for word; do [[ $word != : ]] || exit 2; done
while [[ $1 == --* ]]; do
  case $1 in
    --input=*) input=${1#*=} ;;
    --error=*) error=${1#*=} ;;
  esac
  shift
done
[[ $input == all ]] || exec </dev/null
mapfile -d '' -t profile <"${BATS_TEST_TMPDIR}/profile"
env "${profile[@]}" "$@" 2>>"$error" || status=$?
((status == 0)) || echo "srun: error: gpu-1: task 0: Exited with exit code ${status}" >&2
exit "$status"
STANDIN
  printf '#!/bin/sh\necho "RUNNING|gpu-[0-1]"\n' >"${BATS_TEST_TMPDIR}/bin/squeue"
  cat >"${BATS_TEST_TMPDIR}/bin/scontrol" <<'STANDIN'
#!/bin/bash
if [[ $2 == hostnames ]]; then printf 'gpu-%d\n' 0 1; else printf 'NodeName=gpu-%d Arch=x NodeAddr=127.0.0.%d Version=22\n' 0 1 1 2; fi
STANDIN
  chmod +x "${BATS_TEST_TMPDIR}/bin"/*
  : >"${BATS_TEST_TMPDIR}/profile" # variables of the node, each ended by a NUL
  printf '%s\n' 'head me@10.0.0.1' '  # a comment' '' 'worker-0  me@10.0.0.2:2222 path=/a/b:/c' >"${BATS_TEST_TMPDIR}/nodes"
  PATH="${BATS_TEST_TMPDIR}/bin:${PATH}"
}

over() { export TRANSPORT=$1 NODES_FILE="${BATS_TEST_TMPDIR}/nodes" SLURM_JOB_ID=12; }

keeps() { over "$1" && "contract::$2"; }

for transport in container ssh srun; do
  for promise in hostile_words exit_status stdin big_output put_and_get spawn; do
    bats_test_function --description "${transport}: ${promise}" -- keeps "$transport" "$promise"
  done
done

@test "ssh: hostile arguments arrive unchanged whatever the login shell" {
  over ssh
  for shell in dash bash; do
    LOGIN_SHELL=$(command -v "$shell")
    export LOGIN_SHELL
    contract::hostile_words
  done
  # fish, csh and others interpret other characters, but no letters between single quotes.
  run on existing_nodes::command worker-0 printf '%s\n' "it's" $'two\nlines' '$HOME' '!!'
  [[ $output =~ ^'exec sh -c '\''script=$(printf %s '[A-Za-z0-9+/=]+' | base64 -d) && eval "$script"'\'$ ]]
}

# has_our_environment TRANSPORT: whatever the node's image or profile sets, but for where its packages are and which GPUs are its own.
has_our_environment() {
  over "$1"
  printf '%s\0' RAY_AUTH_TOKEN=odd RAY_AUTH_MODE=odd RAY_ADDRESS=odd RAY_TMPDIR=/odd TMPDIR=/odd PYTHONHOME=/odd PYTHONWARNINGS=odd GIT_DIR=/odd \
    CUDA_LAUNCH_BLOCKING=odd LC_ALL=odd LC_NUMERIC=odd LANG=odd POSIXLY_CORRECT=odd BASH_ENV=/odd CDPATH=/odd TAR_OPTIONS=--odd \
    'BASH_FUNC_printf%%=() { echo odd; }' SHELLOPTS=noglob VERL_REGRESS_NODE_IP=odd PYTHONPATH=/packages CUDA_VISIBLE_DEVICES=4,5 \
    $'LINES_OF=a\nRAY_ADDRESS=b' >"${BATS_TEST_TMPDIR}/profile"
  variables=$(on node::exec "$NODE" env)
  [[ $variables != *odd* ]] || fail "$variables"
  for line in LC_ALL=C.UTF-8 RAY_AUTH_MODE=token PYTHONPATH=/packages CUDA_VISIBLE_DEVICES=4,5 LINES_OF=a; do
    grep -qxF -- "$line" <<<"$variables" || fail "${line} is not in: ${variables}"
  done
}

for transport in container ssh srun; do
  bats_test_function --description "${transport}: the environment is ours" -- has_our_environment "$transport"
done

@test "ssh: a command on a node has the environment that compose gives containers" {
  over ssh
  run on node::exec worker-0 sh -c 'echo "$SHARED_ROOT $RAY_AUTH_MODE $RAY_AUTH_TOKEN_PATH $RAY_USAGE_STATS_ENABLED $VERL_REGRESS_NODE_IP ${PATH%%:/usr*}"'
  [[ $output == "${SHARED_ROOT} token /tmp/.verl-regress/stand-in.token 0 10.0.0.2 /a/b:/c:${BATS_TEST_TMPDIR}/bin"* ]]
}

# keeps_nodes_from_proxies TRANSPORT NAME ADDRESS: the node's own name and its address are in no_proxy; what resolves there, too.
keeps_nodes_from_proxies() {
  over "$1"
  printf '#!/bin/sh\nshift\nfor name; do echo "10.1.1.1 STREAM $name"; done\n' >"${BATS_TEST_TMPDIR}/bin/getent"
  chmod +x "${BATS_TEST_TMPDIR}/bin/getent"
  [[ $(on node::exec "$NODE" env) != *no_proxy* ]]
  printf '%s\0' HTTPS_PROXY=http://proxy.corp:3128 NO_PROXY=172.16.0.0/12 no_proxy=.image >"${BATS_TEST_TMPDIR}/profile"
  past=$(on node::exec "$NODE" printenv no_proxy)
  [[ $past == .image,172.16.0.0/12,localhost,127.0.0.1,* && $past != *,,* ]] || fail "$past"
  for word in "$2" "$3" 10.1.1.1; do [[ ,${past}, == *",${word},"* ]] || fail "${word} is not in: ${past}"; done
  [[ $(on node::exec "$NODE" printenv NO_PROXY) == "$past" ]]
  printf 'http_proxy=proxy.corp:3128\0no_proxy=*\0' >"${BATS_TEST_TMPDIR}/profile" # no proxy at all
  [[ $(on node::exec "$NODE" printenv no_proxy) == '*' ]]
  : >"${BATS_TEST_TMPDIR}/profile"
  printf 'export %s\n' http_proxy=http://proxy.corp:3128 no_proxy=.corp RAY_grpc_enable_http_proxy=1 >"${REPO}/env/local.env"
  [[ $(on node::exec "$NODE" printenv RAY_grpc_enable_http_proxy) == 1 ]]
  [[ $(on node::exec "$NODE" printenv no_proxy) == .corp,localhost,*",$2,"* ]]
}

for row in 'container stand-in-worker-0 10.0.0.2' 'ssh 10.0.0.1 10.0.0.2' 'srun gpu-1 10.1.1.1'; do
  # shellcheck disable=SC2086  # three words
  bats_test_function --description "${row%% *}: nodes are reached past proxies" -- keeps_nodes_from_proxies $row
done
