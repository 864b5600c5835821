"""Definitions of operators that keep some of what they are given, and their kernels, agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from bound import Bound
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from plait.devices import Device
from plait.devices.cpu import CpuDevice
from plait.devices.formal.device import FormalDevice
from single_node import single_node_graph, trim

AnyArray = NDArray[Any]

seeds = st.integers(0, 999)
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
dtypes = st.sampled_from(["bool", "int8", "int64", "float32", "complex64"])


@pytest.fixture(scope="module")
def devices() -> Iterator[tuple[Device, Device]]:
    """Return the formal device and the cpu."""
    opened = FormalDevice(), CpuDevice()
    for device in opened:
        device.open()
    yield opened
    for device in opened:
        device.close()


def results(device: Device, op: str, *inputs: AnyArray, **attributes: Any) -> list[AnyArray]:
    """Return what is kept, by the operator that writes it into larger buffers."""
    n_outputs = 4 if op == "Unique" else 1
    graph = single_node_graph(f"Bounded.{op}", inputs, attributes, n_outputs + 1)
    fed = {f"x{i}": x for i, x in enumerate(inputs)}
    with Bound(device, graph) as bound:
        found = bound.run(fed)
    return trim([found[f"y{i}"] for i in range(n_outputs + 1)])


def check(devices: tuple[Device, Device], op: str, *inputs: AnyArray, **attributes: Any) -> None:
    by_definition, by_kernel = (results(device, op, *inputs, **attributes) for device in devices)
    for wanted, found in zip(by_definition, by_kernel, strict=True):
        np.testing.assert_array_equal(found, wanted, strict=True)


def few_values(dtype: str, shape: tuple[int, ...], seed: int) -> AnyArray:
    values = np.random.default_rng(seed).integers(0, 3, shape)
    return (values * 1j + values % 2 if dtype == "complex64" else values).astype(dtype)


@given(dtype=dtypes, shape=shapes, seed=seeds)
def test_non_zero(
    devices: tuple[Device, Device], dtype: str, shape: tuple[int, ...], seed: int
) -> None:
    check(devices, "NonZero", few_values(dtype, shape, seed))


@given(dtype=dtypes, shape=shapes.filter(bool), seed=seeds, data=st.data())
def test_compress(
    devices: tuple[Device, Device],
    dtype: str,
    shape: tuple[int, ...],
    seed: int,
    data: st.DataObject,
) -> None:
    axis = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    x = few_values(dtype, shape, seed)
    length = data.draw(st.integers(0, x.size if axis is None else shape[axis]))
    condition = np.array(data.draw(st.lists(st.booleans(), min_size=length, max_size=length)), bool)
    check(devices, "Compress", x, condition, axis=axis)


@given(
    dtype=st.sampled_from(["int8", "int64", "float32"]),
    shape=shapes.filter(bool),
    seed=seeds,
    keep_order=st.booleans(),
    data=st.data(),
)
def test_unique(
    devices: tuple[Device, Device],
    dtype: str,
    shape: tuple[int, ...],
    seed: int,
    keep_order: bool,
    data: st.DataObject,
) -> None:
    axes = [axis for axis in range(-len(shape), len(shape)) if np.prod(shape)]
    axis = data.draw(st.sampled_from([None, *axes]))
    check(devices, "Unique", few_values(dtype, shape, seed), axis=axis, sorted=not keep_order)


@given(
    seed=seeds,
    limit=st.integers(0, 4),
    overlap=st.sampled_from([0.0, 0.3, 0.7]),
    least=st.sampled_from([-1.0, 0.5]),
    by_centre=st.booleans(),
)
def test_non_max_suppression(
    devices: tuple[Device, Device],
    seed: int,
    limit: int,
    overlap: float,
    least: float,
    by_centre: bool,
) -> None:
    rng = np.random.default_rng(seed)
    boxes = rng.integers(1, 9, (2, 6, 4)).astype(np.float32)
    scores = rng.integers(0, 5, (2, 3, 6)).astype(np.float32) / 4
    bounds = [np.array(limit), *(np.array(bound, np.float32) for bound in (overlap, least))]
    check(devices, "NonMaxSuppression", boxes, scores, *bounds, center_point_box=by_centre)


def test_a_condition_beyond_the_tensor_fails_on_both(devices: tuple[Device, Device]) -> None:
    x, condition = np.arange(2), np.array([False, False, True])
    for device in devices:
        with pytest.raises(Exception, match="IndexError"):
            results(device, "Compress", x, condition, axis=0)
