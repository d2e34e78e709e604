"""A file system for tests that behaves as an NFS mount can: one directory, and two mounts of it, as two clients have.

It speaks FUSE's own protocol (linux/fuse.h, version 7.31) over /dev/fuse, so it needs root and nothing to install. What its options
take away or add is what real mounts do; `Disk` starts it in a process of its own and asks it what it was called for.

As in Linux's NFS client, `flock` on a directory is known to its own mount alone, an exclusive lock needs a file that is open for
writing, and a shared one a file that is open for reading (flock(2), "NFS details").
"""

import argparse
import contextlib
import ctypes
import enum
import errno
import fcntl
import json
import os
import select
import stat
import struct
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

_IN, _OUT = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
_ATTR = struct.Struct("<6Q10I")
_LARGEST = 1 << 17


class Op(enum.IntEnum):
    """What the kernel asks for."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    SETLK = 32
    SETLKW = 33
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42
    RENAME2 = 45


# No program waits for these: they are neither counted nor delayed. NFS has no others (getxattr, ioctl) than those of Op.
_SILENT = (Op.FORGET, Op.BATCH_FORGET, Op.INTERRUPT, Op.INIT, Op.DESTROY, Op.RELEASE, Op.RELEASEDIR)
_CHANGES = (
    Op.SETATTR, Op.SYMLINK, Op.MKNOD, Op.MKDIR, Op.UNLINK, Op.RMDIR, Op.RENAME, Op.RENAME2, Op.LINK, Op.WRITE, Op.CREATE
)  # fmt: skip
_GROWS = (Op.SYMLINK, Op.MKNOD, Op.MKDIR, Op.WRITE, Op.CREATE)
_ASYNC_READ, _ATOMIC_TRUNC, _BIG_WRITES, _FLOCK_LOCKS, _PARALLEL_DIROPS = 1, 8, 32, 1 << 10, 1 << 18


class Disk:
    """The mounts of one directory, with these options; they are gone after `close`."""

    def __init__(self, place, **options):
        self.backing, self.mounts = place / "exported", [place / "client-0", place / "client-1"]
        for directory in (self.backing, *self.mounts):
            directory.mkdir(parents=True, exist_ok=True)
        self._server = subprocess.Popen(
            [sys.executable, __file__, *map(str, (self.backing, *self.mounts)), json.dumps(options)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._server.stdout.readline() == "ready\n"

    def becomes(self, **options):
        """Changes some options; returns how often each call was asked for since the last time.

        `most_at_once` is then how many of them waited for their answer at the same time, and `in_a_row` how many of them one
        program had to ask one after the other: all but those that another thread of it asked meanwhile.
        """
        self._server.stdin.write(json.dumps(options) + "\n")
        self._server.stdin.flush()
        calls = Counter(json.loads(self._server.stdout.readline()))
        self.most_at_once, self.in_a_row = calls.pop("at once", 0), calls.pop("in a row", 0)
        return calls

    def close(self):
        self._server.stdin.close()
        assert self._server.wait(10) == 0
        self._server.stdout.close()


class Failed(Exception):
    """The errno that answers a call."""


class Server:
    """The directory, and the locks on it that all mounts share."""

    def __init__(self, backing, options):
        self.options = {
            "locks": "shared",  # by all mounts; local to each mount; void: they exclude nobody; none
            "ends": True,  # a lock ends with the open file that holds it
            "links": True,
            "renames": True,  # False: refused; void: answered, and not done
            "symlinks": True,
            "loses": False,  # the answer to `link`; that to its repetition arrives
            "folds": False,  # upper and lower case are one
            "fails": None,  # what every change answers, such as EROFS
            "squash": None,  # the uid of all files
            "modes": None,  # the mode of all files
            "lost": {},  # what each of these paths answers instead of being found, such as ESTALE
            "kinds": True,  # a listing says which names are directories
            "delay": 0.0,  # seconds that each call takes
            "valid": 0,  # seconds for which a mount remembers names and attributes
            **options,
        }
        self.calls = Counter()
        self.rows = {}  # by thread: how many calls in a row led to its last one
        self.top = os.open(backing, os.O_PATH | os.O_DIRECTORY)
        self.locks = {}  # by inode: who has it (a mount and the kernel's id of the open file), and whether exclusively
        self.delayed = []  # calls that are answered later, each with that time
        self.waiting = []  # calls for a lock that is not free yet

    def lock(self, mount, inode, owner, how):
        """Returns whether the lock was free."""
        holders = self.locks.setdefault(inode, {})
        if how == fcntl.F_UNLCK:
            holders.pop((mount, owner), None)
            return True
        if self.options["locks"] == "void":
            return True
        others = [other for key, other in holders.items() if key != (mount, owner)]
        if others and (how == fcntl.F_WRLCK or fcntl.F_WRLCK in others):
            return False
        holders[mount, owner] = how
        return True

    def release(self, mount, inode, owner):
        """The open file is gone; the kernel may soon give its id to another one, to which a lock that stays must not belong."""
        how = self.locks.get(inode, {}).get((mount, owner))
        self.lock(mount, inode, owner, fcntl.F_UNLCK)
        if how is not None and not self.options["ends"]:
            self.locks[inode][mount, object()] = how
        self.retry()

    def row_of(self, thread):
        """How many calls in a row lead to the one that this thread asks now: it waits for its own, a main thread for all others too."""
        status = Path(f"/proc/{thread}/status")
        main = int(status.read_text().partition("\nTgid:")[2].split()[0]) if status.exists() else thread
        before = self.rows.values() if thread == main else [self.rows.get(each, 0) for each in (thread, main)]
        self.rows[thread] = 1 + max(before, default=0)
        return self.rows[thread]

    def retry(self):
        """Answers the calls whose locks are free by now."""
        for call in list(self.waiting):
            mount, unique, inode, owner, how = call
            if self.lock(mount, inode, owner, how):
                self.waiting.remove(call)
                mount.answer(unique)


class Mount:
    """One mount: a client."""

    def __init__(self, server, place):
        self.server, self.place = server, place
        self.device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        self.nodes = {1: (server.top, 1)}  # by id: an O_PATH descriptor, and how often the kernel has it
        self.ids = {}  # by inode
        self.files = {}  # by handle: descriptor, flags
        self.last = 1
        words = f"fd={self.device},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"verl-regress-test", os.fsencode(place), b"fuse", 0, words.encode()) != 0:
            raise OSError(ctypes.get_errno(), "mount")

    def unmount(self):
        ctypes.CDLL(None).umount2(os.fsencode(self.place), 2)  # MNT_DETACH
        os.close(self.device)

    def answer(self, unique, payload=b"", error=0):
        with contextlib.suppress(FileNotFoundError):  # the call was interrupted
            os.write(self.device, _OUT.pack(_OUT.size + len(payload), -error, unique) + payload)

    def take(self):
        """Reads one call, and answers it now, or when the delay has passed."""
        try:
            message = os.read(self.device, _LARGEST + 4096)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                return
            raise
        _, opcode, _, _, *_ = _IN.unpack_from(message)
        if opcode in _SILENT or opcode not in list(Op) or self._is_clean(opcode, message):
            self.serve(message)
            return
        self.server.calls[Op(opcode).name.lower()] += 1
        self.server.calls["at once"] = max(self.server.calls["at once"], len(self.server.delayed) + 1)
        self.server.calls["in a row"] = max(
            self.server.calls["in a row"], self.server.row_of(_IN.unpack_from(message)[6])
        )
        self.server.delayed.append((time.monotonic() + self.server.options["delay"], self, message))

    def _is_clean(self, opcode, message):
        """A file that was only read is closed without asking the server."""
        return (
            opcode == Op.FLUSH
            and self.files[struct.unpack_from("<Q", message, _IN.size)[0]][1] & os.O_ACCMODE == os.O_RDONLY
        )

    def serve(self, message):
        """Answers a call."""
        _, opcode, unique, node, uid, gid, *_ = _IN.unpack_from(message)
        body = message[_IN.size :]
        try:
            payload = self._do(opcode, unique, node, uid, gid, body)
        except Failed as error:
            self.answer(unique, error=error.args[0])
        except OSError as error:
            self.answer(unique, error=error.errno)
        else:
            if payload is not None:
                self.answer(unique, payload)

    def _do(self, opcode, unique, node, uid, gid, body):
        method = {
            Op.INIT: self._init, Op.LOOKUP: self._lookup, Op.GETATTR: self._getattr, Op.SETATTR: self._setattr, Op.READLINK: self._readlink,
            Op.UNLINK: self._unlink, Op.RMDIR: self._rmdir, Op.RENAME: self._rename, Op.RENAME2: self._rename, Op.LINK: self._link,
            Op.OPEN: self._open, Op.READ: self._read, Op.WRITE: self._write, Op.STATFS: self._statfs, Op.RELEASE: self._release,
            Op.FSYNC: self._nothing, Op.FLUSH: self._nothing, Op.OPENDIR: self._opendir, Op.READDIR: self._readdir,
            Op.RELEASEDIR: self._release, Op.FSYNCDIR: self._nothing,
        }.get(opcode)  # fmt: skip
        fails = self.server.options["fails"]
        if fails in ("EROFS", "EACCES") and (
            opcode in _CHANGES or (opcode == Op.OPEN and struct.unpack_from("<I", body)[0] & 3)
        ):
            raise Failed(getattr(errno, fails))
        if fails in ("ENOSPC", "EDQUOT") and opcode in _GROWS:
            raise Failed(getattr(errno, fails))
        if opcode in (Op.SYMLINK, Op.MKNOD, Op.MKDIR, Op.CREATE):
            return self._make(opcode, node, uid, gid, body)
        if opcode in (Op.SETLK, Op.SETLKW):
            return self._lock(unique, node, body, waits=opcode == Op.SETLKW)
        if opcode in (Op.FORGET, Op.BATCH_FORGET):
            return self._forget(opcode, node, body)
        if opcode == Op.INTERRUPT:
            return self._interrupt(*struct.unpack_from("<Q", body))
        if opcode == Op.DESTROY:
            return None
        if method is None:
            raise Failed(errno.ENOSYS)
        if opcode in (Op.RENAME, Op.RENAME2):
            return method(node, body, 8 if opcode == Op.RENAME else 16)
        return method(node, body)

    def _init(self, _node, body):
        flags = _ASYNC_READ | _ATOMIC_TRUNC | _BIG_WRITES | _PARALLEL_DIROPS
        if self.server.options["locks"] != "local":
            flags |= _FLOCK_LOCKS
        return struct.pack(
            "<IIIIHHIIHHI7I",
            7,
            31,
            65536,
            flags & struct.unpack_from("<4I", body)[3],
            0,
            0,
            _LARGEST,
            1,
            0,
            0,
            0,
            *[0] * 7,
        )

    # names

    def _at(self, node):
        return self.nodes[node][0]

    def _path(self, node):
        return f"/proc/self/fd/{self._at(node)}"

    def _found(self, parent, name):
        """The name as it is on the disk."""
        if self.server.options["folds"]:
            for other in Path(self._path(parent)).iterdir():
                if os.fsencode(other.name).lower() == name.lower():
                    return os.fsencode(other.name)
        return name

    def _entry(self, parent, name):
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=self._at(parent))
        inode = os.fstat(descriptor).st_ino
        if inode in self.ids:
            os.close(descriptor)
            node = self.ids[inode]
            self.nodes[node] = (self.nodes[node][0], self.nodes[node][1] + 1)
        else:
            self.last += 1
            node = self.ids[inode] = self.last
            self.nodes[node] = (descriptor, 1)
        valid = self.server.options["valid"]
        return struct.pack("<QQQQII", node, 0, valid, valid, 0, 0) + self._attributes(node)

    def _attributes(self, node):
        found = os.fstat(self._at(node))
        uid, gid = found.st_uid, found.st_gid
        if self.server.options["squash"] is not None:
            uid = gid = self.server.options["squash"]
        mode = found.st_mode
        if self.server.options["modes"] is not None and stat.S_ISREG(mode):
            mode = stat.S_IFREG | self.server.options["modes"]
        times = [divmod(each, 10**9) for each in (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)]
        return _ATTR.pack(
            found.st_ino, found.st_size, found.st_blocks, *(each[0] for each in times), *(each[1] for each in times),
            mode, found.st_nlink, uid, gid, found.st_rdev, 4096, 0,
        )  # fmt: skip

    def _lookup(self, node, body):
        name = self._found(node, body.split(b"\0")[0])
        if self.server.options["lost"]:
            top, parent = (Path(f"/proc/self/fd/{each}").readlink() for each in (self.server.top, self._at(node)))
            problem = self.server.options["lost"].get(str((parent / os.fsdecode(name)).relative_to(top)))
            if problem is not None:
                raise Failed(getattr(errno, problem))
        return self._entry(node, name)

    def _getattr(self, node, _body):
        return struct.pack("<QII", self.server.options["valid"], 0, 0) + self._attributes(node)

    def _setattr(self, node, body):
        valid, _, _, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid, _ = struct.unpack_from(
            "<II6Q3I5I", body
        )
        path = self._path(node)
        if valid & 6 and self.server.options["squash"] is not None:
            raise Failed(errno.EPERM)
        if valid & 1:
            Path(path).chmod(stat.S_IMODE(mode))
        if valid & 6:
            os.chown(path, uid if valid & 2 else -1, gid if valid & 4 else -1)
        if valid & 8:
            os.truncate(path, size)
        if valid & 0x30:
            found, now = Path(path).stat(), time.time_ns()
            at = now if valid & 0x80 else atime * 10**9 + atime_ns if valid & 0x10 else found.st_atime_ns
            mt = now if valid & 0x100 else mtime * 10**9 + mtime_ns if valid & 0x20 else found.st_mtime_ns
            os.utime(path, ns=(at, mt))
        return self._getattr(node, b"")

    def _readlink(self, node, _body):
        return os.readlink(b"", dir_fd=self._at(node))

    def _make(self, opcode, node, uid, gid, body):
        at, flags = self._at(node), 0
        skipped = {Op.SYMLINK: 0, Op.MKDIR: 8, Op.MKNOD: 16, Op.CREATE: 16}[opcode]
        name, *rest = body[skipped:].split(b"\0")
        name = self._found(node, name)
        if opcode == Op.SYMLINK:
            if not self.server.options["symlinks"]:
                raise Failed(errno.EPERM)
            os.symlink(rest[0], name, dir_fd=at)
        elif opcode == Op.MKDIR:
            os.mkdir(name, 0o700, dir_fd=at)
        elif opcode == Op.MKNOD:
            os.mknod(name, struct.unpack_from("<I", body)[0], struct.unpack_from("<II", body)[1], dir_fd=at)
        else:
            flags = struct.unpack_from("<I", body)[0]
            descriptor = os.open(name, (flags & ~3 | os.O_RDWR) & ~os.O_APPEND, 0o600, dir_fd=at)
        parent = os.fstat(at)
        os.chown(name, uid, parent.st_gid if parent.st_mode & stat.S_ISGID else gid, dir_fd=at, follow_symlinks=False)
        if opcode != Op.SYMLINK:
            mode = struct.unpack_from("<I", body, 0 if opcode in (Op.MKDIR, Op.MKNOD) else 4)[0]
            sticky = parent.st_mode & stat.S_ISGID if opcode == Op.MKDIR else 0
            os.chmod(name, stat.S_IMODE(mode) | sticky, dir_fd=at)
        entry = self._entry(node, name)
        return entry + self._handle(descriptor, flags) if opcode == Op.CREATE else entry

    def _unlink(self, node, body):
        os.unlink(self._found(node, body.split(b"\0")[0]), dir_fd=self._at(node))
        return b""

    def _rmdir(self, node, body):
        os.rmdir(self._found(node, body.split(b"\0")[0]), dir_fd=self._at(node))
        return b""

    def _rename(self, node, body, skipped):
        (to,) = struct.unpack_from("<Q", body)
        if skipped == 16 and struct.unpack_from("<QI", body)[1]:
            raise Failed(errno.EINVAL)  # RENAME_NOREPLACE and the like, which NFS has not
        if not self.server.options["renames"]:
            raise Failed(errno.EPERM)
        if self.server.options["renames"] == "void":
            return b""
        old, new, *_ = body[skipped:].split(b"\0")
        os.rename(self._found(node, old), self._found(to, new), src_dir_fd=self._at(node), dst_dir_fd=self._at(to))
        return b""

    def _link(self, node, body):
        if not self.server.options["links"]:
            raise Failed(errno.EPERM)
        (old,) = struct.unpack_from("<Q", body)
        name = body[8:].split(b"\0")[0]
        os.link(self._path(old), name, dst_dir_fd=self._at(node), follow_symlinks=True)
        if self.server.options["loses"]:
            raise Failed(errno.EEXIST)
        return self._entry(node, name)

    # files

    def _handle(self, descriptor, flags):
        self.files[descriptor] = (descriptor, flags)
        return struct.pack("<QII", descriptor, 0, 0)

    def _open(self, node, body):
        (flags,) = struct.unpack_from("<I", body)
        return self._handle(
            os.open(self._path(node), flags & ~(os.O_NOFOLLOW | os.O_APPEND | os.O_CREAT | os.O_EXCL)), flags
        )

    def _opendir(self, node, _body):
        return self._handle(os.open(self._path(node), os.O_RDONLY | os.O_DIRECTORY), 0)

    def _read(self, _node, body):
        handle, offset, size = struct.unpack_from("<QQI", body)
        if os.fstat(handle).st_nlink == 0:  # a server knows no open files
            raise Failed(errno.ESTALE)
        return os.pread(handle, size, offset)

    def _write(self, _node, body):
        handle, offset, size = struct.unpack_from("<QQI", body)
        return struct.pack("<II", os.pwrite(handle, body[40 : 40 + size], offset), 0)

    def _readdir(self, node, body):
        handle, offset, size = struct.unpack_from("<QQI", body)
        descriptor, listed = self.files[handle]
        if offset == 0 or not isinstance(listed, list):
            with os.scandir(descriptor) as found:
                listed = [(entry.name, entry.inode(), _kind(entry)) for entry in found]
            self.files[handle] = (descriptor, listed)
        answer = b""
        for number, (name, inode, kind) in enumerate(listed[offset:], offset + 1):
            encoded = os.fsencode(name)
            entry = (
                struct.pack("<QQII", inode, number, len(encoded), kind if self.server.options["kinds"] else 0) + encoded
            )
            entry += bytes(-len(entry) % 8)
            if len(answer) + len(entry) > size:
                break
            answer += entry
        return answer

    def _release(self, _node, body):
        handle, _, flags, owner = struct.unpack_from("<QIIQ", body)
        inode = os.fstat(handle).st_ino
        del self.files[handle]
        os.close(handle)
        if flags & 2:
            self.server.release(self, inode, owner)
        return b""

    def _lock(self, unique, _node, body, *, waits):
        handle, owner, _, _, how, _, _, _ = struct.unpack_from("<4Q4I", body)
        if self.server.options["locks"] == "none":
            raise Failed(errno.ENOLCK)
        mode = self.files[handle][1] & os.O_ACCMODE
        if (how == fcntl.F_WRLCK and mode == os.O_RDONLY) or (how == fcntl.F_RDLCK and mode == os.O_WRONLY):
            raise Failed(errno.EBADF)
        inode = os.fstat(handle).st_ino
        if self.server.lock(self, inode, owner, how):
            self.answer(unique)
            self.server.retry()
        elif waits:
            self.server.waiting.append((self, unique, inode, owner, how))
        else:
            raise Failed(errno.EAGAIN)

    def _interrupt(self, unique):
        for call in [call for call in self.server.waiting if call[:2] == (self, unique)]:
            self.server.waiting.remove(call)
            self.answer(unique, error=errno.EINTR)

    def _statfs(self, _node, _body):
        found = os.fstatvfs(self.server.top)
        return struct.pack(
            "<5Q4I6I", found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree, found.f_bsize, 255,
            found.f_frsize, 0, *[0] * 6,
        )  # fmt: skip

    def _nothing(self, _node, _body):
        return b""

    def _forget(self, opcode, node, body):
        if opcode == Op.FORGET:
            pairs = [(node, struct.unpack_from("<Q", body)[0])]
        else:
            count = struct.unpack_from("<I", body)[0]
            pairs = [struct.unpack_from("<QQ", body, 8 + 16 * number) for number in range(count)]
        for each, times in pairs:
            descriptor, known = self.nodes[each]
            if known > times:
                self.nodes[each] = (descriptor, known - times)
            elif each != 1:
                del self.nodes[each]
                del self.ids[os.fstat(descriptor).st_ino]
                os.close(descriptor)


def _kind(entry):
    if entry.is_symlink():
        return 10
    return 4 if entry.is_dir(follow_symlinks=False) else 8


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("backing", type=Path)
    parser.add_argument("mounts", type=Path, nargs=2)
    parser.add_argument("options", type=json.loads)
    args = parser.parse_args()
    os.umask(0)
    server = Server(args.backing, args.options)
    mounts = [Mount(server, place) for place in args.mounts]
    print("ready", flush=True)
    by_device = {mount.device: mount for mount in mounts}
    poll = select.poll()
    for descriptor in (0, *by_device):
        poll.register(descriptor, select.POLLIN)
    while True:
        now = time.monotonic()
        due = [call for call in server.delayed if call[0] <= now]
        server.delayed = [call for call in server.delayed if call[0] > now]
        for _, mount, message in due:
            mount.serve(message)
        left = min((call[0] for call in server.delayed), default=None)
        for descriptor, _ in poll.poll(None if left is None else max(0.0, left - time.monotonic()) * 1000):
            if descriptor in by_device:
                by_device[descriptor].take()
            elif line := sys.stdin.readline():
                server.options |= json.loads(line)
                print(json.dumps(server.calls), flush=True)
                server.calls.clear()
                server.rows.clear()
            else:
                for mount in mounts:
                    mount.unmount()
                return


if __name__ == "__main__":
    main()
