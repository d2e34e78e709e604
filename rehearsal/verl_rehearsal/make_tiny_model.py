"""Makes the tiny model in a process of its own: `python3 -m verl_rehearsal.make_tiny_model ACTOR_DIR CRITIC_DIR SEED`.

Prints what `tiny_model.build` returns, as JSON. If it fails, the last line on stderr says why. Its caller can show
progress meanwhile: a thread beside it could not, because loading torch blocks all threads for up to 15 s.
"""

import json
import os
import sys
from pathlib import Path


def main(actor: str, critic: str, seed: str) -> None:
    """Make both models; raises SystemExit with one sentence if they do not come out as they should."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # transformers 5 shows one even for a tiny model
    from verl_rehearsal import tiny_model
    from verl_rehearsal.errors import RehearsalError

    try:
        facts = tiny_model.build(Path(actor), Path(critic), seed=int(seed))
    except RehearsalError as error:
        raise SystemExit(str(error)) from None
    print(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
