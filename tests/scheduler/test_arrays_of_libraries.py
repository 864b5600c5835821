"""Arrays of other libraries in host memory, as inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.graph.ir import Graph
from plait.scheduler.errors import FeedError


class Shared:
    """An array that numpy knows by DLPack only."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.values.__dlpack_device__()


class Elsewhere(Shared):
    """One that lies on a GPU."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


class WithGradient(Shared):
    """One that cannot be shared."""

    def __dlpack__(self, **options: Any) -> Any:
        raise RuntimeError("it has a gradient")


def negation() -> Graph:
    b = pl.GraphBuilder("negation")
    x = b.input("x", "float32", (3,))
    b.output("y", b.op("Neg", x))
    return b.build()


VALUES = np.array([1, -2, 3], np.float32)


def test_an_array_that_is_shared_by_dlpack_is_fed() -> None:
    assert np.array_equal(pl.run(negation(), {"x": Shared(VALUES)})["y"], -VALUES)


async def test_a_stream_may_write_the_next_item_where_the_last_one_was() -> None:
    shared = Shared(np.zeros(3, np.float32))

    def source() -> Any:
        for index in range(6):
            shared.values[...] = index
            yield {"x": shared}

    async with pl.Session(pl.plan(negation(), max_in_flight=2)) as session:
        async with session.stream(source(), max_in_flight=4) as results:
            found = [item["y"][0] async for item in results]
    assert found == [0, -1, -2, -3, -4, -5]


def test_one_of_another_dtype_is_refused() -> None:
    with pytest.raises(FeedError, match="got dtype 'int64'"):
        pl.run(negation(), {"x": Shared(np.arange(3))})


def test_one_on_a_device_is_refused() -> None:
    with pytest.raises(FeedError, match="lies on a device"):
        pl.run(negation(), {"x": Elsewhere(VALUES)})


def test_what_its_library_does_not_share_is_refused() -> None:
    with pytest.raises(FeedError, match="it has a gradient"):
        pl.run(negation(), {"x": WithGradient(VALUES)})


def test_pytorchs_tensors_are_fed() -> None:
    torch = pytest.importorskip("torch")
    found = pl.run(negation(), {"x": torch.tensor([1.0, -2.0, 3.0])})["y"]
    assert np.array_equal(found, -VALUES)
