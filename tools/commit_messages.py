"""Check commit messages: subjects are imperative and short, larger changes say why.

    python tools/commit_messages.py           the commits since this file was added
    python tools/commit_messages.py BASE      the commits since BASE
    python tools/commit_messages.py --file F  one message, for a commit-msg hook

Nothing is checked outside of a git checkout, and in a shallow clone only the commits it has.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from prose import read_verbs

ROOT = Path(__file__).parents[1]
MOST_CHARACTERS = 72
MOST_LINES_WITHOUT_BODY = 20

ACCEPTED = frozenset(
    {
        "00fe9c108ae337460e62cea091f85ef3938d62a0",
        "4f92eba9ffe2df2da3b1dcb5ce36d56ff8f29e03",
        "51bc859725f5009bbd80b700d43a46a0fca56659",
        "4cb5a8e1dd341c8f48f9e355e1600c9809498a49",
        "2055173bf46d61c53cc289670422e1db12b41a26",
        "fbc57f46eeca12fe9ba715ec73a0602349fac121",
        "c266ce7e1a53ecba2d2f9d4d9b6e11e76381a8d9",
        "34ecccc6ccb3aed69fe8b55b97933ab0234fd49d",
        "211d5f5c80dd3e6fbc2abff41b6c822c2188f5ce",
        "67f9ee387de3c335612404acd97dc00b5144573c",
        "7aecf77403c01f8e378917806b74ba3c885e62ec",
        "a9412e40b792730f4f9efd4d71961ac6981abc08",
        "eeba9dc09c03b5568219692f2f6db91b4ca5d3ce",
    }
)
"""Commits with other messages that cannot be changed any more, by their full hashes."""


def find_faults(message: str, changed_lines: int) -> list[str]:
    """Return a sentence for each rule that a commit message breaks."""
    subject, _, body = message.strip().partition("\n")
    faults = []
    if len(subject) > MOST_CHARACTERS:
        faults.append(f"the subject has {len(subject)} characters, at most {MOST_CHARACTERS}")
    if subject.split(" ", 1)[0].lower() not in read_verbs():
        faults.append("the subject does not begin with a verb of tests/prose/verbs.txt")
    if changed_lines > MOST_LINES_WITHOUT_BODY and not body.strip():
        faults.append(f"{changed_lines} lines change and no body says why")
    return faults


def run_git(*arguments: str) -> str:
    """Return the output of a git command; nothing if it fails or git is not installed."""
    try:
        answer = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return answer.stdout.strip()


def find_base() -> str:
    """Return the commit that added this file; nothing without history."""
    added = run_git("log", "--diff-filter=A", "--format=%H", "--", "tools/commit_messages.py")
    return added.rpartition("\n")[2]


def count_changed_lines(commit: str) -> int:
    """Count the lines that a commit adds and removes, in text files."""
    rows = run_git("show", "--numstat", "--format=", commit).splitlines()
    return sum(int(count) for row in rows for count in row.split("\t")[:2] if count.isdigit())


def check_commits(base: str) -> list[str]:
    """Return the faults of all commits after `base`, without merges."""
    commits = run_git("rev-list", "--no-merges", f"{base}..HEAD").split()
    return [
        f"{commit[:10]} {message.partition(chr(10))[0]}: {fault}"
        for commit in commits
        if commit not in ACCEPTED
        for message in [run_git("show", "--no-patch", "--format=%B", commit)]
        for fault in find_faults(message, count_changed_lines(commit))
    ]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", nargs="?")
    parser.add_argument("--file", type=Path)
    arguments = parser.parse_args()
    if arguments.file:
        lines = arguments.file.read_text().splitlines()
        message = "\n".join(line for line in lines if not line.startswith("#"))
        faults = find_faults(message, changed_lines=0)
    elif base := arguments.base or find_base():
        faults = check_commits(base)
    else:
        print("no git history: no commit messages to check")
        return
    print("\n".join(faults) or "commit messages: as they should be")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
