"""The page of examples: what each shows, in the words of its docstring."""

from __future__ import annotations

import ast
from pathlib import Path

HEAD = """# Examples

Programs to read and to run: `python examples/NAME.py` in a clone. The numbered ones take no
arguments and end within seconds.

"""


def example_page(root: Path) -> str:
    """Return the page, with a link to each program."""
    rows = [
        f"| [`{file.name}`](examples/{file.name}) | {opening(file)} |"
        for file in sorted((root / "examples").glob("*.py"))
    ]
    return HEAD + "\n".join(["| program | shows |", "|---|---|", *rows]) + "\n"


def opening(file: Path) -> str:
    """Return the first paragraph of a module's docstring, in one line."""
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    return " ".join(text.partition("\n\n")[0].split())
