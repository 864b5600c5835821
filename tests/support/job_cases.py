"""Small jobs, shared by tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import plait as pl


def count_words(text: str) -> dict[str, Any]:
    return {"words": len(text.split()), "text": text}


def make_pipe(function: Callable[..., Any] = count_words, example: Any = "a b") -> pl.Pipeline:
    return pl.pipeline(pl.step(function, ordered=False), example=example)


def read_lines(job: pl.Job, names: tuple[str, ...] | None = None) -> list[dict[str, Any]]:
    parts = job.status().parts if names is None else names
    return [
        json.loads(line) for name in parts for line in (job.folder / name).read_text().splitlines()
    ]


def make_sum() -> pl.Plan:
    b = pl.GraphBuilder("sum")
    x = b.input("x", "float32", (1, 2))
    total = b.variable("total", np.zeros((1, 2), "float32"))
    b.output("sum", total.assign(total + x))
    return pl.plan(b.build(), max_in_flight=2)


TEXTS = ["one", "two words", "and three words"] * 7
