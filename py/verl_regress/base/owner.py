"""Who owns a job: a user and a checkout, identified by the id of its WORKDIR (scripts/lib/owner.bash)."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Owner:
    """The user, and the checkout by its WORKDIR: the id stored there, and its real path on the host."""

    user: str
    id: str
    workdir: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Owner":
        """`USER:ID`. Raises ValueError."""
        user, colon, checkout = text.rpartition(":")
        if not (user and colon and checkout):
            raise ValueError(text)
        return cls(user, checkout)

    def recorded(self) -> dict[str, Any]:
        """The owner as `config/resolved.json` records it."""
        return {"user": self.user, "workdir": self.workdir, "id": self.id}

    def has(self, plan: Mapping[str, Any] | None) -> bool:
        """Does this owner own the job with that plan?"""
        recorded = (plan or {}).get("owner") or {}
        return (recorded.get("user"), recorded.get("id")) == (self.user, self.id)


def described(plan: Mapping[str, Any] | None) -> str:
    """The owner of the job with that plan, in words."""
    recorded = (plan or {}).get("owner")
    return f"user {recorded.get('user')}, {recorded.get('workdir')}" if recorded else "an owner that was not recorded"


def is_mine(path: Path) -> bool:
    """Is it this user's? Another's stays even where the file system would let us remove it."""
    try:
        return path.lstat().st_uid == os.geteuid()
    except FileNotFoundError:
        return False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--owner USER:ID --owner-workdir DIR`, before any subcommand."""
    parser.add_argument("--owner", type=Owner.parse, metavar="USER:ID", help="who calls: the user, and WORKDIR's id")
    parser.add_argument("--owner-workdir", metavar="DIR", help="WORKDIR's real path on the caller's host")
