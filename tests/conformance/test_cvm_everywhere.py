"""Exact operators give the same bits on every device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import plait as pl
import pytest
from bound import Bound
from plait.devices import Device
from plait.devices.cpu import CpuDevice
from plait.graph.core.ir import Graph
from plait.graph.core.operator import list_operators
from plait.graph.values.tensor import Array

RNG = np.random.default_rng(37)
Case = tuple[str, list[Array], dict[str, Any]]
LOWEST, HIGHEST = -(2**31), 2**31 - 1


def anything(*shape: int) -> Array:
    """Return int32s of all magnitudes, the extremes among them."""
    numbers = RNG.integers(LOWEST, HIGHEST, shape, np.int32) >> RNG.integers(0, 32, shape, np.int32)
    numbers.reshape(-1)[:2] = LOWEST, HIGHEST
    return numbers


def small(*shape: int) -> Array:
    return RNG.integers(-127, 128, shape, np.int32)


X, ROW = anything(2, 3, 4), anything(3, 1)
IMAGE, WIDE_IMAGE = small(2, 4, 9, 8), anything(1, 4, 9, 8)
BOXES = RNG.integers(0, 9, (2, 12, 6), np.int32)
BOXES[..., 4:] += BOXES[..., 2:4]
WINDOW = {"kernel_size": (3, 3), "padding": (1, 1)}

CASES: list[Case] = [
    ("sum", [X], {"axis": (1,)}),
    ("max", [X], {"axis": (0, 2), "keepdims": True}),
    *((f"broadcast_{op}", [X, ROW], {}) for op in ("add", "sub", "mul", "max", "div", "greater")),
    ("conv2d", [IMAGE, small(6, 2, 3, 3), small(6)], {"channels": 6, "groups": 2, **WINDOW}),
    ("conv2d", [WIDE_IMAGE, anything(6, 4, 3, 3), anything(6)], {"channels": 6, **WINDOW}),
    (
        "conv2d",
        [IMAGE, small(4, 1, 3, 3)],
        {"channels": 4, "groups": 4, "use_bias": False, **WINDOW},
    ),
    ("dense", [small(3, 20), small(5, 20), small(5)], {"units": 5}),
    ("dense", [anything(3, 20), anything(5, 20)], {"units": 5, "use_bias": False}),
    ("relu", [X], {}),
    ("max_pool2d", [IMAGE], {"pool_size": (3, 2), "strides": (2, 2), "padding": (1, 1)}),
    ("upsampling", [IMAGE], {"scale": 2}),
    ("abs", [X], {}),
    ("negative", [X], {}),
    ("precision", [X], {}),
    ("elemwise_add", [X, anything(2, 3, 4)], {}),
    ("elemwise_sub", [X, anything(2, 3, 4)], {}),
    ("clip", [X], {"a_min": -1000, "a_max": 500}),
    ("cvm_clip", [X], {"precision": 12}),
    ("right_shift", [X], {"precision": 20, "shift_bit": 5}),
    ("left_shift", [X], {"precision": 20, "shift_bit": 32}),
    ("repeat", [X], {"repeats": 3, "axis": 1}),
    ("tile", [X], {"reps": (2, 1, 2)}),
    ("flatten", [X], {}),
    ("concatenate", [X, X], {"axis": -1}),
    ("expand_dims", [X], {"axis": -1}),
    ("reshape", [X], {"shape": (6, -1)}),
    ("squeeze", [anything(2, 1, 3)], {}),
    ("transpose", [X], {"axes": (2, 0, 1)}),
    ("strided_slice", [X], {"begin": (0, 2), "end": (2, -4), "stride": (1, -1)}),
    ("slice_like", [X, small(1, 2, 3)], {}),
    ("take", [X, anything(5)], {"axis": 1}),
    ("lut", [X, anything(9)], {"in_dim": 9}),
    ("where", [small(2) % 2, X, -X], {}),
    ("get_valid_counts", [BOXES], {"score_threshold": 4}),
    ("non_max_suppression", [BOXES, np.array([12, 5], np.int32)], {"iou_threshold": 20}),
]

ALL = {op for op, _, _ in CASES}
NEEDS_THE_HOST = {"non_max_suppression"}
REFUSED = {
    **dict.fromkeys(("double", "double worker", "cuda"), NEEDS_THE_HOST),
    **dict.fromkeys(("ort", "openvino"), ALL),
}
"""What each kind of device may refuse: CuPy's kernels do, where none are generated."""


def every(cases: Iterable[Case]) -> tuple[Graph, dict[str, Array]]:
    """Return a graph of nodes that have nothing to do with each other, and what they are fed."""
    b, fed = pl.GraphBuilder("exact"), dict[str, Array]()
    for number, (op, inputs, attributes) in enumerate(cases):
        here = {f"x{number}.{i}": x for i, x in enumerate(inputs)}
        names = [b.input(name, x.dtype, x.shape) for name, x in here.items()]
        count = 2 if op == "get_valid_counts" else 1
        outputs = [f"{op}{number}.{i}" for i in range(count)]
        for name in b.op(f"cvm.{op}", *names, outputs=outputs, **attributes):
            b.output(name, name)
        fed |= here
    return b.build(), fed


def taken(device: Device) -> list[Case]:
    """Return the cases that a device does not refuse."""
    graph, _ = every(CASES)
    supported = [device.supports(node, graph.call(node)).ok for node in graph.nodes]
    return [case for case, is_ok in zip(CASES, supported, strict=True) if is_ok]


@pytest.fixture(scope="module")
def cpu() -> Iterator[Device]:
    device = CpuDevice()
    device.open()
    yield device
    device.close()


def test_every_exact_operator_has_a_case() -> None:
    known = {name.removeprefix("cvm.") for name in list_operators() if name.startswith("cvm.")}
    assert known == ALL


def test_exact_operators_give_the_same_bits_everywhere(
    subject: Any, device: Device, cpu: Device
) -> None:
    """All in one graph: compiling a program takes longer than all else."""
    cases = taken(device)
    refused = ALL - {op for op, _, _ in cases}
    assert refused <= REFUSED.get(subject.kind, set())
    if not cases:
        pytest.skip(f"{subject.kind} refuses all of them")
    graph, fed = every(cases)
    with Bound(device, graph) as here, Bound(cpu, graph) as there:
        found, wanted = here.run(fed), there.run(fed)
    for name, value in wanted.items():
        assert found[name].dtype == np.int32
        np.testing.assert_array_equal(found[name], value, name)
