"""Networks that `check_gradients_torch` compares: a loss each, once of plait and once of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import plait as pl
import torch
from numpy.typing import NDArray
from plait import learning
from torch.nn import functional

Arrays = dict[str, NDArray[Any]]
Names = Mapping[str, str]
Tensors = Mapping[str, torch.Tensor]

CLASSES = 10
EPSILON = 1e-5


class Network(NamedTuple):
    """A loss, once for each side, as a function of weights and feeds."""

    weights: Mapping[str, tuple[int, ...]]
    feeds: Callable[[np.random.Generator], Arrays]
    plait: Callable[[pl.GraphBuilder, Names], str]
    torch: Callable[[Tensors], torch.Tensor]


def labelled(rng: np.random.Generator, *shape: int) -> Arrays:
    labels = rng.integers(0, CLASSES, shape[0])
    return {"x": rng.standard_normal(shape), "labels": labels}


def entropy(b: pl.GraphBuilder, scores: str, n: Names) -> str:
    return learning.sparse_softmax_cross_entropy(b, scores, n["labels"])


STAGES = (16, 32, 64)


def resnet_weights() -> dict[str, tuple[int, ...]]:
    made: dict[str, tuple[int, ...]] = {"stem": (16, 3, 3, 3), "last": (CLASSES, STAGES[-1])}
    depth = 16
    for index, width in enumerate(STAGES):
        made[f"{index}.short"] = (width, depth, 1, 1)
        for part, channels in (("a", depth), ("b", width)):
            made[f"{index}.{part}"] = (width, channels, 3, 3)
            made[f"{index}.{part}.scale"] = made[f"{index}.{part}.bias"] = (width,)
        depth = width
    return made


def resnet_plait(b: pl.GraphBuilder, n: Names) -> str:
    def conv(x: str, name: str, stride: int = 1) -> str:
        pad = [1] * 4 if not name.endswith("short") else [0] * 4
        return str(b.op("Conv", x, n[name], pads=pad, strides=[stride] * 2))

    def normal(x: str, name: str) -> str:
        width = b.spec(x).static_shape[1]
        still = [np.zeros(width, b.spec(x).dtype), np.ones(width, b.spec(x).dtype)]
        given = (x, n[f"{name}.scale"], n[f"{name}.bias"], *still)
        y, *_ = b.op("BatchNormalization", *given, outputs=3, training_mode=True, epsilon=EPSILON)
        return str(y)

    h = b.op("MaxPool", conv(n["x"], "stem"), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for index in range(len(STAGES)):
        stride = 1 + bool(index)
        inner = b.op("Relu", normal(conv(h, f"{index}.a", stride), f"{index}.a"))
        inner = normal(conv(inner, f"{index}.b"), f"{index}.b")
        h = b.op("Relu", b.op("Add", inner, conv(h, f"{index}.short", stride)))
    pooled = b.op("Flatten", b.op("GlobalAveragePool", h))
    return entropy(b, b.op("Gemm", pooled, n["last"], transB=True), n)


def resnet_torch(t: Tensors) -> torch.Tensor:
    def normal(x: torch.Tensor, name: str) -> torch.Tensor:
        scale, bias = t[f"{name}.scale"], t[f"{name}.bias"]
        return functional.batch_norm(x, None, None, scale, bias, training=True, eps=EPSILON)

    h = functional.max_pool2d(functional.conv2d(t["x"], t["stem"], padding=1), 3, 2, 1)
    for index in range(len(STAGES)):
        stride, name = 1 + bool(index), str(index)
        inner = functional.conv2d(h, t[f"{name}.a"], stride=stride, padding=1)
        inner = functional.conv2d(normal(inner, f"{name}.a").relu(), t[f"{name}.b"], padding=1)
        short = functional.conv2d(h, t[f"{name}.short"], stride=stride)
        h = (normal(inner, f"{name}.b") + short).relu()
    scores = functional.linear(h.mean((2, 3)), t["last"])
    return functional.cross_entropy(scores, t["labels"])


WORDS, LENGTH, WIDTH, HEADS = 200, 48, 64, 4


def words(rng: np.random.Generator) -> Arrays:
    return {name: rng.integers(0, WORDS, (4, LENGTH)) for name in ("x", "labels")}


def transformer_plait(b: pl.GraphBuilder, n: Names) -> str:
    def normal(x: str, name: str) -> str:
        return str(
            b.op("LayerNormalization", x, n[f"{name}.scale"], n[f"{name}.bias"], epsilon=EPSILON)
        )

    h = b.op("Gather", n["words"], n["x"])
    parts = [b.op("MatMul", normal(h, "one"), n[name]) for name in ("q", "k", "v")]
    seen = b.op("Attention", *parts, is_causal=True, q_num_heads=HEADS, kv_num_heads=HEADS)
    h = b.op("Add", h, b.op("MatMul", seen, n["o"]))
    wide = b.op("Gelu", b.op("Add", b.op("MatMul", normal(h, "two"), n["wide"]), n["wide.bias"]))
    h = b.op("Add", h, b.op("MatMul", wide, n["narrow"]))
    scores = b.op("MatMul", h, b.op("Transpose", n["words"]))
    rows = b.op("Reshape", scores, np.array([-1, WORDS]))
    labels = b.op("Reshape", n["labels"], np.array([-1]))
    return learning.sparse_softmax_cross_entropy(b, rows, labels)


def transformer_torch(t: Tensors) -> torch.Tensor:
    def normal(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.layer_norm(x, (WIDTH,), t[f"{name}.scale"], t[f"{name}.bias"], EPSILON)

    h = functional.embedding(t["x"], t["words"])
    batch = len(h)
    q, k, v = (
        (normal(h, "one") @ t[name]).view(batch, LENGTH, HEADS, -1).transpose(1, 2)
        for name in ("q", "k", "v")
    )
    seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    h = h + seen.transpose(1, 2).reshape(batch, LENGTH, WIDTH) @ t["o"]
    h = h + functional.gelu(normal(h, "two") @ t["wide"] + t["wide.bias"]) @ t["narrow"]
    scores = h @ t["words"].T
    return functional.cross_entropy(scores.view(-1, WORDS), t["labels"].view(-1))


def windows_plait(b: pl.GraphBuilder, n: Names) -> str:
    h = b.op("Conv", n["x"], n["grouped"], group=2, dilations=[2, 1], pads=[2, 1, 2, 1])
    h = b.op("AveragePool", h, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0] * 2)
    window: dict[str, Any] = {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 0]}
    h = b.op("Tanh", b.op("ConvTranspose", h, n["back"], n["back.bias"], **window))
    h = b.op("MaxPool", h, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=True)
    h = b.op("Conv", h, n["each"], group=CLASSES, strides=[2, 2], pads=[1] * 4)
    h = b.op("LpPool", h, kernel_shape=[2, 2], p=2)
    return entropy(b, b.op("ReduceMean", h, np.array([2, 3]), keepdims=False), n)


def windows_torch(t: Tensors) -> torch.Tensor:
    h = functional.conv2d(t["x"], t["grouped"], groups=2, dilation=(2, 1), padding=(2, 1))
    h = functional.avg_pool2d(h, (3, 2), (2, 1), (1, 0), count_include_pad=False)
    h = functional.conv_transpose2d(
        h, t["back"], t["back.bias"], stride=2, padding=1, output_padding=(1, 0)
    )
    h = functional.max_pool2d(h.tanh(), 2, 2, ceil_mode=True)
    h = functional.conv2d(h, t["each"], groups=CLASSES, stride=2, padding=1)
    h = functional.avg_pool2d(h * h, 2, 1, divisor_override=1).sqrt()
    return functional.cross_entropy(h.mean((2, 3)), t["labels"])


SPREAD = 100.0
"""Times the weights that are places in an image, so that these are all over it."""


def places_plait(b: pl.GraphBuilder, n: Names) -> str:
    grid = b.op("Tanh", b.op("Mul", n["grid"], SPREAD))
    read = b.op("GridSample", n["image"], grid)
    means = b.op("ReduceMean", b.op("Mul", read, read), np.array([2, 3]), keepdims=False)
    return entropy(b, means, n)


def places_torch(t: Tensors) -> torch.Tensor:
    grid = (t["grid"] * SPREAD).tanh()
    read = functional.grid_sample(t["image"], grid, align_corners=False)
    return functional.cross_entropy((read * read).mean((2, 3)), t["labels"])


FEATURES, HIDDEN = 16, 32
GATES = 4 * HIDDEN


def recurrent_plait(b: pl.GraphBuilder, n: Names) -> str:
    given = (n["x"], n["w"], n["r"], n["b"])
    y, h, c = b.op("LSTM", *given, outputs=3, hidden_size=HIDDEN, direction="bidirectional")
    turned = (b.op("Transpose", state, perm=[1, 0, 2]) for state in (h, c))
    rows = [b.op("Reshape", state, np.array([-1, 2 * HIDDEN])) for state in turned]
    scores = b.op("MatMul", b.op("Concat", *rows, axis=1), n["last"])
    shown = b.op("ReduceMean", b.op("Mul", y, y), keepdims=False)
    return str(b.op("Add", entropy(b, scores, n), shown))


def recurrent_torch(t: Tensors) -> torch.Tensor:
    def ordered(x: torch.Tensor) -> torch.Tensor:  # ONNX has i, o, f, c
        i, o, f, c = x.chunk(4)
        return torch.cat([i, f, c, o])

    weights: list[torch.Tensor] = []
    for way in range(2):
        biases = t["b"][way].chunk(2)
        weights += [ordered(x) for x in (t["w"][way], t["r"][way], *biases)]
    begin = torch.zeros(2, t["x"].shape[1], HIDDEN, dtype=t["x"].dtype)
    y, h, c = torch.lstm(
        t["x"],
        (begin, begin),
        weights,
        has_biases=True,
        num_layers=1,
        dropout=0.0,
        train=True,
        bidirectional=True,
        batch_first=False,
    )
    last = torch.cat([s.transpose(0, 1).reshape(-1, 2 * HIDDEN) for s in (h, c)], 1)
    return functional.cross_entropy(last @ t["last"], t["labels"]) + (y * y).mean()


def recurrent(steps: int) -> Network:
    """Return an LSTM over sequences of so many steps."""

    def sequences(rng: np.random.Generator) -> Arrays:
        labels = rng.integers(0, CLASSES, 8)
        return {"x": rng.standard_normal((steps, 8, FEATURES)), "labels": labels}

    shapes = {"w": (2, GATES, FEATURES), "r": (2, GATES, HIDDEN), "b": (2, 2 * GATES)}
    weights = {**shapes, "last": (4 * HIDDEN, CLASSES)}
    return Network(weights, sequences, recurrent_plait, recurrent_torch)


_NORMAL = {f"{name}.{part}": (WIDTH,) for name in ("one", "two") for part in ("scale", "bias")}

NETWORKS = {
    "resnet": Network(
        resnet_weights(), lambda rng: labelled(rng, 8, 3, 32, 32), resnet_plait, resnet_torch
    ),
    "transformer": Network(
        {
            "words": (WORDS, WIDTH),
            **_NORMAL,
            **dict.fromkeys(("q", "k", "v", "o"), (WIDTH, WIDTH)),
            "wide": (WIDTH, 4 * WIDTH),
            "wide.bias": (4 * WIDTH,),
            "narrow": (4 * WIDTH, WIDTH),
        },
        words,
        transformer_plait,
        transformer_torch,
    ),
    "windows": Network(
        {
            "grouped": (8, 2, 3, 3),
            "back": (8, CLASSES, 3, 3),
            "back.bias": (CLASSES,),
            "each": (CLASSES, 1, 3, 3),
        },
        lambda rng: labelled(rng, 8, 4, 33, 32),
        windows_plait,
        windows_torch,
    ),
    "places": Network(
        {"image": (4, 16, 64, 64), "grid": (4, 64, 64, 2)},
        lambda rng: {"labels": rng.integers(0, CLASSES, 4)},
        places_plait,
        places_torch,
    ),
    "recurrent, written out": recurrent(24),
    "recurrent, scanned": recurrent(48),
}
