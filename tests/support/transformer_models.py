"""Encoders of text with padding masks, float32, node by node as exporters write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_models
from plait.graph.values.tensor import Array

WORDS, LONGEST, WIDTH, HEADS, INNER, LAYERS = 60, 16, 24, 3, 48, 2
LOWEST = float(np.finfo(np.float32).min)


class Exporter:
    """Collects nodes and weights."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[Any] = []
        self.weights: dict[str, Array] = {}
        self._random = np.random.default_rng(seed)

    def op(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return its output."""
        name = f"/{op}_{len(self.nodes)}"
        node = onnx_models.node(op, " ".join(inputs), f"{name}_output_0", **attributes)
        node.name = name
        self.nodes.append(node)
        return f"{name}_output_0"

    def value(self, value: Any, dtype: str = "float32") -> str:
        """Add a constant and return its name."""
        name = f"onnx::{len(self.weights)}"
        self.weights[name] = np.array(value, dtype)
        return name

    def weight(self, *shape: int) -> str:
        """Add random weights that keep what they multiply about as large, and return their name."""
        return self.value(self._random.standard_normal(shape) / np.sqrt(shape[0]))

    def linear(self, x: str, n: int, m: int) -> str:
        """x · W + b."""
        return self.op("Add", self.op("MatMul", x, self.weight(n, m)), self.weight(m))

    def layer_norm(self, x: str) -> str:
        """Mean and variance over the last axis, written out as for opsets below 17."""
        centred = self.op("Sub", x, self.op("ReduceMean", x, axes=[-1]))
        squares = self.op("Pow", centred, self.value(2.0))
        variance = self.op("ReduceMean", squares, axes=[-1])
        root = self.op("Sqrt", self.op("Add", variance, self.value(1e-12)))
        scaled = self.op("Mul", self.op("Div", centred, root), self.weight(WIDTH))
        return self.op("Add", scaled, self.weight(WIDTH))

    def gelu(self, x: str) -> str:
        """x · (1 + erf(x / √2)) / 2."""
        erf = self.op("Erf", self.op("Div", x, self.value(np.sqrt(2))))
        whole = self.op("Mul", x, self.op("Add", erf, self.value(1.0)))
        return self.op("Mul", whole, self.value(0.5))

    def heads(self, x: str, perm: list[int]) -> str:
        """Cut features into heads and move those ahead."""
        shape = self.value([0, 0, HEADS, WIDTH // HEADS], "int64")
        return self.op("Transpose", self.op("Reshape", x, shape), perm=perm)

    def joined(self, x: str) -> str:
        """Put heads beside one another again."""
        back = self.op("Transpose", x, perm=[0, 2, 1, 3])
        return self.op("Reshape", back, self.value([0, 0, WIDTH], "int64"))

    def embedded(self, *tables: tuple[str, int]) -> str:
        """Sum what tables hold for some indices, normalized."""
        found = [self.op("Gather", self.weight(rows, WIDTH), at) for at, rows in tables]
        total = found[0]
        for each in found[1:]:
            total = self.op("Add", total, each)
        return self.layer_norm(total)

    def encoder(self, x: str, scores: Callable[[str, str], str]) -> str:
        """Add layers; `scores` gives the masked scores of queries and transposed keys."""
        for _ in range(LAYERS):
            query = self.heads(self.linear(x, WIDTH, WIDTH), [0, 2, 1, 3])
            key = self.heads(self.linear(x, WIDTH, WIDTH), [0, 2, 3, 1])
            value = self.heads(self.linear(x, WIDTH, WIDTH), [0, 2, 1, 3])
            seen = self.op("MatMul", self.op("Softmax", scores(query, key), axis=-1), value)
            x = self.layer_norm(self.op("Add", self.linear(self.joined(seen), WIDTH, WIDTH), x))
            inner = self.gelu(self.linear(x, WIDTH, INNER))
            x = self.layer_norm(self.op("Add", self.linear(inner, INNER, WIDTH), x))
        return x

    def mask(self) -> str:
        """0 for each token and the least number for padding, of shape (batch, 1, 1, length)."""
        rows = self.op("Unsqueeze", "attention_mask", self.value([1, 2], "int64"))
        numbers = self.op("Cast", rows, to=1)
        return self.op("Mul", self.op("Sub", self.value(1.0), numbers), self.value(LOWEST))


def bert() -> Any:
    """Scores divided behind the product, the mask added; the first token's features, pooled."""
    e = Exporter(1)
    places = e.value(np.arange(LONGEST)[None], "int64")
    length = e.op("Gather", e.op("Shape", "input_ids"), e.value(1, "int64"), axis=0)
    ends = e.op("Unsqueeze", length, e.value([0], "int64"))
    zero, one = e.value([0], "int64"), e.value([1], "int64")
    at = e.op("Slice", places, zero, ends, one)
    x = e.embedded(("input_ids", WORDS), ("token_type_ids", 2), (at, LONGEST))
    mask, root = e.mask(), e.value(np.sqrt(WIDTH / HEADS))

    def scores(query: str, key: str) -> str:
        return e.op("Add", e.op("Div", e.op("MatMul", query, key), root), mask)

    hidden = e.encoder(x, scores)
    first = e.op("Gather", hidden, e.value(0, "int64"), axis=1)
    return _written(e, hidden, e.op("Tanh", e.linear(first, WIDTH, WIDTH)))


def mini_lm() -> Any:
    """Queries and keys scaled ahead of the product, the mask chosen; the mean over all tokens."""
    e = Exporter(2)
    x = e.embedded(("input_ids", WORDS), ("token_type_ids", 2))
    rows = e.op("Unsqueeze", "attention_mask", e.value([1, 2], "int64"))
    padded = e.op("Equal", rows, e.value(0, "int64"))
    root, lowest = e.value((HEADS / WIDTH) ** 0.25), e.value(LOWEST)

    def scores(query: str, key: str) -> str:
        product = e.op("MatMul", e.op("Mul", query, root), e.op("Mul", key, root))
        return e.op("Where", padded, lowest, product)

    hidden = e.encoder(x, scores)
    tokens = e.op("Cast", e.op("Unsqueeze", "attention_mask", e.value([2], "int64")), to=1)
    axis = e.value([1], "int64")
    total = e.op("ReduceSum", e.op("Mul", hidden, tokens), axis, keepdims=0)
    count = e.op("Clip", e.op("ReduceSum", tokens, axis, keepdims=0), e.value(1e-9))
    mean = e.op("Div", total, count)
    length = e.op("Clip", e.op("ReduceL2", mean, axes=[1], keepdims=1), e.value(1e-12))
    return _written(e, hidden, e.op("Div", mean, length))


MODELS: Mapping[str, Callable[[], Any]] = {"bert": bert, "mini_lm": mini_lm}


def tokens(lengths: list[int]) -> dict[str, Array]:
    """Return texts of some lengths, padded to the longest."""
    random, longest = np.random.default_rng(0), max(lengths)
    seen = np.arange(longest) < np.array(lengths)[:, None]
    return {
        "input_ids": random.integers(1, WORDS, seen.shape) * seen,
        "attention_mask": seen.astype(np.int64),
        "token_type_ids": random.integers(0, 2, seen.shape),
    }


def _written(e: Exporter, hidden: str, pooled: str) -> Any:
    for name, tensor in (("last_hidden_state", hidden), ("pooled", pooled)):
        e.nodes.append(onnx_models.node("Identity", tensor, name))
    inputs = dict.fromkeys(tokens([1]), ("int64", ("batch", "length")))
    return onnx_models.model(e.nodes, inputs, ("last_hidden_state", "pooled"), e.weights, opset=16)
