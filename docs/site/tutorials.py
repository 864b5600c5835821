"""Notebooks of tutorials: the same text and code as their pages, cell by cell."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

TUTORIALS = ("five_minutes", "shapes", "profiling")
BLOCK = re.compile(r"^```python\n(.*?)^```$\n?", re.MULTILINE | re.DOTALL)
PAGE_LINK = re.compile(r"\[([^\]]+)\]\((?!\w+://)[^)]+\)")


def notebook_of(page: str) -> str:
    """Return the notebook of a page, as JSON: a code cell for each block of Python."""
    record = {
        "cells": list(_cells(page)),
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


def offered(page: str, notebook: str) -> str:
    """Return a page that offers its notebook below its title."""
    title, _, rest = page.partition("\n")
    return f"{title}\n\n[Download as a notebook]({notebook})\n{rest}"


def _cells(page: str) -> Iterator[dict[str, Any]]:
    for number, part in enumerate(BLOCK.split(page)):
        text = part.strip("\n")
        if not text:
            continue
        cell: dict[str, Any] = {"id": f"cell-{number}", "metadata": {}}
        if number % 2:  # what the group of a split matched
            cell |= {"cell_type": "code", "execution_count": None, "outputs": []}
        else:
            cell["cell_type"] = "markdown"
            text = PAGE_LINK.sub(r"\1", text)  # pages are not beside a notebook
        yield cell | {"source": text.splitlines(keepends=True)}
