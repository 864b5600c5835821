"""Types of the files in a folder: each goes through one graph, several at a time, on two devices.

A worker process reads files and cuts tokens out of them while this process's cpu device runs the
neural network of magika on the files before. Needs ``pip install '.[onnx]' magika==1.0.3``.

    python examples/identify_files.py [FOLDER] [--devices worker:0,cpu] [--trace trace.json]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import magika_pipeline
import plait as pl
import trio


class Found(NamedTuple):
    """A file's type and the model's score for it, or why it has no type."""

    path: Path
    label: str
    score: float
    error: BaseException | None = None


def list_files(folder: Path) -> Iterator[Path]:
    """Yield the regular files below a folder in order; no links, no hidden folders."""
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(where, name) for name in sorted(names)):
            if path.is_file() and not path.is_symlink():
                yield path


def plan_for(devices: Sequence[str], max_in_flight: int) -> pl.Plan:
    """Plan the pipeline: files are read on the first device, the last one runs the rest."""
    graph = magika_pipeline.build_graph(pl.load(magika_pipeline.model_path()))
    pins = {"read": devices[0], "model/*": devices[-1], "choose": devices[-1]}
    return pl.plan(graph, devices=devices, pin=pins, max_in_flight=max_in_flight)


async def identify(
    plan: pl.Plan,
    files: Sequence[Path],
    max_in_flight: int,
    trace: Path | None = None,
    html: Path | None = None,
) -> list[Found]:
    """Return the type of each file; one that cannot be read does not stop the others."""
    source = ({"path": magika_pipeline.encode_path(file)} for file in files)
    found: list[Found] = []
    async with pl.Session(plan) as session:
        async with session.stream(source, max_in_flight=max_in_flight) as results:
            async for item in results:
                path = files[item.index]
                if item.error is not None:
                    found.append(Found(path, "unreadable", 0.0, item.error))
                else:
                    label = magika_pipeline.labels()[int(item["label"][0])]
                    found.append(Found(path, label, float(item["score"][0])))
        if trace is not None:
            session.profile().save(trace)
        if html is not None:
            plan.save_html(html, profile=session.profile())
    return found


def show(found: Sequence[Found], folder: Path) -> None:
    """Print files with their types, as a rich table where that package is installed."""
    rows = [(f.label, _remark(f), _printable(f.path.relative_to(folder))) for f in found]
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        for row in rows:
            print("{:16} {:6} {}".format(*row))
        return
    table = Table("type", "score", "file", box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*row)
    # Where no terminal sets a width, rich takes 80 columns and cuts long names.
    Console(width=None if sys.stdout.isatty() else 200, markup=False, highlight=False).print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"{options.folder} is not a folder")
    files = list(list_files(options.folder))[: options.limit]
    try:
        plan = plan_for(options.devices.split(","), options.max_in_flight)
        print(plan.report())
        start = time.perf_counter()
        asked = (options.max_in_flight, options.trace, options.html)
        found = trio.run(identify, plan, files, *asked)
    except (pl.PlaitError, ModuleNotFoundError) as error:
        parser.exit(2, f"{error}\n")
    elapsed_s = time.perf_counter() - start
    shown = found[: options.show]
    show(shown, options.folder)
    if len(shown) < len(found):
        print(f"and {len(found) - len(shown)} more: --show {len(found)}")
    types = Counter(file.label for file in found).most_common(6)
    print("most are: " + ", ".join(f"{label} ({count})" for label, count in types))
    print(f"{len(found)} files in {elapsed_s:.2f} s: {len(found) / elapsed_s:.0f} files/s")
    if options.html is not None:
        print(f"the timeline of devices and items: {options.html}, for a browser")
    return 0


def _remark(found: Found) -> str:
    if found.error is None:
        return f"{found.score:.0%}"
    return str(found.error).splitlines()[0]


def _printable(path: Path) -> str:
    """Return a path as text, also where its bytes are none."""
    return os.fsencode(path).decode(errors="replace")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Identify the types of all files of a folder.")
    repository = Path(__file__).resolve().parent.parent
    parser.add_argument("folder", type=Path, nargs="?", default=repository)
    parser.add_argument("--devices", default="worker:0,cpu", help="first reads, last computes")
    parser.add_argument("--max-in-flight", type=int, default=4, help="files under way at a time")
    parser.add_argument("--limit", type=int, help="stop after so many files")
    parser.add_argument("--show", type=int, default=40, metavar="N", help="list the first N files")
    parser.add_argument("--html", type=Path, help="save a page with the plan and the timeline")
    parser.add_argument("--trace", type=Path, help="save a timeline for ui.perfetto.dev")
    return parser


if __name__ == "__main__":
    sys.exit(main())
