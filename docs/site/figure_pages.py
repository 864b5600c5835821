"""The page of results: what each benchmark asks, what it found, when, and on which machine."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

MACHINE = ("date", "cpu", "instructions", "cores", "blas_kernels", "python", "versions")
MOST_ROWS = 150
"""Longer tables are in the file of results alone."""

HEAD = """# All results

Every figure in these pages was taken by a script in `benchmarks/`. Each script states its question
and what it compares with. Below are all results on file, with their dates and machines. Of times,
and of ratios of times, lower is better; of "times as fast" and of items per second, higher is
better. [In short](docs/figures.md) has the figures that matter most; `make bench` takes all of
them on your machine.

"""


def results_page(benchmarks: Path) -> str:
    """Return the page, a section for each file of results."""
    files = sorted((benchmarks / "results").glob("*.json"))
    sections = (_section(file, script_of(benchmarks, file.stem)) for file in files)
    return HEAD + "\n".join("\n".join(section) for section in sections)


def script_of(benchmarks: Path, result: str) -> Path:
    """Return the script that writes a file of results: named like its first words, or naming it."""
    if result.startswith("gpu-"):  # named after the GPU
        return benchmarks / "run_gpu.py"
    words = result.split("_")
    for count in range(len(words), 0, -1):
        named = benchmarks / f"bench_{'_'.join(words[:count])}.py"
        if named.exists():
            return named
    return next(one for one in benchmarks.glob("*.py") if f'save("{result}"' in one.read_text())


def _section(file: Path, script: Path) -> Iterator[str]:
    record = json.loads(file.read_text())
    question = (ast.get_docstring(ast.parse(script.read_text())) or "").partition("\n\n")[0]
    yield f"## `{file.stem}`\n"
    yield f"{' '.join(question.split())}\n"
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    yield (
        f"Taken on {record['date'][:10]} by [`{script.name}`](benchmarks/{script.name}) with"
        f" {record['cores']} cores ({record['cpu']}) and Python {record['python']}: {versions}.\n"
    )
    figures = {key: value for key, value in record.items() if key not in MACHINE}
    if "answers" in record:
        figures = _goals(record["answers"])
    yield '<details markdown="1"><summary>Figures</summary>\n'
    yield from _figures(figures)
    yield "\n</details>\n"


def _goals(answers: Mapping[str, Any]) -> dict[str, Any]:
    """Return what questions to a GPU have found where there was a goal, and if it was met."""
    rows = [(name, row) for name, answer in answers.items() for row in answer["rows"]]
    return {
        f"{name}: {row['what']}": f"{_shown(row['value'])} {row.get('unit', '')}".strip()
        + ("" if row["met"] else ", missed")
        for name, row in rows
        if "met" in row
    }


def _figures(figures: Mapping[str, Any]) -> Iterator[str]:
    rows = list(_leaves(figures))
    yield "| figure | value |"
    yield "|---|---|"
    for path, value in rows[:MOST_ROWS]:
        yield f"| {' · '.join(path)} | {_shown(value)} |"
    if len(rows) > MOST_ROWS:
        yield f"\n{len(rows) - MOST_ROWS} more are in the file."


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each number of a tree with its path, and rows of numbers as one."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _leaves(one, (*path, str(key).replace("|", "\\|")))
    elif isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
        for number, one in enumerate(value, 1):
            yield from _leaves(one, (*path, str(number)))
    else:
        yield path, value


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_shown(one) for one in value)
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return str(value).replace("|", "\\|")
