"""`python -m verl_verdict`: as `verl-verdict`."""

import sys

from verl_verdict import command

if __name__ == "__main__":
    sys.exit(command.main())
