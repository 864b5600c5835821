"""Models of several nodes around ONNX Runtime's own operators, split between devices and streamed.

As its tools write them: a decoder's layer with keys and values of the past, and a quantized block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnxruntime
import plait as pl
import pytest
from exact_runtime import start_exact_runtime
from plait.graph.formats.onnx.writer import to_onnx
from plait.graph.values.tensor import Array

HEADS, SHARED, SIZE = 4, 2, 16
WIDTH = HEADS * SIZE
LONGEST = 16
VOCABULARY = 11

SPLITS = (("cpu", "ort"), ("worker:0", "ort"), ("cpu", "worker:0", "ort"))
each_split = pytest.mark.parametrize("devices", SPLITS, ids=",".join)


def weights(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32) / 4


def decoder() -> pl.Graph:
    """Return a layer of a decoder: keys and values of the past come in, and go out longer."""
    b = pl.GraphBuilder("decoder")
    tokens = b.input("tokens", "int64", ("n", "new"))
    mask = b.input("mask", "int64", ("n", "total"))
    past = [
        b.input(f"past_{name}", "float32", ("n", SHARED, "past", SIZE))
        for name in ("keys", "values")
    ]
    x = b.op("Gather", weights(VOCABULARY, WIDTH), tokens, name="embed/rows")
    last = b.op("Sub", b.op("ReduceSum", mask, (1,), keepdims=False), 1, name="lengths/last")
    total = b.op("Gather", b.op("Shape", mask), 1, name="lengths/total")
    lengths = [b.op("Cast", one, to="int32") for one in (last, total)]
    angles = np.outer(np.arange(LONGEST), 0.5 ** np.arange(SIZE // 2)).astype(np.float32)
    projected = [
        b.op("MatMul", x, weights(WIDTH, count * SIZE), name=f"attention/{name}")
        for name, count in (("query", HEADS), ("key", SHARED), ("value", SHARED))
    ]
    attended, keys, values = b.op(
        "com.microsoft.GroupQueryAttention", *projected, *past, *lengths,
        np.cos(angles), np.sin(angles), outputs=3, name="attention/own",
        num_heads=HEADS, kv_num_heads=SHARED, do_rotary=1,
    )  # fmt: skip
    mixed = b.op("Add", x, b.op("MatMul", attended, weights(WIDTH, WIDTH)), name="mix/add")
    b.output("scores", b.op("Softmax", b.op("MatMul", mixed, weights(WIDTH, VOCABULARY))))
    b.output("keys", keys)
    b.output("values", values)
    return b.build()


def block() -> pl.Graph:
    """Return a block of the other operators, one behind the other."""
    b = pl.GraphBuilder("block")
    x = b.input("x", "float32", ("n", "length", WIDTH))
    mixed = b.op("com.microsoft.FusedMatMul", x, weights(WIDTH, WIDTH), transB=1, alpha=0.5)
    active = b.op("com.microsoft.BiasGelu", b.op("Tanh", mixed, name="tanh"), weights(WIDTH))
    normal = b.op(
        "com.microsoft.SkipLayerNormalization",
        active, b.op("Neg", x, name="neg"), weights(WIDTH) + np.float32(1), weights(WIDTH),
    )  # fmt: skip
    packed = np.random.default_rng(0).integers(0, 256, (WIDTH, WIDTH // 16, 8), np.uint8)
    product = b.op(
        "com.microsoft.MatMulNBits", normal, packed, weights(WIDTH * WIDTH // 16) / np.float32(8),
        K=WIDTH, N=WIDTH, bits=4, block_size=16,
    )  # fmt: skip
    scale, zero = np.float32(0.05), np.uint8(128)
    steps = [b.op("QuantizeLinear", one, scale, zero) for one in (product, normal)]
    total = b.op(
        "com.microsoft.QLinearAdd",
        steps[0], scale, zero, steps[1], scale, zero, 2 * scale, zero, outputs=1,
    )  # fmt: skip
    b.output("y", b.op("DequantizeLinear", total, 2 * scale, zero))
    return b.build()


def alone(graph: pl.Graph) -> onnxruntime.InferenceSession:
    return start_exact_runtime(to_onnx(graph).SerializeToString())


def fed(n: int, past: int, new: int, seed: int = 0) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {
        "tokens": random.integers(0, VOCABULARY, (n, new)),
        "mask": np.ones((n, past + new), np.int64),
        **{
            f"past_{name}": random.standard_normal((n, SHARED, past, SIZE), np.float32)
            for name in ("keys", "values")
        },
    }


ITEMS = [fed(1, 0, 5), fed(1, 5, 1), fed(3, 5, 1, 1), fed(2, 0, 4), fed(3, 6, 1, 2), fed(1, 5, 1)]


def pinned(graph: pl.Graph, devices: Sequence[str]) -> dict[str, str]:
    """Pin what is not ONNX Runtime's own to the other devices, which take turns."""
    *others, runtime = devices
    return {
        node.name: runtime if "com.microsoft" in node.op else others[index % len(others)]
        for index, node in enumerate(graph.nodes)
    }


def check(found: Mapping[str, Array], wanted: Mapping[str, Array]) -> None:
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


def by_onnxruntime(
    graph: pl.Graph, items: Sequence[Mapping[str, Array]]
) -> Iterator[dict[str, Array]]:
    session = alone(graph)
    for item in items:
        found = map(np.asarray, session.run(list(graph.outputs), dict(item)))
        yield dict(zip(graph.outputs, found, strict=True))


@pytest.mark.slow
@each_split
@pytest.mark.parametrize("bounds", [None, {"n": 3, "new": 5, "total": 8, "past": (0, 7)}])
def test_attention_over_groups_streams_with_its_past(
    devices: tuple[str, ...], bounds: dict[str, int] | None
) -> None:
    graph = decoder()
    plan = pl.plan(graph, devices, pin=pinned(graph, devices), max_in_flight=2, bounds=bounds)
    with pl.BlockingSession(plan) as session:
        results = session.stream(ITEMS)
        for found, wanted in zip(results, by_onnxruntime(graph, ITEMS), strict=True):
            check({name: found[name] for name in wanted}, wanted)


def test_a_text_is_written_token_by_token() -> None:
    graph, count = decoder(), 6
    plan = pl.plan(graph, ["cpu", "ort"])
    item = reference = fed(2, 0, 3)
    session = alone(graph)
    with pl.BlockingSession(plan) as ours:
        for _ in range(count):
            found = ours.run(item)
            wanted = dict(zip(graph.outputs, session.run(None, reference), strict=True))
            check(found, wanted)
            item, reference = following(item, found), following(reference, wanted)
            assert item["tokens"].tolist() == reference["tokens"].tolist()


def following(item: Mapping[str, Array], found: Mapping[str, Array]) -> dict[str, Array]:
    """Return what is fed for the likeliest token."""
    n, total = item["mask"].shape
    return {
        "tokens": found["scores"][:, -1].argmax(axis=-1)[:, None],
        "mask": np.ones((n, total + 1), np.int64),
        "past_keys": found["keys"],
        "past_values": found["values"],
    }


@pytest.mark.slow
@each_split
@pytest.mark.parametrize("bounds", [None, {"n": 4, "length": 6}])
def test_the_others_stream_one_behind_the_other(
    devices: tuple[str, ...], bounds: dict[str, int] | None
) -> None:
    graph = block()
    assert len({node.op for node in graph.nodes if "com.microsoft" in node.op}) == 5
    random = np.random.default_rng(1)
    items = [
        {"x": random.standard_normal((n, length, WIDTH), np.float32)}
        for n, length in ((2, 3), (1, 6), (4, 1), (2, 3))
    ]
    plan = pl.plan(graph, devices, pin=pinned(graph, devices), max_in_flight=3, bounds=bounds)
    with pl.BlockingSession(plan) as session:
        results = session.stream(items)
        for found, wanted in zip(results, by_onnxruntime(graph, items), strict=True):
            check({"y": found["y"]}, wanted)
