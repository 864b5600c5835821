from __future__ import annotations

import gc
import itertools
from functools import partial
from types import SimpleNamespace

import numpy as np
from plait.devices.kernels import packed
from plait.devices.kernels.convolution import make_geometry
from plait.devices.kernels.geometry import WeightPacking
from plait.devices.kernels.packed import pack_weights
from plait.devices.kernels.registry import ArrayModule, Step
from plait.devices.kernels.toeplitz import Toeplitz, choose_tiling
from plait.graph.core.operator import find_operator
from plait.graph.values.tensor import Array, TensorSpec


def doubled(xp: ArrayModule, w: Array, target: Array) -> list[Step]:
    return [partial(xp.multiply, w, 2, out=target)]


DOUBLING = WeightPacking(TensorSpec("float32", (3,)), doubled, "doubled")


def constant(value: float = 1) -> Array:
    w = np.full(3, value, np.float32)
    w.flags.writeable = False
    return w


def test_constant_weights_are_packed_once() -> None:
    w = constant()
    first, steps = pack_weights(np, DOUBLING, w, [])
    second, _ = pack_weights(np, DOUBLING, w, [])
    assert first is second
    assert steps == []
    assert first.tolist() == [2, 2, 2]


def test_other_weights_and_other_orders_are_packed_apart() -> None:
    w = constant()
    longer = WeightPacking(TensorSpec("float32", (2, 3)), doubled, "doubled")
    other = WeightPacking(
        DOUBLING.spec, lambda xp, w, target: [partial(xp.copyto, target, w)], "copied"
    )
    first, _ = pack_weights(np, DOUBLING, w, [])
    assert pack_weights(np, other, w, [])[0].tolist() == [1, 1, 1]
    assert pack_weights(np, DOUBLING, constant(), [])[0] is not first
    assert pack_weights(np, longer, w, [])[0].shape == (2, 3)


def test_what_nobody_uses_is_dropped() -> None:
    w = constant()
    held, _ = pack_weights(np, DOUBLING, w, [])
    key = (id(w), DOUBLING)
    assert key in packed._entries
    del held
    gc.collect()
    assert key not in packed._entries


def test_an_array_in_the_place_of_one_that_is_gone_is_another() -> None:
    w, other = constant(1), constant(5)
    held, _ = pack_weights(np, DOUBLING, w, [])
    packed._entries[id(other), DOUBLING] = packed._entries[id(w), DOUBLING]  # as if of one address
    assert pack_weights(np, DOUBLING, other, [])[0].tolist() == [10, 10, 10]
    assert held.tolist() == [2, 2, 2]


def test_weights_that_may_change_are_not_shared() -> None:
    w = np.ones(3, np.float32)
    first, _ = pack_weights(np, DOUBLING, w, [])
    w.fill(2)
    assert pack_weights(np, DOUBLING, w, [])[0].tolist() == [4, 4, 4]
    assert first.tolist() == [2, 2, 2]


def test_other_array_modules_pack_for_each_program() -> None:
    w, other = constant(), SimpleNamespace(**vars(np))
    first, _ = pack_weights(other, DOUBLING, w, [])
    assert pack_weights(other, DOUBLING, w, [])[0] is not first


def test_computed_weights_are_packed_in_each_run() -> None:
    w, buffer = np.ones(3, np.float32), np.empty(3, np.float32)
    target, steps = pack_weights(np, DOUBLING, w, [buffer])
    assert target is buffer
    for value in (1, 2):
        w.fill(value)
        for step in steps:
            step()
        assert buffer.tolist() == [2 * value] * 3


def test_methods_for_several_lengths_share_what_is_the_same() -> None:
    """Where orders are equal the weights are; and there are far fewer of them than lengths."""
    w, found = np.arange(1, 4, dtype=np.float32).reshape(1, 1, 3), dict[WeightPacking, Array]()
    tried = list(itertools.product(range(3, 60), range(3), range(3), (1, 2)))
    for length, begin, end, stride in tried:
        attributes = {"pads": (begin, end), "strides": (stride,), "group": 1}
        complete = find_operator("Conv").complete(attributes, "here")
        shape = (1, 1, (length + begin + end - 3) // stride + 1)
        conv = make_geometry((1, 1, length), w.shape, shape, complete, w.dtype)
        if choose_tiling(conv) is None:
            continue
        packing = Toeplitz(conv).packing
        made = packed._pack(np, packing, w)
        np.testing.assert_array_equal(made, found.setdefault(packing, made))
    assert 1 < len(found) < len(tried) / 2
