"""Faults that are planted on the real nodes of a cluster, and what takes them out again.

Each is a shell script for this machine, as root, that has NODE (the container, worker-1 unless the fault says otherwise), PID (its first process),
IP, HEAD and HEAD_IP, OTHER_IP (worker-0's), BRIDGE and VETH (this machine's ends of the network and of the node's interface), SHARED (the
shared root here), LAB (a directory that is removed afterwards), and these functions:

    inside SCRIPT      root's shell in the node
    net COMMAND...     a command of this machine in the node's network
    mounts COMMAND...  a command of the node in its mounts
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_SHELL = """set -euo pipefail
inside() { docker exec --user 0 "$NODE" sh -ec "$1"; }
net() { nsenter --target "$PID" --net -- "$@"; }
mounts() { nsenter --target "$PID" --mount -- "$@"; }
"""
# A library that each process of the node loads.
_CLOCK = """#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
  int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
  int said = real(clock, now);
  if (clock == CLOCK_REALTIME) now->tv_sec += 600;
  return said;
}"""
# sshfs without a network: its ssh is the file server itself, every message of which waits for $1 seconds.
_SLOW_SFTP = """#!/usr/bin/env python3
import os, subprocess, sys, threading, time
server = subprocess.Popen(["/usr/lib/openssh/sftp-server"], stdin=subprocess.PIPE, stdout=sys.stdout)
while data := os.read(0, 65536):
    time.sleep(DELAY)
    server.stdin.write(data)
    server.stdin.flush()
"""


@dataclass(frozen=True)
class Fault:
    """The code that should find it, and how it is planted. With `options` the node is made again, with these of `docker run`."""

    code: str
    plant: str = ""
    undo: str = ""  # empty: the node is removed, and made again without the fault
    node: str = "worker-1"
    options: tuple[str, ...] = ()
    before: str = ""  # before the node is made again
    root: str = ""  # its shared root, if that is another directory
    after: str = ""  # when the node is removed


def _sshfs(delay: float) -> dict[str, str]:
    script = _SLOW_SFTP.replace("DELAY", str(delay))
    return {
        "before": f"cat >$LAB/sftp <<'END'\n{script}END\nchmod +x $LAB/sftp; mkdir $LAB/mnt\n"
        f"sshfs -o ssh_command=$LAB/sftp,allow_other,uid=$(stat -c %u $SHARED) x:$SHARED $LAB/mnt",
        "root": "$LAB/mnt",
        "after": "fusermount3 -u -z $LAB/mnt",
    }


def _bindfs(options: str) -> dict[str, str]:
    return {
        "before": f"mkdir $LAB/mnt; bindfs {options} $SHARED $LAB/mnt",
        "root": "$LAB/mnt",
        "after": "fusermount3 -u -z $LAB/mnt",
    }


# What a host says to all others: this address is mine. Once it boots; a busy one again and again, for as long as asked.
_CLAIM = """import socket, struct, sys, time
address, card = socket.inet_aton(sys.argv[1]), socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
card.bind(("eth0", 0))
mac = card.getsockname()[4]
end = time.monotonic() + float(sys.argv[2])
while True:
    card.send(b"\\xff" * 6 + mac + struct.pack("!HHHBBH", 0x806, 1, 0x800, 6, 4, 1) + mac + address + b"\\0" * 6 + address)
    if time.monotonic() >= end:
        break
    time.sleep(0.5)
"""
_SILENT_SERVER = "import socket, time; s = socket.socket(type=socket.SOCK_DGRAM); s.bind((str(), 53)); time.sleep(600)"

# Chosen by another person than wrote the checks, after these were done.
CHOSEN_LATER: Mapping[str, Fault] = {
    "a blackhole route from one worker to the other": Fault(
        "VR-NET-01", "net ip route add blackhole $OTHER_IP", "net ip route del blackhole $OTHER_IP"
    ),
    "a firewall that drops more than 20 connections at a time": Fault(
        "VR-NET-01",
        "net iptables -A INPUT -p tcp --syn -m connlimit --connlimit-above 20 -j DROP",
        "net iptables -F INPUT",
    ),
    "100 packets a second": Fault(
        "VR-NET-05",
        "net iptables -A INPUT -m limit --limit 100/s --limit-burst 20 -j ACCEPT; net iptables -A INPUT -j DROP",
        "net iptables -F INPUT",
    ),
    "its own name is ::1 first": Fault(
        "VR-NET-03",
        "inside 'cp /etc/hosts /hosts; { echo ::1 $(hostname); grep -v $(hostname) /hosts || true; } >/etc/hosts'",
        "inside 'cat /hosts >/etc/hosts; rm /hosts'",
    ),
    "another Ray on one worker": Fault(
        "VR-STACK-01",
        "inside 'cd /opt/venv/lib/python3.11/site-packages; sed -i s/2.60.0/2.59.0/ ray/_version.py ray-*.dist-info/METADATA'",
    ),
    "one worker runs as a user of its own": Fault("VR-ROOT-01", options=("--user=4242:4242",)),
}
FAULTS: Mapping[str, Fault] = {
    "the node is gone": Fault("VR-NODE-01", "docker kill $NODE >/dev/null"),
    "FORWARD DROP between the nodes": Fault(
        "VR-NET-01",
        "iptables -I FORWARD -i $BRIDGE -o $BRIDGE -j DROP",
        "iptables -D FORWARD -i $BRIDGE -o $BRIDGE -j DROP",
    ),
    "one port blocked one way (the GCS's, from a worker)": Fault(
        "VR-NET-01", "net iptables -A OUTPUT -p tcp --syn -d $HEAD_IP --dport 6379 -j DROP", "net iptables -F OUTPUT"
    ),
    "a firewall that rejects, on one worker": Fault(
        "VR-NET-01",
        "net iptables -A INPUT -p tcp -s $OTHER_IP --syn -j REJECT --reject-with icmp-admin-prohibited",
        "net iptables -F INPUT",
    ),
    "NAT": Fault(
        "VR-NET-02",
        "net ip address add ${IP%.*.*}.200.250/16 dev eth0; net iptables -t nat -A POSTROUTING -o eth0 -j SNAT --to-source ${IP%.*.*}.200.250",
    ),
    "the hosts file says 127.0.1.1": Fault(
        "VR-NET-03",
        "inside 'cp /etc/hosts /hosts; { echo 127.0.1.1 $(hostname); grep -v $(hostname) /hosts || true; } >/etc/hosts'",
        "inside 'cat /hosts >/etc/hosts; rm /hosts'",
    ),
    "its address is called host.docker.internal": Fault(
        "VR-NET-03",
        "inside 'cp /etc/hosts /hosts; { echo '$IP' host.docker.internal; cat /hosts; } >/etc/hosts'",
        "inside 'cat /hosts >/etc/hosts; rm /hosts'",
    ),
    "MTU 1,400 on the way, and no ICMP": Fault("VR-NET-04", "ip link set $VETH mtu 1400", "ip link set $VETH mtu 1500"),
    "5 % loss": Fault(
        "VR-NET-05",
        "net iptables -A INPUT -m statistic --mode random --probability 0.05 -j DROP",
        "net iptables -F INPUT",
    ),
    "two interfaces, the default route on the wrong one": Fault(
        "VR-NET-06",
        "net ip link add wrong0 type veth peer name wrong1; net ip address add 10.88.0.2/24 dev wrong0; net ip link set wrong0 up\n"
        "net ip link set wrong1 up; net ip route replace default via 10.88.0.1 dev wrong0\n"
        "iptables -I FORWARD -d 10.88.0.2 -j DROP",
        after="iptables -D FORWARD -d 10.88.0.2 -j DROP",
    ),
    "a name server that does not answer": Fault(
        "VR-NET-10",
        f"docker exec --detach --user 0 $NODE python3 -c '{_SILENT_SERVER}'\n"
        "inside 'printf \"nameserver 127.0.0.1\\noptions timeout:30 attempts:1\\n\" >/etc/resolv.conf'",
    ),
    "another machine has its address": Fault(
        "VR-NET-11",
        f"cat >$LAB/claim <<'END'\n{_CLAIM}END\n"
        "ip netns add vr-doctor; ip link add vr-doctor type veth peer name eth0 netns vr-doctor; ip link set vr-doctor master $BRIDGE up\n"
        "ip -n vr-doctor address add $IP/16 dev eth0; ip -n vr-doctor link set eth0 up; ip netns exec vr-doctor python3 $LAB/claim $IP 90 &",
        "ip netns pids vr-doctor | xargs kill; ip netns delete vr-doctor; net python3 $LAB/claim $IP 0",
    ),
    "the hostname of another worker": Fault(
        "VR-NET-12",
        'other=$(docker exec ${NODE%1}0 hostname); inside "echo $IP $other >>/etc/hosts"; nsenter --target $PID --uts hostname $other',
    ),
    "a listener on the port of Ray's agent": Fault(
        "VR-NET-08", "docker exec --detach $NODE python3 -m http.server 52365"
    ),
    "256 open files": Fault("VR-MACH-01", options=("--ulimit=nofile=256:256",)),
    "memlock 64 KiB, with RDMA devices": Fault(
        "VR-MACH-01",
        "inside 'mkdir /dev/infiniband; mknod /dev/infiniband/uverbs0 c 231 192'",
        options=("--ulimit=memlock=65536:65536",),
    ),
    "a stack of 256 KiB": Fault("VR-MACH-01", options=("--ulimit=stack=262144:262144",)),
    "300 threads": Fault("VR-MACH-02", options=("--pids-limit=300",)),
    "/dev/shm is read-only": Fault(
        "VR-MACH-03", "mounts mount -o remount,ro /dev/shm", "mounts mount -o remount,rw /dev/shm"
    ),
    "/dev/shm of 64 MB": Fault("VR-MACH-04", options=("--shm-size=64m",)),
    "a memory limit of 1 GiB": Fault("VR-MACH-05", options=("--memory=1g",)),
    "/tmp is full": Fault("VR-MACH-06", options=("--tmpfs=/tmp:size=20m,mode=1777",)),
    "/tmp is 97 % full": Fault(
        "VR-MACH-06",
        before="truncate -s 20G $LAB/disk; mkfs.ext4 -q -m 0 $LAB/disk; mkdir $LAB/mnt; mount -o loop $LAB/disk $LAB/mnt\n"
        "chmod 1777 $LAB/mnt; fallocate -l 19G $LAB/mnt/.fill",
        options=("--volume=$LAB/mnt:/tmp",),
        after="umount $LAB/mnt",
    ),
    "/tmp/ray of another user": Fault("VR-MACH-07", "inside 'mkdir -m 755 /tmp/ray'"),
    "another Ray on the node": Fault(
        "VR-MACH-08",
        "docker exec $NODE env RAY_AUTH_MODE=disabled ray start --head --port=7777 --num-cpus=1 --disable-usage-stats",
    ),
    "a GPU in the head": Fault(
        "VR-MACH-11", "inside 'mknod /dev/nvidia0 c 195 0'", "inside 'rm /dev/nvidia0'", node="head"
    ),
    "a package is missing on one worker": Fault(
        "VR-STACK-01", "inside 'rm -r /opt/venv/lib/python3.11/site-packages/tensordict-*.dist-info'"
    ),
    "the shared root is read-only": Fault("VR-ROOT-01", root="$SHARED:ro"),
    "the shared root is two directories": Fault(
        "VR-ROOT-02",
        "inside 'mkdir -p -m 777 /elsewhere'; mounts mount --bind /elsewhere /private",
        "mounts python3 -c 'import ctypes; ctypes.CDLL(None).umount2(b\"/private\", 2)'",
    ),
    "no hard links (sshfs)": Fault("VR-ROOT-03", **_sshfs(0)),
    "no locks between nodes (bindfs)": Fault("VR-ROOT-04", **_bindfs("")),
    "the shared root is full": Fault(
        "VR-ROOT-05",
        "fallocate --length $(($(df --output=avail --block-size=1 $SHARED | tail -n 1) - 1000000)) $SHARED/.fill",
        "rm $SHARED/.fill",
    ),
    "the shared root has no inodes left": Fault(
        "VR-ROOT-05", "mkdir $SHARED/.many; cd $SHARED/.many; seq 11000 | xargs touch", "rm -r $SHARED/.many"
    ),
    "names are seen 30 s late (a cache)": Fault("VR-ROOT-02", **_bindfs("-o negative_timeout=30,entry_timeout=30")),
    "root squash (all files are nobody's)": Fault(
        "VR-ROOT-03", **_bindfs("--force-user=nobody --create-as-mounter --perms=a+rwX")
    ),
    "a clock ten minutes off": Fault(
        "VR-ROOT-09",
        f"echo '{_CLOCK}' | cc -shared -fPIC -x c -o $LAB/clock.so -; docker cp -q $LAB/clock.so $NODE:/clock.so; inside 'echo /clock.so >/etc/ld.so.preload'",
    ),
    **CHOSEN_LATER,
}


def _run(*command: str, **more: object) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, **more).stdout.strip()  # type: ignore[call-overload,no-any-return]


def _inspect(container: str, what: str) -> str:
    return _run("docker", "inspect", "--format", what, container)


def environment(cluster: str, workdir: Path, node: str, lab: Path) -> dict[str, str]:
    """The variables of the scripts; those of a node that does not run are empty."""
    found = {"LAB": str(lab), "SHARED": f"{workdir}/shared", "NODE": f"{cluster}-{node}", "HEAD": f"{cluster}-head"}
    address = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    for name, container in {"IP": found["NODE"], "HEAD_IP": found["HEAD"], "OTHER_IP": f"{cluster}-worker-0"}.items():
        found[name] = _inspect(container, address)
    found["PID"] = _inspect(found["NODE"], "{{.State.Pid}}")
    network = _run("docker", "network", "inspect", "--format", "{{.Id}}", f"{cluster}_ray")
    link = _run("nsenter", "--target", found["PID"], "--net", "ip", "-o", "link", "show", "eth0")
    peer = link.partition("@if")[2].partition(":")[0]
    links = _run("ip", "-o", "link").splitlines()
    found["VETH"] = next(line.split()[1].partition("@")[0] for line in links if line.startswith(f"{peer}:"))
    return {**found, "BRIDGE": f"br-{network[:12]}"}


def _remade(cluster: str, workdir: Path, node: str, root: str, options: Sequence[str]) -> None:
    """The node's container again, with other options of `docker run`, or another shared root."""
    name = f"{cluster}-{node}"
    known = json.loads(_run("docker", "inspect", name))[0]
    labels = {key: value for key, value in known["Config"]["Labels"].items() if key.startswith("verl-regress.")}
    words = [f"--env={one}" for one in known["Config"]["Env"]] + [
        f"--label={key}={value}" for key, value in labels.items()
    ]
    shared = next(mount["Destination"] for mount in known["Mounts"] if mount["Source"] == f"{workdir}/shared")
    source, _, mode = root.partition(":")
    words.append(f"--volume={source}:{shared}{':ro' if mode == 'ro' else ''}")
    words.append(f"--volume={workdir}/secrets/{cluster}.token:/run/secrets/ray_token:ro")
    words += [
        "--init",
        f"--user={known['Config']['User']}",
        f"--network={cluster}_ray",
        f"--shm-size={known['HostConfig']['ShmSize']}",
    ]
    _run("docker", "rm", "--force", name)
    _run("docker", "run", "--detach", f"--name={name}", *words, *options, known["Config"]["Image"], "sleep", "infinity")


@contextmanager
def planted(fault: Fault, cluster: str, workdir: Path, lab: Path) -> Iterator[None]:
    """Plants it; takes it out again at the end. Then the node may be missing: scripts/01_up.sh makes it. Raises CalledProcessError."""

    def shell(script: str) -> None:
        if script:
            subprocess.run(["bash", "-c", f"{_SHELL}{script}"], check=True, env={**os.environ, **variables})

    variables = environment(cluster, workdir, fault.node, lab)
    is_remade = bool(fault.options or fault.root)
    shell(fault.before)
    try:
        if is_remade:
            root, *options = (
                word.replace("$LAB", str(lab)).replace("$SHARED", variables["SHARED"])
                for word in (fault.root or "$SHARED", *fault.options)
            )
            _remade(cluster, workdir, fault.node, root, options)
            variables = environment(cluster, workdir, fault.node, lab)
        shell(fault.plant)
        yield
    finally:
        shell(fault.undo if fault.undo and not is_remade else 'docker rm --force "$NODE" >/dev/null')
        shell(fault.after)
