"""Runs the doctor from stdin: `python3 -c BOOT ARGS`, where BOOT is this file, and stdin has lines, an empty line, and a tar of our packages.

So a node needs nothing of ours, no shared root and no space on a disk: Python imports from a zip file in memory.
"""

import os
import sys
import tarfile
import zipfile

if __name__ == "__main__":
    lines = []
    while (line := sys.stdin.buffer.readline()).strip():
        lines.append(line.decode("utf-8", "replace"))
    memory = f"/proc/self/fd/{os.memfd_create('doctor')}"  # rule-ok: a name for it
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as sent, zipfile.ZipFile(memory, "w") as packages:
        for member in sent:
            if (file := sent.extractfile(member)) is not None:
                packages.writestr(member.name, file.read())
    sys.path.insert(0, memory)  # rule-ok: the node has nothing of ours
    from verl_regress.doctor.command import main

    raise SystemExit(main(sys.argv[1:], lines))
