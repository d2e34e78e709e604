"""Proves to the launcher what the trainer's process imports, before it trains: what it has imported stays imported.

The hook writes where verl and the snapshot's marker came from to a socket, whose descriptor the trainer's process alone has, and waits for
one byte. If the launcher ends or refuses the code, it closes the socket instead.
"""

import json
import os
import sys
import traceback

VARIABLE = "VERL_REGRESS_PROOF"


def install() -> None:
    """Prove the code to the launcher; do nothing in other processes."""
    descriptor = os.environ.pop(VARIABLE, None)  # not for the processes that this one starts
    if descriptor is None:
        return
    launcher = int(descriptor)
    os.set_inheritable(launcher, False)
    os.write(launcher, json.dumps(_imported()).encode() + b"\n")
    if not os.read(launcher, 1):
        sys.stdout.flush()
        os._exit(1)  # a SystemExit would make the interpreter add "Fatal Python error: init_import_site"
    os.close(launcher)


def _imported() -> dict[str, str | None]:
    """Return the file of verl and the snapshot's marker, or the error; its traceback is on stderr."""
    try:
        import mvp_marker
        import verl

        return {"verl_file": verl.__file__, "marker": mvp_marker.MARKER}
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        return {"error": "".join(traceback.format_exception_only(error))}
