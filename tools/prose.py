"""Measure the prose of the checkout: docstrings, comments, pages, names of functions.

    python tools/prose.py             a row for each folder
    python tools/prose.py FILE...     the places that count, line by line
    python tools/prose.py --tighten   lower the budgets of tests/prose to the present figures

STYLE.md says how to write; tests/prose/test_prose.py compares each file with its budget.
"""

from __future__ import annotations

import argparse
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FOLDERS = ("graph", "devices", "scheduler", "dialects", "cli", "docs", "examples", "benchmarks",
           "tools", "tests")  # fmt: skip
BUDGETS = ROOT / "tests" / "prose" / "budgets.txt"
EXEMPT = {"CODE_OF_CONDUCT.md", "STYLE.md"}
"""A text by others, and one that quotes what must not be written."""

VERBS = ROOT / "tests" / "prose" / "verbs.txt"

MARKERS = re.compile(
    r"\b(?:what|whatever|who|whom|whose|whoever|nobody|somebody|anybody|tells?|told|behind"
    r"|so (?:many|much|long)\b(?! as)|is no|are no|(?-i:is none)|comes? of|goes on|gives? up"
    r"|lets? go)\b",
    re.IGNORECASE,
)
"""Words that stand where a noun, a subject or a precise verb belongs."""

OPENINGS = re.compile(r"(?:Do so|The same|As|Of|Who|Whom|Whose|What)\b")
"""First words of a docstring that cannot be read without its neighbours."""

MARKERS_PER_1000 = 6
SHORT = 60
"""Words below which one marker is accepted."""

NOT_PROSE = re.compile(r"#\s*(?:noqa|type:|fmt:|pragma|ruff:|!)")
WRAPPERS = {"cache", "lru_cache", "contextmanager", "asynccontextmanager", "overload", "wraps"}
"""Decorators that leave a function's name to its author; others register it under a given name."""

STATEMENT_STARTS_AFTER = {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


@dataclass
class Prose:
    """The measure of one file."""

    words: int = 0
    functions: int = 0
    markers: list[tuple[int, str]] = field(default_factory=list)
    """Line and word."""
    openings: list[tuple[int, str]] = field(default_factory=list)
    """Line and first words of docstrings."""
    nouns: list[tuple[int, str]] = field(default_factory=list)
    """Line and name of functions that do not begin with a verb."""

    def add_text(self, first_line: int, text: str) -> None:
        """Count the words and markers of a text that begins on `first_line`."""
        for number, line in enumerate(text.splitlines(), first_line):
            self.words += len(line.split())
            self.markers += [(number, word) for word in MARKERS.findall(line)]

    @property
    def allowed_markers(self) -> int:
        """How many markers a file of this length may have without a budget."""
        return max(self.words * MARKERS_PER_1000 // 1000, int(self.words < SHORT))


def measure(file: Path) -> Prose:
    """Measure a file of Python or Markdown."""
    text = file.read_text(encoding="utf-8")
    return measure_python(text) if file.suffix == ".py" else measure_markdown(text)


def measure_markdown(text: str) -> Prose:
    """Measure a page outside of its code and comments."""
    prose = Prose()
    code = re.compile(r"^ *```.*?^ *```|<!--.*?-->", re.DOTALL | re.MULTILINE)
    prose.add_text(1, code.sub(lambda block: "\n" * block[0].count("\n"), text))
    return prose


def measure_python(source: str) -> Prose:
    """Measure docstrings, comments and names of module-level functions."""
    prose = Prose()
    tokens = [*tokenize.generate_tokens(io.StringIO(source).readline)]
    decorators: set[str] = set()
    before = tokenize.NEWLINE
    for index, token in enumerate(tokens):
        line, column = token.start
        if token.type == tokenize.COMMENT and not NOT_PROSE.match(token.string):
            prose.add_text(line, token.string.lstrip("# "))
        elif before in STATEMENT_STARTS_AFTER and token.type == tokenize.STRING:
            text = token.string.lstrip("rR").strip('"')
            prose.add_text(line, text)
            prose.openings += [(line, word) for word in OPENINGS.findall(text[:20])[:1]]
        elif column == 0 and token.string == "@":
            decorators.add(tokens[index + 1].string)
        elif column == 0 and token.string in ("def", "async", "class"):
            name = tokens[index + 1 + (token.string == "async")].string
            if token.string != "class":
                prose.functions += 1
                if not has_verb(name) and decorators <= WRAPPERS:
                    prose.nouns.append((line, name))
            decorators = set()
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            before = token.type
    return prose


def has_verb(name: str) -> bool:
    """Return whether a function's name begins with a verb of the list, or is that of an error."""
    return name.endswith("_error") or name.strip("_").split("_")[0] in read_verbs()


@cache
def read_verbs() -> frozenset[str]:
    """Read the first words that names of functions and subjects of commits may have."""
    return frozenset(VERBS.read_text().split())


def list_files() -> Iterator[Path]:
    """Yield all sources and pages of the checkout."""
    loose = sorted([*ROOT.glob("*.py"), *ROOT.glob("*.md")])
    yield from (file for file in loose if file.name not in EXEMPT)
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*")):
            hidden = any(part.startswith(".") for part in file.relative_to(ROOT).parts)
            if file.suffix in (".py", ".md") and not hidden:
                yield file


class Budget(NamedTuple):
    """The most that a file may have. It may fall, and never rise."""

    markers: int = 0
    openings: int = 0
    nouns: frozenset[str] = frozenset()

    def __and__(self, other: Budget) -> Budget:
        return Budget(
            min(self.markers, other.markers),
            min(self.openings, other.openings),
            self.nouns & other.nouns,
        )


def read_budgets() -> dict[str, Budget]:
    """Read the budget of each file that has more than a new file may.

    Git merges this file by keeping the lines of both sides (.gitattributes): the tighter one holds.
    """
    budgets: dict[str, Budget] = {}
    for line in BUDGETS.read_text().splitlines():
        file, markers, openings, *nouns = line.split()
        budget = Budget(int(markers), int(openings), frozenset(nouns))
        budgets[file] = budgets.get(file, budget) & budget
    return budgets


def find_excess(prose: Prose, budget: Budget) -> list[str]:
    """Return a sentence for each limit that a file exceeds."""
    most = max(budget.markers, prose.allowed_markers)
    found = []
    if len(prose.markers) > most:
        found.append(f"{len(prose.markers)} markers, at most {most} allowed")
    if len(prose.openings) > budget.openings:
        found.append(f"{len(prose.openings)} openings, at most {budget.openings} allowed")
    found += [
        f"line {line}: {name} does not begin with a verb"
        for line, name in prose.nouns
        if name not in budget.nouns
    ]
    return found


def tighten() -> None:
    """Lower all budgets to the present figures."""
    lines = []
    for name, budget in sorted(read_budgets().items()):
        if not (ROOT / name).exists():
            continue
        prose = measure(ROOT / name)
        nouns = frozenset(noun for _, noun in prose.nouns)
        markers, openings, nouns = budget & Budget(len(prose.markers), len(prose.openings), nouns)
        if markers > prose.allowed_markers or openings or nouns:
            lines.append(" ".join([name, str(markers), str(openings), *sorted(nouns)]) + "\n")
    BUDGETS.write_text("".join(lines))


def print_folders() -> None:
    """Print the measure of each folder."""
    folders: dict[str, list[Prose]] = defaultdict(list)
    for file in list_files():
        parts = file.relative_to(ROOT).parts
        prose = measure(file)
        for name in {"all", "/".join(parts[:1]), "/".join(parts[: min(2, len(parts) - 1)])}:
            folders[name or "."].append(prose)
    for name, files in sorted(folders.items()):
        words = sum(prose.words for prose in files) or 1
        functions = sum(prose.functions for prose in files) or 1
        markers = sum(len(prose.markers) for prose in files)
        nouns = sum(len(prose.nouns) for prose in files)
        print(
            f"{name:28} words {words:7}  markers per 1,000 {1000 * markers / words:5.1f}"
            f"  functions {functions:5}  verbs {100 - 100 * nouns / functions:3.0f} %"
        )


def print_places(files: list[Path]) -> None:
    """Print each marker, opening and noun of some files."""
    for file in files:
        prose = measure(file)
        print(f"{file}: {len(prose.markers)} markers in {prose.words} words")
        for line, found in sorted([*prose.markers, *prose.openings, *prose.nouns]):
            print(f"{file}:{line}: {found}")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--tighten", action="store_true")
    arguments = parser.parse_args()
    if arguments.tighten:
        tighten()
    elif arguments.files:
        print_places(arguments.files)
    else:
        print_folders()


if __name__ == "__main__":
    main()
