"""The check of commit messages that .ci/run makes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import commit_messages
import pytest


@pytest.mark.parametrize(
    ("message", "changed_lines", "faults"),
    [
        ("Move calls_function to Node", 20, 0),
        ("Move calls_function to Node\n\nThree files had a copy.", 900, 0),
        ("Move calls_function to Node", 21, 1),
        ("Whether a node calls a function is asked where that is known", 1, 1),
        (f"Move {'x' * 68}", 1, 1),
    ],
)
def test_a_message_is_imperative_short_and_says_why(
    message: str, changed_lines: int, faults: int
) -> None:
    assert len(commit_messages.find_faults(message, changed_lines)) == faults


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty repository and have it checked."""
    monkeypatch.setattr(commit_messages, "ROOT", tmp_path)
    run_git(tmp_path, "init", "--quiet")
    return tmp_path


def run_git(repository: Path, *arguments: str) -> None:
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(repository), *author, *arguments], check=True)


def commit(repository: Path, file: str, lines: int, message: str) -> None:
    path = repository / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("line\n" * lines)
    run_git(repository, "add", ".")
    run_git(repository, "commit", "--quiet", "--message", message)


def test_commits_are_checked_from_the_one_that_added_the_check(repository: Path) -> None:
    commit(repository, "a", 30, "Everything is new")
    commit(repository, "tools/commit_messages.py", 30, "There is a check")
    base = commit_messages.find_base()
    assert commit_messages.check_commits(base) == []
    commit(repository, "a", 90, "Write more")
    commit(repository, "b", 1, "Short is beautiful")
    shown = [fault.partition(" ")[2] for fault in commit_messages.check_commits(base)]
    assert shown == [
        "Short is beautiful: the subject does not begin with a verb of tests/prose/verbs.txt",
        "Write more: 60 lines change and no body says why",
    ]


def test_without_history_nothing_is_checked(repository: Path) -> None:
    assert commit_messages.find_base() == ""
    run_git(repository, "init", "--quiet", "--bare", "elsewhere")
    assert commit_messages.run_git("no-such-command") == ""
