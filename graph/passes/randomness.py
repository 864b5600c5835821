"""Random numbers as functions of a key, so that graphs that draw them can be planned.

A node that draws is written with `Philox`, which computes numbers from a key, a sequence and the
places of elements, and from nothing else. The key is an input of the graph, `RANDOM_KEY`, that
sessions feed: their seed, and the number of the item. The sequence is the node's name. So an item
draws the same numbers on any device, for any partition, in any order, and when it runs again.

Other nodes are made of these numbers by ordinary operators. The key of an iteration of a Loop is a
number that the Loop draws, and the iteration's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from ..core.ir import Graph, Node
from ..core.nested import draws
from ..core.operator import find_operator
from ..decompositions.rules import Decomposition, DecompositionBuilder, Operand, Result, decompose
from ..operators.randomness import INTEGER, KEY_SPEC, NORMAL, PHILOX, RANDOM_KEY, UNIFORM
from ..values.errors import GraphError
from ..values.names import Names
from ..values.tensor import TensorSpec
from .rewriting import Rewriter


def with_random_key(graph: Graph) -> Graph:
    """Make the random numbers of `graph` functions of an additional input, `RANDOM_KEY`.

    A graph that draws none is returned as it is; one that has such an input keeps it. Raises
    GraphError if another tensor has that name, or a Scan draws.
    """
    if not any(map(draws, graph.nodes)):
        return graph
    known, keyed = graph.tensors.get(RANDOM_KEY), graph
    if known is None:
        tensors = {**graph.tensors, RANDOM_KEY: KEY_SPEC}
        keyed = replace(graph, inputs=(*graph.inputs, RANDOM_KEY), tensors=tensors)
    elif RANDOM_KEY not in graph.inputs or known != KEY_SPEC:
        raise GraphError(
            f"the tensor {RANDOM_KEY!r} is {known}, but the graph draws random numbers",
            at=f"graph {graph.name!r}",
            fix=f"rename it, or declare an input {RANDOM_KEY}: {KEY_SPEC}",
        )
    written = _write_numbers(keyed, RANDOM_KEY, "")
    is_read = any(RANDOM_KEY in node.inputs for node in written.nodes)
    # Without random numbers, as in a Dropout outside of training, no key is needed.
    return written if known is not None or is_read else graph


def _write_numbers(graph: Graph, key: str, path: str) -> Graph:
    rewriter = Rewriter(graph)
    for node in filter(draws, graph.nodes):
        write = _RULES.get(node.op)
        if write is not None:
            rule = partial(_write, write, key, path + node.name)
            made = decompose(rewriter, node, Decomposition(rule, wide=False))
            if made is not None:
                rewriter.replace([node], made)
    return rewriter.result()


def _write(
    write: Write, key: str, path: str, builder: DecompositionBuilder, *inputs: str
) -> Result:
    return write(_Drawing(builder, key, path), *inputs)


class _Drawing:
    """The nodes that stand in place of one that draws."""

    def __init__(self, builder: DecompositionBuilder, key: str, path: str) -> None:
        self.builder = builder
        self.path = path
        self.key = key

    def numbers(self, distribution: str, lengths: Operand, dtype: DTypeLike) -> str:
        """Write `lengths` numbers of `distribution`; a `seed` of the node replaces the key's."""
        seed = self.builder.attributes.get("seed")
        # Equal seeds draw equal numbers in all nodes; without one the path distinguishes nodes.
        name = self.path if seed is None else f"seed {seed!r}"
        return self.builder(
            PHILOX,
            self.key,
            lengths,
            distribution=distribution,
            dtype=dtype,
            sequence=_derive_sequence(name),
            seeded=seed is not None,
        )

    def result(self, values: str) -> str:
        return self.builder.cast(values, self.output.dtype)

    @property
    def output(self) -> TensorSpec:
        named = next(name for name in self.builder.node.outputs if name)
        return self.builder.spec(named)


Write: TypeAlias = Callable[..., Result]


def _derive_sequence(name: str) -> int:
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    # An attribute is a signed number of 64 bits. A digest, since Python's own hash differs from
    # process to process.
    return int.from_bytes(digest[:8], "big") >> 1


def _widen(dtype: np.dtype[Any]) -> str:
    return "float64" if dtype == np.float64 else "float32"


def _get_lengths(drawing: _Drawing, *like: str) -> Operand:
    return drawing.builder.lengths(like[0]) if like else drawing.builder.attributes["shape"]


def _write_normal(drawing: _Drawing, *like: str) -> str:
    builder, given = drawing.builder, drawing.builder.attributes
    z = drawing.numbers(NORMAL, _get_lengths(drawing, *like), _widen(drawing.output.dtype))
    return drawing.result(_scale(builder, z, given["scale"], given["mean"]))


def _write_uniform(drawing: _Drawing, *like: str) -> str:
    builder, given = drawing.builder, drawing.builder.attributes
    u = drawing.numbers(UNIFORM, _get_lengths(drawing, *like), _widen(drawing.output.dtype))
    return drawing.result(_scale(builder, u, given["high"] - given["low"], given["low"]))


def _scale(builder: DecompositionBuilder, numbers: str, scale: float, offset: float) -> str:
    scaled = numbers if scale == 1 else builder("Mul", numbers, float(scale))
    return scaled if offset == 0 else builder("Add", scaled, float(offset))


def _write_bernoulli(drawing: _Drawing, x: str) -> str:
    builder = drawing.builder
    dtype = _widen(builder.spec(x).dtype)
    u = drawing.numbers(UNIFORM, builder.lengths(x), dtype)
    return drawing.result(builder("Less", u, builder.cast(x, dtype)))


def _write_dropout(drawing: _Drawing, x: str, ratio: str, training: str) -> Result:
    """Write x / (1 - `ratio`) where u >= `ratio`, else 0, and the mask; None unless `training`."""
    builder = drawing.builder
    told = builder.value(training)
    if told is not None and not told.any():
        return None
    dtype = builder.spec(x).dtype
    wide = _widen(dtype)
    u = drawing.numbers(UNIFORM, builder.lengths(x), wide)
    # ONNX drops a half where no ratio is given.
    share = builder.cast(ratio, wide) if ratio else builder.constant(np.asarray(0.5, wide))
    dropped = builder("Reshape", builder("Where", training, share, builder.zero(u)), [])
    mask = builder("GreaterOrEqual", u, dropped)
    # In the wide dtype: 1 - ratio would be rounded twice in one of 16 bits.
    kept = builder("Sub", builder.constant(np.asarray(1, wide)), dropped)
    scaled = builder("Mul", x, builder.cast(builder("Reciprocal", kept), dtype))
    return builder("Where", mask, scaled, builder.zero(x)), mask


def _write_multinomial(drawing: _Drawing, x: str) -> str:
    """Write the number of classes k with p(0) + ... + p(k) <= u, where p = Softmax(`x`).

    In double precision: the last bits of Exp, in which devices differ, then hardly ever decide.
    Classes from where the sum is complete on are not counted, as if u could be 1 by rounding.
    """
    builder = drawing.builder
    count = builder.attributes["sample_size"]
    # Inverse transform sampling: u, times the whole sum, falls into the part that is its class'.
    wide = builder.cast(x, "float64")
    classes, last = [1], [2]
    powers = builder(
        "Exp", builder("Sub", wide, builder("ReduceMax", wide, classes, keepdims=True))
    )
    sums = builder("CumSum", powers, np.asarray(1))
    total = builder("ReduceMax", sums, classes, keepdims=True)
    shape = builder.shape(x)
    rows = builder("Shape", x, start=0, end=1) if shape is None else None
    lengths = [shape[0], count] if shape else builder("Concat", str(rows), [count], axis=0)
    thresholds = builder("Mul", drawing.numbers(UNIFORM, lengths, "float64"), total)
    counted = builder("Where", builder("Less", sums, total), sums, np.asarray(np.inf))
    passed = builder(
        "LessOrEqual",
        builder("Unsqueeze", counted, classes),
        builder("Unsqueeze", thresholds, last),
    )
    dtype = drawing.output.dtype
    return builder("ReduceSum", builder.cast(passed, dtype), last, keepdims=False)


def _write_branches(drawing: _Drawing, *inputs: str) -> tuple[str, ...]:
    node = drawing.builder.node
    given = {
        name: _capture_key(branch, drawing.path) if isinstance(branch, Graph) else branch
        for name, branch in node.attributes.items()
    }
    return _write_again(drawing, given, *inputs, drawing.key)


def _capture_key(graph: Graph, path: str) -> Graph:
    name = Names(graph.tensors).take(RANDOM_KEY)
    tensors = {**graph.tensors, name: KEY_SPEC}
    # Captured tensors are a nested graph's last inputs, and those of its node.
    handed = replace(graph, inputs=(*graph.inputs, name), tensors=tensors)
    return _write_numbers(handed, name, f"{path}/")


def _write_loop(drawing: _Drawing, *inputs: str) -> tuple[str, ...]:
    body: Graph = drawing.builder.attributes["body"]
    names = Names(body.tensors)
    seed, number, vector, key, one = map(
        names.take, ("loop_seed", "iteration", "iterations", RANDOM_KEY, "one")
    )
    # A key is two numbers. Here: one that the Loop drew, so that it differs by item and by node,
    # and that of the iteration, which is the body's first input.
    first = body.inputs[0]
    nodes = Names(node.name for node in body.nodes)
    made = (
        _make_node(nodes, "Cast", (first,), number, to="uint64"),
        _make_node(nodes, "Reshape", (number, one), vector),
        _make_node(nodes, "Concat", (seed, vector), key, axis=0),
    )
    single = TensorSpec("uint64", (1,))
    tensors = {
        number: TensorSpec("uint64", body.tensors[first].shape),
        seed: single,
        vector: single,
        key: KEY_SPEC,
        one: TensorSpec("int64", (1,)),
    }
    keyed = replace(
        body,
        inputs=(*body.inputs, seed),
        nodes=(*made, *body.nodes),
        tensors={**body.tensors, **tensors},
        constants={**body.constants, one: np.ones(1, np.int64)},
    )
    given = dict(drawing.builder.attributes)
    given["body"] = _write_numbers(keyed, key, f"{drawing.path}/")
    given["captured"] += 1
    drawn = drawing.numbers(INTEGER, [1], "uint64")
    # Captured inputs come last, so that absent inputs before them must be explicit.
    padded = (*inputs, *[""] * (2 - len(inputs)))
    return _write_again(drawing, given, *padded, drawn)


def _make_node(names: Names, op: str, inputs: tuple[str, ...], output: str, **given: Any) -> Node:
    name = names.take(output)
    return Node(name, op, inputs, (output,), find_operator(op).complete(given, name))


def _write_again(drawing: _Drawing, given: Mapping[str, Any], *inputs: str) -> tuple[str, ...]:
    builder = drawing.builder
    return tuple(builder.several(builder.n_outputs, builder.node.op, *inputs, **given))


def _refuse_scan(drawing: _Drawing, *inputs: str) -> Result:
    raise GraphError(
        "the body of a Scan draws random numbers, which would be the same in every step",
        at=str(drawing.builder.node),
        fix="draw them outside and scan over them, or use a Loop",
    )


_RULES: Mapping[str, Write] = {
    "Bernoulli": _write_bernoulli,
    "Dropout": _write_dropout,
    "If": _write_branches,
    "Loop": _write_loop,
    "Multinomial": _write_multinomial,
    "RandomNormal": _write_normal,
    "RandomNormalLike": _write_normal,
    "RandomUniform": _write_uniform,
    "RandomUniformLike": _write_uniform,
    "Scan": _refuse_scan,
}
