"""Arrays of other libraries in host memory, as inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.graph.core.ir import Graph
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


def columns(values: Any) -> dict[str, Any]:
    """Return what libraries make of numbers, None among them for those that are missing."""
    pandas, polars, arrow = map(pytest.importorskip, ("pandas", "polars", "pyarrow"))
    column = polars.Series("x", values, polars.Float32)
    return {
        "numpy": np.ma.array(
            [value or 0 for value in values],
            np.float32,
            mask=[value is None for value in values],
        ),
        "pandas": pandas.Series(values, dtype="Float32"),
        "pandas on Arrow": pandas.Series(values, dtype="float32[pyarrow]"),
        "polars": column,
        "Arrow": arrow.array(values, arrow.float32()),
        "Arrow in chunks": arrow.chunked_array([arrow.array(values, arrow.float32())]),
    }


def tables(values: Any) -> dict[str, Any]:
    """Return tables of a full column and of one with these numbers."""
    pandas, polars, arrow = map(pytest.importorskip, ("pandas", "polars", "pyarrow"))
    full = [0.0] * len(values)
    as_arrow = arrow.table({"full": full, "x": values}).cast(
        arrow.schema([("full", arrow.float32()), ("x", arrow.float32())])
    )
    pairs = list(zip(full, values, strict=True))
    dtype = "Float32" if None in values else "float32"  # numpy makes objects of the former
    return {
        "pandas": pandas.DataFrame({"full": full, "x": values}, dtype=dtype),
        "polars": polars.from_arrow(as_arrow),
        "Arrow": as_arrow,
        "rows of polars": polars.Series(pairs, dtype=polars.Array(polars.Float32, 2)),
    }


def table_negation() -> Graph:
    b = pl.GraphBuilder("negation")
    b.output("y", b.op("Neg", b.input("x", "float32", (3, 2))))
    return b.build()


@pytest.mark.parametrize(
    ("fed", "graph", "expected"),
    [
        (columns, negation(), -VALUES),
        (tables, table_negation(), -np.stack([np.zeros(3, np.float32), VALUES], 1)),
    ],
)
def test_columns_and_tables_are_fed_and_what_they_lack_is_refused(
    fed: Any, graph: Graph, expected: Any
) -> None:
    for library, whole in fed([1.0, -2.0, 3.0]).items():
        assert np.array_equal(pl.run(graph, {"x": whole})["y"], expected), library
    for library, lacking in fed([1.0, None, 3.0]).items():
        with pytest.raises(FeedError, match="values are missing in what is fed") as raised:
            pl.run(graph, {"x": lacking})
        assert raised.value.at == "input 'x'", library


async def test_a_stream_refuses_items_that_lack_values_and_goes_on() -> None:
    pandas = pytest.importorskip("pandas")
    rows = ([1.0, 2.0, 3.0], [1.0, None, 3.0], [4.0, 5.0, 6.0])
    source = ({"x": pandas.Series(row, dtype="Float32")} for row in rows)
    async with pl.Session(pl.plan(negation(), max_in_flight=2)) as session:
        async with session.stream(source, max_in_flight=4) as results:
            found = [item.error or item["y"][0] async for item in results]
    assert (found[0], found[2]) == (-1, -4)
    assert isinstance(found[1], FeedError)


def test_nan_is_a_number() -> None:
    fed = np.array([np.nan, 1, 2], np.float32)
    for library, column in columns(fed.tolist()).items():
        if not library.startswith(
            "pandas"
        ):  # there NaN is one of the ways to say that a value is missing
            assert np.isnan(pl.run(negation(), {"x": column})["y"][0]), library


def test_pytorchs_tensors_are_fed() -> None:
    torch = pytest.importorskip("torch")
    found = pl.run(negation(), {"x": torch.tensor([1.0, -2.0, 3.0])})["y"]
    assert np.array_equal(found, -VALUES)
