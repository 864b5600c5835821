"""Whatever the options and the items, a stream yields what `run` yields for each item alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import plait as pl
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

Array = np.ndarray[Any, Any]
Outcome = tuple[str, list[list[float]]] | type[BaseException]


@pl.operator(name="test_stream_any_options.picky")
def picky(x: Array) -> Array:
    if (x < 0).any():
        raise ValueError("negative")
    return 2 * x


def graph() -> pl.Graph:
    """Doubles each row, on two devices in turn."""
    builder = pl.GraphBuilder("doubling")
    x = builder.input("x", "float32", ("n", "w"))
    h = builder.op("Add", x, 0.5, name="first")
    builder.output("y", builder.call(picky, h, name="second"))
    return builder.build()


PLANS = {
    limit: pl.plan(graph(), ["cpu", "cpu:1"], pin={"second": "cpu:1"}, max_in_flight=limit)
    for limit in (1, 2, 4)
}

fed: st.SearchStrategy[dict[str, Array]] = st.one_of(
    st.builds(
        lambda value, rows, width: {"x": np.full((rows, width), value, np.float32)},
        st.integers(0, 9),
        st.integers(1, 3),
        st.integers(1, 2),
    ),
    st.just({"x": np.full((1, 1), -7, np.float32)}),
    st.just({"x": np.zeros((1, 1), np.int8)}),
    st.just({}),
)


def sent(items: Sequence[dict[str, Array]], kind: str) -> Any:
    async def later() -> AsyncIterator[dict[str, Array]]:
        for one in items:
            await trio.lowlevel.checkpoint()
            yield one

    if kind == "channel":
        send, receive = trio.open_memory_channel[dict[str, Array]](len(items))
        for one in items:
            send.send_nowait(one)
        send.close()
        return receive
    return {"list": list(items), "generator": (one for one in items), "later": later()}[kind]


async def alone(session: pl.Session, inputs: dict[str, Array]) -> Outcome:
    try:
        return "y", (await session.run(inputs))["y"].tolist()
    except pl.PlaitError as error:
        return type(error)


@settings(max_examples=35)
@given(
    items=st.lists(fed, max_size=9),
    limit=st.sampled_from(sorted(PLANS)),
    kind=st.sampled_from(["list", "generator", "later", "channel"]),
    ordered=st.booleans(),
    copy=st.booleans(),
    batch=st.sampled_from([None, None, 1, 2, 5]),
    max_delay_s=st.sampled_from([None, 0.0]),
    n_taken=st.integers(0, 20),
)
def test_a_stream_yields_what_each_item_yields_alone(
    items: list[dict[str, Array]],
    limit: int,
    kind: str,
    ordered: bool,
    copy: bool,
    batch: int | None,
    max_delay_s: float | None,
    n_taken: int,
) -> None:
    """But for the items that share a batch with one that fails."""
    options: dict[str, Any] = {"ordered": ordered, "copy": copy, "batch": batch}
    if batch is not None:
        options["max_delay_s"] = max_delay_s

    async def main() -> None:
        async with pl.Session(PLANS[limit]) as session:
            wanted = [await alone(session, one) for one in items]
            got: dict[int, Outcome] = {}
            async with session.stream(sent(items, kind), **options) as results:
                async for one in results:
                    outcome = type(one.error) if one.error else ("y", one["y"].tolist())
                    assert one.index not in got
                    got[one.index] = outcome
                    if len(got) == n_taken:
                        break
            assert len(got) == (min(n_taken, len(items)) if n_taken else len(items))
            assert not ordered or list(got) == list(range(len(got)))
            for index, outcome in got.items():
                shared = batch not in (None, 1) and pl.KernelError in wanted
                assert outcome == wanted[index] or (shared and outcome is pl.KernelError)
            if items:
                assert await alone(session, items[0]) == wanted[0]

    trio.run(main)
