"""A small network of 8-bit integers, from end to end."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.dialects.cvm.gas import count_operations
from plait.dialects.cvm.precision import check_parameters, infer_precision
from plait.graph.core.ir import Graph

Int32s = np.ndarray[Any, np.dtype[np.int32]]

RNG = np.random.default_rng(8)


def weights(*shape: int, bits: int = 8) -> Int32s:
    most = 2 ** (bits - 1) - 1
    return RNG.integers(-most, most, shape, np.int32, endpoint=True)


FIRST, FIRST_BIAS = weights(8, 3, 3, 3), weights(8, bits=16)
DEPTHWISE = weights(8, 1, 3, 3)
POINTWISE, POINTWISE_BIAS = weights(16, 8, 1, 1), weights(16, bits=12)
LAST, LAST_BIAS = weights(10, 16, bits=7), weights(10, bits=18)


def network() -> Graph:
    b = pl.GraphBuilder("int8")
    x: str = b.input("data", "int32", (2, 3, 16, 16), precision=8)

    def layer(x: str, w: Int32s, bias: Int32s | None, shift: int, **attributes: Any) -> str:
        given = [b.constant(w, precision=8)]
        if bias is not None:
            given.append(b.constant(bias, precision=16))
        attributes |= {"channels": len(w), "kernel_size": w.shape[2:], "use_bias": bias is not None}
        y = b.op("cvm.relu", b.op("cvm.conv2d", x, *given, **attributes))
        narrow: str = b.op("cvm.right_shift", y, precision=8, shift_bit=shift)
        return narrow

    x = layer(x, FIRST, FIRST_BIAS, 9, padding=(1, 1))
    x = b.op("cvm.max_pool2d", x, pool_size=(2, 2), strides=(2, 2))
    x = layer(x, DEPTHWISE, None, 8, groups=8, strides=(2, 2), padding=(1, 1))
    x = layer(x, POINTWISE, POINTWISE_BIAS, 8)
    x = b.op("cvm.right_shift", b.op("cvm.sum", x, axis=(2, 3)), precision=8, shift_bit=4)
    last = b.constant(LAST, precision=7), b.constant(LAST_BIAS, precision=18)
    b.output("scores", b.op("cvm.dense", b.op("cvm.flatten", x), *last, units=10))
    return b.build()


def shifted(x: Any, bits: int) -> Any:
    return np.clip((x + 2 ** (bits - 1)) >> bits, -127, 127)


def summed(x: Any, w: Any, stride: int, pad: int, groups: int = 1) -> Any:
    """Return a convolution: each tap's weights times the cells it meets."""
    x, w = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad))), w.astype(np.int64)
    size = (x.shape[2] - w.shape[2]) // stride + 1
    y = np.zeros((len(x), len(w), size, size), np.int64)
    for i, j in np.ndindex(*w.shape[2:]):
        cells = x[:, :, i : i + size * stride : stride, j : j + size * stride : stride]
        cells = cells[:, :, :size, :size]
        if groups == 1:
            y += np.einsum("nchw,oc->nohw", cells, w[:, :, i, j])
        else:
            y += cells * w[:, 0, i, j, None, None]
    return y


def expected(x: Int32s) -> Int32s:
    """Return the same scores in int64, without any operator of plait."""
    y = summed(x.astype(np.int64), FIRST, 1, 1) + FIRST_BIAS[:, None, None]
    y = shifted(np.maximum(y, 0), 9)
    y = y.reshape(2, 8, 8, 2, 8, 2).max((3, 5))
    y = shifted(np.maximum(summed(y, DEPTHWISE, 2, 1, 8), 0), 8)
    y = summed(y, POINTWISE, 1, 0) + POINTWISE_BIAS[:, None, None]
    y = shifted(np.maximum(y, 0), 8).sum((2, 3))
    return np.asarray(shifted(y, 4) @ LAST.T.astype(np.int64) + LAST_BIAS, np.int32)


@pytest.mark.parametrize("devices", [("cpu",), ("worker:0", "cpu")], ids=["cpu", "worker"])
def test_a_network_of_integers_gives_the_same_bits_on_each_device(devices: tuple[str, ...]) -> None:
    x = weights(2, 3, 16, 16)
    found = pl.run(network(), {"data": x}, devices=devices)["scores"]
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, expected(x))
    assert len(np.unique(found)) > 10  # something is computed


def test_the_numbers_of_a_network_stay_within_the_bits_inferred() -> None:
    graph = network()
    check_parameters(graph)
    bits = infer_precision(graph)
    assert max(bits.values()) <= 32
    scores = pl.run(graph, {"data": weights(2, 3, 16, 16)})["scores"]
    assert abs(scores).max() < 2 ** (bits["scores"] - 1)


def test_a_network_has_a_cost() -> None:
    graph = network()
    sizes = sum(spec.size for spec in graph.tensors.values())
    assert count_operations(graph) > 5 * sizes + 2 * 8 * 256 * 27 * 3
