#!/usr/bin/env bats
# Nodes that exist already: their file, and why they are refused; a stub of ssh runs the words on this machine as the host that was
# asked for.
# shellcheck disable=SC2016  # text in single quotes is expanded on the node

# bats file_tags=slow

setup() {
  load ../test_helper
  sandbox::make
  ln -sf "$(real_python)" "${BOX}/bin/python3" # it knows what an address of IPv6 is
  printf '%s\n' 'head me@10.0.0.1' 'worker-0 me@10.0.0.2' >"${HERE}/env/nodes"
  mkdir "${BATS_TEST_TMPDIR}/shared"
  stub_ssh
  stub ray
  stub setsid
  stub printenv 'printf "%s\n" "$VERL_REGRESS_NODE_IP"'
  stub python3 - <<STUB
    case "\$*" in
      '- ray '*) PYTHONPATH="\${BOX}/site-of-\${HOST}" "$(real_python)" "\$@" ;;
      *) exit 1 ;;
    esac
STUB
  for host in 10.0.0.1 10.0.0.2; do
    fake_ray "${BOX}/site-of-${host}" 2.60.0
  done
}

# on_ssh [KNOB=VALUE...] ARGV...: a function of the libraries with TRANSPORT=ssh.
on_ssh() { sandbox::verb TRANSPORT=ssh SHARED_ROOT="${BATS_TEST_TMPDIR}/shared" "$@"; }

@test "a wrong line is refused with its number, before anything is touched" {
  while IFS='|' read -r line sentence; do
    printf '%s\n' 'head me@10.0.0.1' "$line" >"${HERE}/env/nodes"
    on_ssh node::list
    assert_error 2 "${sentence}"
  done <<'CASES'
worker-0 -oProxyCommand=x|'-oProxyCommand=x' (line 2 of env/nodes) is not a login: use user@host or user@host:port.
worker-0 me@10.0.0.2;id|'me@10.0.0.2;id' (line 2 of env/nodes) is not a login: use user@host or user@host:port.
worker-0 me@10.0.0.2 path=bin|'path=bin' (line 2 of env/nodes) is not a setting of a node: use path=/directory (before PATH there) or address=IP (by which the other nodes reach it).
worker-0 me@10.0.0.2 address=10.0.0.010|'address=10.0.0.010' (line 2 of env/nodes) is no IP address that other machines can use: write the one by which they reach this one, without zeros in front of a number.
worker-0 me@10.0.0.2 address=$(id)|'address=$(id)' (line 2 of env/nodes) is no IP address that other machines can use: write the one by which they reach this one, without zeros in front of a number.
worker-0 me@10.0.0.2 address=1:2:3|'address=1:2:3' (line 2 of env/nodes) is no IP address that other machines can use: write the one by which they reach this one, without zeros in front of a number.
worker-0 me@10.0.0.2 address=fe80::7|'address=fe80::7' (line 2 of env/nodes) is no IP address that other machines can use: write the one by which they reach this one, without zeros in front of a number.
CASES
}

@test "the example is a nodes file" {
  on_ssh NODES_FILE=env/nodes.example node::list
  assert_status 0
  assert_line 'worker-1'
}

@test "good nodes pass every check, and each check says what it saw" {
  on_ssh nodes::check
  assert_status 0
  assert_line 'ok      2 nodes answer: head worker-0 (from env/nodes)'
  assert_line 'ok      the cluster mvp11 is ours, or not there yet'
  assert_line 'ok      every node has Ray 2.54 or later'
  assert_line 'ok      every node has an address of its own: 10.0.0.1 10.0.0.2'
  assert_line 'ok      5 of 5 checks passed'
  refute_text 'error'
  [[ -z $(ls -A "${BATS_TEST_TMPDIR}/shared") ]]
}

@test "Ray that is missing or too old is refused" {
  rm -r "${BOX}/site-of-10.0.0.2"
  on_ssh nodes::check
  assert_error 1 "python3 on worker-0 (me@10.0.0.2, from env/nodes) is missing or has no Ray (the message is above): name the right one's directory (path= in NODES_FILE, or NODES_PATH)."
  fake_ray "${BOX}/site-of-10.0.0.2" 2.60.0
  fake_ray "${BOX}/site-of-10.0.0.1" 2.53.1
  on_ssh nodes::check
  assert_error 1 'head has Ray 2.53.1, which CVE-2026-27482 leaves open to others (fixed in 2.54): install Ray 2.54 or later on every node.'
}

@test "an address that no other node reaches, or that two nodes share, is refused" {
  on_ssh ADDRESS=127.0.0.1 nodes::check
  assert_error 1 "head has the address '127.0.0.1' in its own view, which no other node can reach: set its address with address= in env/nodes."
  on_ssh ADDRESS=fe80::7%eth0 nodes::check
  assert_error 1 "head has the address 'fe80::7%eth0' in its own view, which no other node can reach: set its address with address= in env/nodes."
  on_ssh ADDRESS=10.0.0.7 nodes::check
  assert_error 1 'worker-0 has the same address as another node of env/nodes, 10.0.0.7, but two nodes in one network namespace are not supported: remove one of them there.'
}

@test "a shared root that contains the nodes' HOME is refused" {
  mkdir "${BATS_TEST_TMPDIR}/home"
  mv "${BOX}/home dir" "${BATS_TEST_TMPDIR}/home/me"
  on_ssh HOME="${BATS_TEST_TMPDIR}/home/me" SHARED_ROOT="${BATS_TEST_TMPDIR}/home" nodes::check
  # shellcheck disable=SC2088  # as the message has it
  assert_error 1 "~/.verl-regress/mvp11.token on the head is on ${BATS_TEST_TMPDIR}/home (SHARED_ROOT), where Ray's token must not be: log in as another user, or set another SHARED_ROOT."
}

@test "a node that refuses us is named with ssh's own words" {
  printf '%s\n' 'head me@10.0.0.1' 'worker-0 me@10.0.0.9:2222' >"${HERE}/env/nodes"
  on_ssh nodes::check
  assert_error 8 "The node 'worker-0' (me@10.0.0.9:2222, from env/nodes) cannot be reached (me@10.0.0.9: Permission denied (publickey)): 'ssh -p 2222 me@10.0.0.9 true' must work without a prompt; fix that first."
}

@test "a login shell that does not run our command is named with its own words" {
  sed -i "s|^    exec env|    echo 'This account is not available.' >\&2 \&\& exit 1 #|" "${BOX}/bin/ssh"
  on_ssh node::exec worker-0 true
  assert_error 8 "The login shell of the node 'worker-0' (me@10.0.0.2, from env/nodes) did not run our command: it ended with exit status 1 (This account is not available): let the files that it reads first (such as ~/.bashrc or ~/.zshenv) neither exit nor run another shell, and give the user a shell that runs commands."
}

# promise: turns Ray's debugger on for a job that did not ask for it
@test "the debugger's port, which asks for no password, is not on the network" {
  on_ssh nodes::debugger_host
  assert_line 127.0.0.1
}

@test "Ray's directory is one on all nodes, and has room for Ray's sockets" {
  echo 'export RAY_TMPDIR=/dev/shm' >"${HERE}/env/local.env"
  printf 'TMPDIR=/nowhere\0RAY_TMPDIR=/nowhere\0' >"${BOX}/profile"
  for node in head worker-0; do
    on_ssh node::exec "$node" sh -c 'echo "$RAY_TMPDIR $TMPDIR"'
    assert_line '/dev/shm /dev/shm'
  done
  echo 'export RAY_TMPDIR=/scratch/users/of/the/team/me/and/my/ray' >"${HERE}/env/local.env"
  on_ssh node::list
  assert_error 2 "Ray's directory would be '/scratch/users/of/the/team/me/and/my/ray' (RAY_TMPDIR or TMPDIR, exported by env/local.env or env/cpu.env): use an absolute path of at most 39 characters, because the path of a socket in it has at most 107 bytes."
}

@test "a connection that outlives a script keeps no lock" {
  ln -sf "$(command -v flock)" "$(command -v od)" "${BOX}/bin/"
  on_ssh eval 'login::is_connected() { false; }; login::client() { ls -l "/proc/${BASHPID}/fd" >"${HOME}/open"; }
    cluster::lock; ls -l "/proc/$$/fd" >"${HOME}/held"; login::connect head "${HOME}/said"'
  assert_status 0
  [[ $(grep -c '/locks/' "${BOX}/home dir/held") == 1 ]] || fail "$(<"${BOX}/home dir/held")"
  [[ $(grep -c '/locks/' "${BOX}/home dir/open") == 0 ]] || fail "$(<"${BOX}/home dir/open")"
}

# as_hosts: every host has its own HOME, as hosts do; our libraries' questions about processes get the answer "none".
as_hosts() {
  sed -i 's|^    exec env|    export HOME="${BOX}/home of ${HOST}"; mkdir -p "$HOME"; exec env|' "${BOX}/bin/ssh"
  stub python3 'cat >/dev/null; case "$*" in *stop*) [[ ! -e ${BOX}/stuck-on-${HOST} ]] && echo 0 ;; *" live "*) cat "${BOX}/live" 2>/dev/null || true ;; esac'
  ln -sf "$(command -v flock)" "$(command -v od)" "$(command -v rmdir)" "${BOX}/bin/"
  mkdir -p "${BOX}/work dir/secrets"
  printf token >"${BOX}/work dir/secrets/mvp11.token"
  printf 00000000000000aa >"${BOX}/work dir/id"
  OWNERS=("${BOX}/home of 10.0.0.1/.verl-regress/mvp11.owner" "${BOX}/home of 10.0.0.2/.verl-regress/mvp11.owner")
}

@test "make up writes the owner on every node, and make down removes it" {
  as_hosts
  on_ssh nodes::ensure_up
  assert_status 0
  for file in "${OWNERS[@]}"; do
    [[ $(<"$file") == "00000000000000aa|$(id -un)|${BOX}/work dir" && $(stat -c %a "$file") == 600 ]] || fail "$(<"$file")"
  done
  on_ssh owner::need_own
  assert_status 0
  touch "${BOX}/stuck-on-10.0.0.2"
  on_ssh nodes::ensure_down
  assert_status 8
  assert_line "error   Ray may still run on worker-0 (from env/nodes): run 'make down' again when they answer."
  [[ ! -e ${OWNERS[0]} && -e ${OWNERS[1]} && -e ${OWNERS[1]%.owner}.token ]]
  rm "${BOX}/stuck-on-10.0.0.2"
  on_ssh nodes::ensure_down
  assert_status 0
  [[ ! -e ${OWNERS[1]} ]]
}

# promise: changes or removes another checkout's cluster, even with `FORCE=1`
@test "a node that another checkout uses under our name is refused, whatever is asked" {
  local theirs='The cluster mvp11 belongs to another checkout: /home/a/workdir of user alice' file
  local cure="set another CLUSTER_NAME (and DASHBOARD_PORT), or run 'make down' in that checkout (docs/lifecycle.md says what to do if it was moved)."
  as_hosts
  mkdir -p "${OWNERS[0]%/*}" "${OWNERS[1]%/*}"
  printf '00000000000000bb|alice|/home/a/workdir\n' >"${OWNERS[1]}"
  for verb in nodes::check nodes::ensure_up nodes::ensure_down owner::need_own; do
    on_ssh "$verb"
    assert_error 2 "${theirs}: ${cure}"
  done
  [[ $(<"${OWNERS[1]}") == *alice* ]]
}
