"""The table of sizes."""

import pytest

import size


def test_files_that_git_does_not_list_are_an_error_and_no_empty_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_INDEX_FILE", "/no/such/index")
    with pytest.raises(SystemExit, match="git lists no file of helper"):
        size.table()
