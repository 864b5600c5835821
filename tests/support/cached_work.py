"""Steps that note each of their calls in a file, for tests of results that are kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
from plait.scheduler.pipelines.result_cache import cache_results


def note_call(text: str) -> dict[str, Any]:
    """Append the name in a text's folder to a file, which shows how often it was called."""
    folder, _, name = text.rpartition("/")
    file = os.open(Path(folder, "calls"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{name}\n".encode())
    os.close(file)
    return {"name": name, "codes": np.frombuffer(name.encode(), "uint8")}


def read_calls(folder: Path) -> list[str]:
    file = folder / "calls"
    return sorted(file.read_text().split()) if file.exists() else []


def run_pipe(folder: Path, names: list[str], **options: Any) -> list[Any]:
    """Return the results of a new pipeline with a cache in the folder."""
    step = pl.step(note_call, cache=folder / "kept.sqlite", **options)
    with pl.pipeline(step, example=f"{folder}/example") as pipe:
        return list(pipe.stream(f"{folder}/{name}" for name in names))


def make_array(number: int) -> tuple[int, np.ndarray]:
    return number, np.full(1 + number * 7 % 4000, number, "int32")


def keep_until_killed(path: str, start: str) -> None:
    """Keep results for ever; print the number of each once it is kept."""
    kept = cache_results(make_array, path, 1 << 30)
    for number in range(int(start), 1 << 30):
        kept(number)
        os.write(1, f"{number}\n".encode())


if __name__ == "__main__":
    keep_until_killed(*sys.argv[1:])
