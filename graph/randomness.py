"""Random numbers as functions of a key: what makes graphs that draw them plannable.

A node that draws is written with `Philox`, which computes numbers from a key, a sequence and the
places of elements, and from nothing else. The key is an input of the graph, `RANDOM_KEY`, that
sessions feed: their seed, and the number of the item. The sequence is the node's name. So an item
draws the same numbers on any device, for any partition, in whatever order, and when it runs again.

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

from .errors import GraphError
from .expansions.rules import Draft, Expansion, Operand, Result, drafted
from .ir import Graph, Node
from .names import Names
from .nested import draws
from .operator import find_operator
from .operators.randomness import INTEGER, KEY_SPEC, NORMAL, PHILOX, RANDOM_KEY, UNIFORM
from .passes.rewriting import Rewriter
from .tensor import TensorSpec


def with_random_key(graph: Graph) -> Graph:
    """Return the graph whose random numbers are functions of one more input, `RANDOM_KEY`.

    A graph that draws none is returned as it is; one that has such an input keeps it.

    Raises
    ------
    GraphError
        If another tensor has that name, or a Scan draws.
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
    written = _written(keyed, RANDOM_KEY, "")
    is_read = any(RANDOM_KEY in node.inputs for node in written.nodes)
    return written if known is not None or is_read else graph


def _written(graph: Graph, key: str, path: str) -> Graph:
    """Return the graph with all that draws written with Philox."""
    rewriter = Rewriter(graph)
    for node in filter(draws, graph.nodes):
        write = _RULES.get(node.op)
        if write is not None:
            rule = partial(_write, write, key, path + node.name)
            made = drafted(rewriter, node, Expansion(rule, wide=False))
            if made is not None:
                rewriter.replace([node], made)
    return rewriter.result()


def _write(write: Write, key: str, path: str, draft: Draft, *inputs: str) -> Result:
    return write(_Drawing(draft, key, path), *inputs)


class _Drawing:
    """The nodes that stand in place of one that draws."""

    def __init__(self, draft: Draft, key: str, path: str) -> None:
        self.draft = draft
        self.path = path
        self.key = key

    def numbers(self, distribution: str, lengths: Operand, dtype: DTypeLike) -> str:
        """Write numbers of a distribution; a `seed` that the node has is all they follow from."""
        seed = self.draft.attributes.get("seed")
        name = self.path if seed is None else f"seed {seed!r}"
        return self.draft(
            PHILOX,
            self.key,
            lengths,
            distribution=distribution,
            dtype=dtype,
            sequence=_sequence(name),
            seeded=seed is not None,
        )

    def result(self, values: str) -> str:
        """Return values in the dtype of the node's output."""
        return self.draft.cast(values, self.output.dtype)

    @property
    def output(self) -> TensorSpec:
        """The spec of the node's first output."""
        named = next(name for name in self.draft.node.outputs if name)
        return self.draft.spec(named)


Write: TypeAlias = Callable[..., Result]


def _sequence(name: str) -> int:
    """Return the sequence of a name, below 2⁶³."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _wide(dtype: np.dtype[Any]) -> str:
    """Return the dtype to compute in: there are no numbers of 16 bits."""
    return "float64" if dtype == np.float64 else "float32"


def _lengths(drawing: _Drawing, *like: str) -> Operand:
    return drawing.draft.lengths(like[0]) if like else drawing.draft.attributes["shape"]


def _normal(drawing: _Drawing, *like: str) -> str:
    """Mean + scale · z."""
    draft, given = drawing.draft, drawing.draft.attributes
    z = drawing.numbers(NORMAL, _lengths(drawing, *like), _wide(drawing.output.dtype))
    return drawing.result(_scaled(draft, z, given["scale"], given["mean"]))


def _uniform(drawing: _Drawing, *like: str) -> str:
    """Low + (high - low) · u."""
    draft, given = drawing.draft, drawing.draft.attributes
    u = drawing.numbers(UNIFORM, _lengths(drawing, *like), _wide(drawing.output.dtype))
    return drawing.result(_scaled(draft, u, given["high"] - given["low"], given["low"]))


def _scaled(draft: Draft, numbers: str, scale: float, offset: float) -> str:
    scaled = numbers if scale == 1 else draft("Mul", numbers, float(scale))
    return scaled if offset == 0 else draft("Add", scaled, float(offset))


def _bernoulli(drawing: _Drawing, x: str) -> str:
    """1 where u < x."""
    draft = drawing.draft
    dtype = _wide(draft.spec(x).dtype)
    u = drawing.numbers(UNIFORM, draft.lengths(x), dtype)
    return drawing.result(draft("Less", u, draft.cast(x, dtype)))


def _dropout(drawing: _Drawing, x: str, ratio: str, training: str) -> Result:
    """Write x / (1 - ratio) where u >= ratio, else 0; outside of training the ratio is 0."""
    draft = drawing.draft
    told = draft.value(training)
    if told is not None and not told.any():
        return None
    dtype = draft.spec(x).dtype
    wide = _wide(dtype)
    u = drawing.numbers(UNIFORM, draft.lengths(x), wide)
    share = draft.cast(ratio, wide) if ratio else draft.constant(np.asarray(0.5, wide))
    dropped = draft("Reshape", draft("Where", training, share, draft.zero(u)), [])
    mask = draft("GreaterOrEqual", u, dropped)
    kept = draft("Sub", draft.constant(np.asarray(1, wide)), dropped)
    scaled = draft("Mul", x, draft.cast(draft("Reciprocal", kept), dtype))
    return draft("Where", mask, scaled, draft.zero(x)), mask


def _multinomial(drawing: _Drawing, x: str) -> str:
    """The number of classes k with p(0) + ... + p(k) <= u, p being Softmax(x), times its sum.

    In double precision: the last bits of Exp, in which devices differ, then hardly ever decide.
    Classes from where the sum is complete on are not counted, as if u could be 1 by rounding.
    """
    draft = drawing.draft
    count = draft.attributes["sample_size"]
    wide = draft.cast(x, "float64")
    classes, last = [1], [2]
    powers = draft("Exp", draft("Sub", wide, draft("ReduceMax", wide, classes, keepdims=True)))
    sums = draft("CumSum", powers, np.asarray(1))
    total = draft("ReduceMax", sums, classes, keepdims=True)
    shape = draft.shape(x)
    rows = draft("Shape", x, start=0, end=1) if shape is None else None
    lengths = [shape[0], count] if shape else draft("Concat", str(rows), [count], axis=0)
    thresholds = draft("Mul", drawing.numbers(UNIFORM, lengths, "float64"), total)
    counted = draft("Where", draft("Less", sums, total), sums, np.asarray(np.inf))
    passed = draft(
        "LessOrEqual",
        draft("Unsqueeze", counted, classes),
        draft("Unsqueeze", thresholds, last),
    )
    dtype = drawing.output.dtype
    return draft("ReduceSum", draft.cast(passed, dtype), last, keepdims=False)


def _branches(drawing: _Drawing, *inputs: str) -> tuple[str, ...]:
    """Both branches get the key."""
    node = drawing.draft.node
    given = {
        name: _captured(branch, drawing.path) if isinstance(branch, Graph) else branch
        for name, branch in node.attributes.items()
    }
    return _again(drawing, given, *inputs, drawing.key)


def _captured(graph: Graph, path: str) -> Graph:
    """Return a nested graph that is handed the key as its last input."""
    name = Names(graph.tensors).take(RANDOM_KEY)
    tensors = {**graph.tensors, name: KEY_SPEC}
    handed = replace(graph, inputs=(*graph.inputs, name), tensors=tensors)
    return _written(handed, name, f"{path}/")


def _loop(drawing: _Drawing, *inputs: str) -> tuple[str, ...]:
    """The body gets a number that stands for the item, which with the iteration's is its key."""
    body: Graph = drawing.draft.attributes["body"]
    names = Names(body.tensors)
    seed, number, vector, key, one = map(
        names.take, ("loop_seed", "iteration", "iterations", RANDOM_KEY, "one")
    )
    first = body.inputs[0]
    nodes = Names(node.name for node in body.nodes)
    made = (
        _node(nodes, "Cast", (first,), number, to="uint64"),
        _node(nodes, "Reshape", (number, one), vector),
        _node(nodes, "Concat", (seed, vector), key, axis=0),
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
    given = dict(drawing.draft.attributes)
    given["body"] = _written(keyed, key, f"{drawing.path}/")
    given["captured"] += 1
    drawn = drawing.numbers(INTEGER, [1], "uint64")
    padded = (*inputs, *[""] * (2 - len(inputs)))
    return _again(drawing, given, *padded, drawn)


def _node(names: Names, op: str, inputs: tuple[str, ...], output: str, **given: Any) -> Node:
    name = names.take(output)
    return Node(name, op, inputs, (output,), find_operator(op).complete(given, name))


def _again(drawing: _Drawing, given: Mapping[str, Any], *inputs: str) -> tuple[str, ...]:
    """Write the node anew, with other attributes and inputs."""
    draft = drawing.draft
    return tuple(draft.several(draft.n_outputs, draft.node.op, *inputs, **given))


def _scan(drawing: _Drawing, *inputs: str) -> Result:
    raise GraphError(
        "the body of a Scan draws random numbers, which would be the same in every step",
        at=str(drawing.draft.node),
        fix="draw them outside and scan over them, or use a Loop",
    )


_RULES: Mapping[str, Write] = {
    "Bernoulli": _bernoulli,
    "Dropout": _dropout,
    "If": _branches,
    "Loop": _loop,
    "Multinomial": _multinomial,
    "RandomNormal": _normal,
    "RandomNormalLike": _normal,
    "RandomUniform": _uniform,
    "RandomUniformLike": _uniform,
    "Scan": _scan,
}
