"""Print the lines and tests of each folder; fail if the product has more lines than allowed.

    python tools/sizes.py

docs/policies.md describes the folders. More lines than `MOST_LINES` are a decision: delete others
first, or raise the limit in a commit that says why.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("graph", "devices", "scheduler", "dialects", "cli")
MOST_LINES = 142_000
ELSEWHERE = "elsewhere"
"""The row of tests that cover several folders."""
TEST = re.compile(rb"^ *(?:async )?def test_", re.MULTILINE)


def name_folder(file: Path) -> str:
    """Return the row of a file, a path relative to the product or to the tests."""
    return "/".join(file.parts[: min(2, len(file.parts) - 1)])


def count(root: Path) -> tuple[Counter[str], Counter[str]]:
    """Count lines and test functions by folder; files outside of subfolders have a row together."""
    lines, tests = Counter[str](), Counter[str]()
    for file in (file for part in PRODUCT for file in (root / part).rglob("*.py")):
        lines[name_folder(file.relative_to(root))] += file.read_bytes().count(b"\n")
    for file in (root / "tests").rglob("test_*.py"):
        folder = name_folder(file.relative_to(root / "tests"))
        known = (one for one in (folder, folder.partition("/")[0]) if one in lines)
        tests[next(known, ELSEWHERE)] += len(TEST.findall(file.read_bytes()))
    return lines, tests


def main(root: Path = ROOT, most_lines: int = MOST_LINES) -> None:
    """Print the table; exit with a message if there are too many lines."""
    lines, tests = count(root)
    for folder in (*sorted(lines), ELSEWHERE):
        print(f"{folder:<24}{lines[folder]:>9,}{tests[folder]:>8,}")
    print(f"{'all':<24}{lines.total():>9,}{tests.total():>8,}  (lines, test functions)")
    if lines.total() > most_lines:
        sys.exit(f"the product has {lines.total():,} lines, at most {most_lines:,}: delete some")


if __name__ == "__main__":
    main()
