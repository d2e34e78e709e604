"""Searches for a secret, whose value comes on stdin: `search.py DIRECTORY…`, all files below and every command line here.

Prints a line for each place, `FOUND PLACE`, and at the end how much was checked. Its forms are spelled here once more, so
that a mistake in py/hooks/redaction.py is not made twice.
"""

import base64
import os
import sys
from pathlib import Path

value = sys.stdin.buffer.read()
forms = {value, value.hex().encode(), value.hex().upper().encode()}
for before in range(3):
    text = base64.b64encode(b"x" * before + value)
    forms.add(text[-(-8 * before // 6) : 8 * (before + len(value)) // 6])

paths = [Path(home, name) for root in sys.argv[1:] for home, _, names in os.walk(root) for name in names]
files = [path for path in paths if path.is_file()]
looked = {"files": 0, "processes": 0}
for sort, places in (("files", files), ("processes", list(Path("/proc").glob("[0-9]*/cmdline")))):
    for path in places:
        try:
            content = path.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        looked[sort] += 1
        if any(form in content for form in forms):
            print("FOUND", path)
print(f"checked {looked['files']} files and {looked['processes']} processes")
