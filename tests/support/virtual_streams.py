"""Streams on a virtual clock, and random graphs and machines for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plait as pl
import trio
from hypothesis import strategies as st
from plait.devices.sim import SimModel
from plait.graph.core.ir import Graph
from plait.scheduler.profile import Profile


@st.composite
def layered_graphs(draw: st.DrawFn) -> Graph:
    """Draw a graph of kernels that always run: none is a view."""
    builder = pl.GraphBuilder("random")
    made = [builder.input(f"x{i}", "int32", (64,)) for i in range(draw(st.integers(1, 3)))]
    for _ in range(draw(st.integers(1, 12))):
        first, second = draw(st.sampled_from(made)), draw(st.sampled_from(made))
        op = draw(st.sampled_from(("Add", "Mul", "Relu")))
        made.append(builder.op(op, first) if op == "Relu" else builder.op(op, first, second))
    for index, name in enumerate(
        draw(st.lists(st.sampled_from(made[3:] or made[-1:]), max_size=2))
    ):
        builder.output(f"y{index}", name)
    builder.output("last", made[-1])
    return builder.build()


models = st.builds(
    SimModel,
    flops_per_s=st.floats(1e5, 1e8),
    bytes_per_s=st.floats(1e6, 1e9),
    copy_bytes_per_s=st.floats(1e6, 1e9),
    copy_latency_s=st.floats(0, 1e-3),
    launch_s=st.floats(0, 1e-4),
    submit_s=st.floats(0, 1e-4),
    peer_bytes_per_s=st.none() | st.floats(1e6, 1e9),
)


def measured(plan: pl.Plan, items: int, max_in_flight: int) -> Profile:
    feeds: Mapping[str, Any] = {
        name: np.zeros(plan.graph.tensors[name].static_shape, np.int32)
        for name in plan.graph.inputs
    }

    async def stream() -> Profile:
        async with pl.Session(plan) as session:
            source = [feeds] * items
            async with session.stream(source, max_in_flight=max_in_flight) as results:
                async for item in results:
                    assert item.error is None
        return session.profile()

    return trio.run(stream)
