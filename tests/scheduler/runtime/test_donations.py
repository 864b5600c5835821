"""Results of functions are read where they lie, and nobody sees what a function does to its own."""

from __future__ import annotations

import gc
from collections.abc import Collection
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.ort.program import OrtProgram
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from plait.scheduler.dispatch import donations
from plait.scheduler.dispatch.donations import find_donated_tensors

SPEC = pl.TensorSpec("float32", ("rows", 4))
DEVICES: list[list[str]] = [
    ["cpu"],
    ["ort", "cpu"],
    ["ort", "compiled"],
    ["ort", "formal"],
    ["ort:0..1", "cpu:0..1"],
    ["cpu", "worker:0"],
]


@pytest.fixture(autouse=True)
def _give_small_outputs_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(donations, "LEAST_BYTES", 0)


addresses: dict[str, list[int]] = {"returned": [], "read": []}


def operator(function: Any) -> Any:
    return pl.operator(SPEC, inputs=[SPEC], name=f"test_donations.{function.__name__}")(function)


@operator
def fresh(x: Array) -> Array:
    made = x + np.float32(1)
    addresses["returned"].append(made.ctypes.data)
    return made


@operator
def read(x: Array) -> Array:
    addresses["read"].append(x.ctypes.data)
    assert not x.flags.writeable
    return x * np.float32(2)


_buffer = np.zeros((64, 4), np.float32)


@operator
def reused(x: Array) -> Array:
    """Return the same array at each call."""
    np.add(x, np.float32(3), out=_buffer[: len(x)])
    return _buffer[: len(x)]


@operator
def spoiled(x: Array) -> Array:
    """Overwrite what it returned at the call before."""
    if spoiled_before:
        spoiled_before.pop()[...] = np.nan
    made = x + np.float32(5)
    spoiled_before.append(made)
    return made


spoiled_before: list[Array] = []


@operator
def passed(x: Array) -> Array:
    return x


@operator
def turned(x: Array) -> Array:
    return np.asfortranarray(x - np.float32(7))


ORACLE: dict[Any, Any] = {
    fresh: lambda x: x + 1,
    read: lambda x: x * 2,
    reused: lambda x: x + 3,
    spoiled: lambda x: x + 5,
    passed: lambda x: x,
    turned: lambda x: x - 7,
    "Relu": lambda x: np.maximum(x, 0),
}


def chain(*works: Any, outputs: Collection[int] = ()) -> Graph:
    """Return a graph of functions and operators one behind the other.

    Its output is the last result, or there are several by number.
    """
    b = pl.GraphBuilder("chain")
    x = b.input("x", "float32", ("rows", 4) if outputs else (8, 4))
    for index, work in enumerate(works):
        name = f"n{index}"
        x = b.op(work, x, name=name) if isinstance(work, str) else b.call(work, x, name=name)
        if index in outputs:
            b.output(f"y{index}", x)
    if not outputs:
        b.output("y", x)
    return b.build()


def donated(*works: Any, devices: Any = ("cpu",), pin: Any = None) -> set[int]:
    """Return which of a chain's results are given away, by number."""
    plan = pl.plan(chain(*works), list(devices), pin=pin)
    names = {node.outputs[0]: int(node.name[1:]) for node in plan.graph.nodes}
    return {names[name] for name in find_donated_tensors(plan, plan.prototypes)}


def test_only_what_all_readers_take_is_given_away() -> None:
    assert donated(fresh, read, read) == {0, 1, 2}
    assert donated(fresh, "Relu", read) == {2}
    assert donated(fresh, "Relu", read, devices=["ort", "cpu"], pin={"n1": "ort"}) == {0, 2}
    assert donated(fresh, read, devices=["compiled"]) == {0, 1}
    assert donated(fresh, read, devices=["worker:0"]) == set()


def test_small_outputs_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(donations, "LEAST_BYTES", 129)
    assert donated(fresh, read) == {0}


def test_devices_that_bind_programs_in_a_way_of_their_own_have_to_say_that_they_take_them() -> None:
    assert not pl.device("formal").capabilities.takes_donations
    assert donated(fresh, read, devices=["formal"]) == set()


def programs() -> int:
    return sum(type(one) is OrtProgram for one in gc.get_objects())


def test_programs_that_take_donations_go_without_the_cycle_collector() -> None:
    plan = pl.plan(chain(fresh, "Relu"), ["ort", "cpu"], pin={"n1": "ort"})
    gc.collect()
    before = programs()
    gc.disable()
    try:
        with pl.BlockingSession(plan) as session:
            session.run({"x": np.ones((8, 4), np.float32)})
            assert programs() == before + 1
        assert programs() == before
    finally:
        gc.enable()


@pytest.mark.trio
async def test_a_function_reads_what_the_one_before_returned_where_that_lies() -> None:
    addresses["returned"].clear()
    addresses["read"].clear()
    async with pl.Session(pl.plan(chain(fresh, read), ["cpu"])) as session:
        x = np.ones((8, 4), np.float32)
        for _ in range(3):
            assert np.array_equal((await session.run({"x": x}))["y"], 2 * (x + 1))
    assert addresses["returned"] == addresses["read"]
    assert len(addresses["read"]) == 3


@pytest.mark.trio
@pytest.mark.parametrize("copy", [True, False])
async def test_outputs_are_the_arrays_that_functions_returned(copy: bool) -> None:
    addresses["returned"].clear()
    items = [np.full((8, 4), index, np.float32) for index in range(5)]
    async with pl.Session(pl.plan(chain(fresh), ["cpu"])) as session:
        found = [(await session.run({"x": x}))["y"] for x in items]
        async with session.stream(({"x": x} for x in items), copy=copy) as results:
            async for item in results:
                assert item["y"].flags.writeable is copy
                assert np.array_equal(item["y"], items[item.index] + 1)
                found.append(item["y"])
                if copy:
                    found[-1][...] = np.nan
    assert [one.ctypes.data for one in found] == addresses["returned"]
    assert all(np.array_equal(y, x + 1) for x, y in zip(items, found, strict=False))


def test_outputs_keep_no_larger_array_alive_and_can_be_written() -> None:
    def turn(x: Array) -> Array:
        return np.repeat(x[None], 8, 0).T

    def cut(x: Array) -> Array:
        return np.repeat(x[None], 1000, 0)[:8].T

    def freeze(x: Array) -> Array:
        made = np.repeat(x[None], 8, 0)
        made.flags.writeable = False
        return made.T

    x = np.arange(4, dtype=np.float32)
    for function in (turn, cut, freeze):
        name = f"test_donations.{function.__name__}"
        call = pl.operator(pl.TensorSpec("float32", (4, 8)), name=name)(function)
        b = pl.GraphBuilder("g")
        b.output("y", b.call(call, b.input("x", "float32", (4,))))
        with pl.BlockingSession(pl.plan(b.build(), ["cpu"])) as session:
            found = session.run({"x": x})["y"]
        assert np.array_equal(found, np.repeat(x[:, None], 8, 1))
        assert found.flags.writeable
        assert (found.base is not None) is (function is turn)


@pytest.mark.slow
@pytest.mark.trio
@pytest.mark.parametrize("devices", DEVICES, ids=str)
@settings(max_examples=8, deadline=None)
@given(works=st.lists(st.sampled_from(list(ORACLE)), min_size=1, max_size=6), data=st.data())
async def test_whatever_functions_do_to_their_results_items_are_right(
    devices: list[str], works: list[Any], data: st.DataObject
) -> None:
    if any(work in (reused, spoiled) for work in works) and ":0..1" in str(devices):
        devices = ["ort", "cpu"]  # such functions are not for several threads
    spoiled_before.clear()
    in_flight = data.draw(st.integers(1, 4))
    outputs = data.draw(st.sets(st.integers(0, len(works) - 1))) | {len(works) - 1}
    batch, copy = data.draw(st.sampled_from([1, 3])), data.draw(st.booleans())
    rng = np.random.default_rng(0)
    items = [rng.uniform(-9, 9, (8, 4)).astype(np.float32) for _ in range(6)]
    pin = {f"n{i}": devices[0] for i, work in enumerate(works) if work == "Relu"}
    graph = chain(*works, outputs=outputs)
    plan = pl.plan(graph, devices, pin=pin, max_in_flight=in_flight)
    async with pl.Session(plan) as session:
        options: Any = {} if batch == 1 else {"batch": batch, "max_delay_s": 0.0}
        async with session.stream(({"x": x} for x in items), copy=copy, **options) as results:
            async for result in results:
                x = items[result.index]
                for number, work in enumerate(works):
                    x = ORACLE[work](x)
                    if number in outputs:
                        found = result[f"y{number}"]
                        np.testing.assert_array_equal(found, x)
                        assert found.flags.writeable is copy
                if copy:  # the arrays are the caller's
                    for name in result:
                        result[name][...] = np.nan
