"""The helper's front door: `python3 run.py SUBCOMMAND …`, on a node."""

from verl_regress.cli import main

raise SystemExit(main())
