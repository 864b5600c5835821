"""Operators that own something and write down what happens to them, where a worker can import them.

What happens is appended to a file, so that it can be read whichever process it happens in.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import plait as pl
from plait.graph.core.checks import Checks
from plait.graph.core.operator import Call
from plait.graph.values.tensor import Array


class Diary:
    """What one instance writes."""

    def __init__(self, file: str, name: str) -> None:
        self._file, self._name = file, name

    def write(self, what: str) -> None:
        with open(self._file, "a") as file:
            file.write(f"{self._name} {what} {os.getpid()}/{threading.get_ident()}\n")


def read(file: Path) -> list[str]:
    """Return what has happened, without where."""
    if not file.exists():
        return []
    return [" ".join(line.split()[:2]) for line in file.read_text().splitlines()]


def places(file: Path) -> set[str]:
    """Return the processes and threads where it has happened."""
    return {line.split()[2] for line in file.read_text().splitlines()}


@pl.operator()
class Total:
    """Adds the sum of all that it has seen; fails where it is told to."""

    def prepare(self, call: Call, check: Checks) -> None:
        if call.inputs[0] is not None and call.inputs[0].is_static:
            check.input("x").size.at_most(8)
        self._diary = Diary(call.attributes["diary"], call.attributes["label"])
        self._fails = call.attributes["fails"]
        self._diary_is_there = Path(call.attributes["diary"]).parent.exists()

    def open(self, inputs: Sequence[Array | None]) -> None:
        known = "".join("-" if each is None else f"{float(each.sum()):g}" for each in inputs)
        self._diary.write(f"open:{known}")
        if self._fails == "open":
            raise OSError("nothing to open")
        self._sum = np.float32(0)

    def run(
        self,
        x: Array,
        weight: Array | None = None,
        *,
        diary: str,
        label: str = "a",
        fails: str = "",
    ) -> Array:
        self._diary.write("run")
        if fails == "run" and x[0] < 0:
            raise ValueError("negative")
        self._sum += x.sum()
        return x + self._sum

    def close(self) -> None:
        self._diary.write("close")
        if self._fails == "close":
            raise OSError("nothing to close")
