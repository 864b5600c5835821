"""Plans whose reports tests look at, and the data in a page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import plait as pl
import trio
from fake_devices import PrivateDevice
from plait.graph.core.ir import Graph

HOSTILE = "</script><script>alert('x')</script><!--&amp;\u2028\u2029\ud800é\""
"""A name that would end its element, start a script, or break a line of one."""


def branches(blocks: int, name: str = "branches", prefix: str = "", every: int = 1) -> Graph:
    """Return blocks of five nodes each: two branches that are added; Tanh in one of `every`."""
    builder = pl.GraphBuilder(name)
    h = builder.input(f"{prefix}x", "float32", (64, 32))
    for block in range(blocks):
        where = f"{prefix}block{block}/"
        left = builder.op(
            "Relu", builder.op("Mul", h, 0.5, name=f"{where}mul"), name=f"{where}relu"
        )
        op = "Sigmoid" if block % every else "Tanh"
        right = builder.op(op, h, name=f"{where}{op.lower()}")
        h = builder.op(
            "Relu", builder.op("Add", left, right, name=f"{where}add"), name=f"{where}out"
        )
    builder.output(f"{prefix}y", h)
    return builder.build()


def split(graph: Graph, max_in_flight: int = 2) -> pl.Plan:
    """Return a plan with subgraphs on two devices and copies between them."""
    devices: list[str | PrivateDevice] = [PrivateDevice("npu", lacks=["Tanh"]), "cpu"]
    return pl.plan(
        graph, devices, max_in_flight=max_in_flight, passes=(), strategy="preference"
    )  # fmt: skip


def profiled(plan: pl.Plan, feed: dict[str, Any], items: int) -> pl.Profile:
    """Return the profile of some runs."""

    async def run() -> pl.Profile:
        async with pl.Session(plan, measure=True) as session:
            for _ in range(items):
                await session.run(feed)
            return session.profile()

    return trio.run(run)


def values_in(page: str) -> dict[str, Any]:
    """Return the data that a page holds, found as a browser would find them."""
    start = page.index('<script type="application/json" id="data">')
    data = page[page.index(">", start) + 1 :]
    end = re.search("</script", data, re.IGNORECASE)
    assert end is not None
    found: dict[str, Any] = json.loads(data[: end.start()])
    return found


def written(plan: pl.Plan, folder: Path, profile: pl.Profile | None = None) -> str:
    """Return the page of a plan, by way of a file."""
    file = folder / "report.html"
    plan.save_html(file, profile=profile)
    return file.read_text(encoding="utf-8")
