"""Move and clip integers instead of dequantized numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.ir import Node
from .bounds import read_bounds
from .pairs import is_undone
from .pipeline import make_pass
from .quantized import Quantization, is_selection, read_quantization
from .rewriting import Rewriter


class _Chain(NamedTuple):
    """The nodes between a QuantizeLinear and the DequantizeLinear nodes before it."""

    between: list[Node]
    """In topological order."""
    integers: dict[str, str]
    """For each dequantized tensor its integers."""


@make_pass("QuantizeLinear")
def move_integers(rewriter: Rewriter) -> None:
    """Replace DequantizeLinear, f, QuantizeLinear by f on integers, if scale and zero point agree.

    f only moves elements (MaxPool, Reshape, Concat, ...) or clips them by numbers (Relu, Clip),
    which become integers. The same bits, as quantizing keeps the order. Nothing else may read the
    intermediate tensors.
    """
    for node in rewriter.find("QuantizeLinear"):
        how = read_quantization(rewriter, node)
        if how is not None and how.scale.size == 1:
            chain = _Chain([], {})
            if _collect(rewriter, node, node.inputs[0], chain) and chain.between:
                _move(rewriter, node, how, chain)
    rewriter.drop_dead()


def _collect(rewriter: Rewriter, node: Node, tensor: str, chain: _Chain) -> bool:
    """Collect in `chain` nodes from integers to `tensor`; return whether all work on integers."""
    writer = rewriter.producer(tensor)
    if writer is None:
        return False
    if writer.op == "DequantizeLinear":
        if is_undone(rewriter, writer, node):
            chain.integers[tensor] = writer.inputs[0]
        return tensor in chain.integers
    bounds = read_bounds(rewriter, writer)
    moves = is_selection(rewriter, writer) or bounds is not None
    if not moves or not rewriter.is_private(tensor):
        return False
    sources = writer.inputs if writer.op == "Concat" else writer.inputs[:1]
    if bounds is not None:
        sources = (bounds.source,)
    if not all(_collect(rewriter, node, source, chain) for source in dict.fromkeys(sources)):
        return False
    chain.between.append(writer)
    return True


def _move(rewriter: Rewriter, node: Node, how: Quantization, chain: _Chain) -> None:
    integers, made = dict(chain.integers), list[Node]()
    for one in chain.between:
        bounds = read_bounds(rewriter, one)
        outputs = node.outputs if one.outputs == node.inputs[:1] else None
        if bounds is None:
            inputs = [integers.get(name, name) for name in one.inputs]
            new = rewriter.make(one.op, inputs, outputs, name=one.name, **one.attributes)
        else:
            limits = np.iinfo(how.zero.dtype)
            numbers = (how.quantize(bound).reshape(()) for bound in (bounds.low, bounds.high))
            cut = (np.clip(n, limits.min, limits.max).astype(how.zero.dtype) for n in numbers)
            names = [rewriter.constant(value, f"{one.name}.bound") for value in cut]
            inputs = [integers[bounds.source], *names]
            new = rewriter.make("Clip", inputs, outputs, name=one.name)
        integers[one.outputs[0]] = new.outputs[0]
        made.append(new)
    if all(rewriter.may_merge([*chain.between, node], new) for new in made):
        rewriter.replace([*chain.between, node], made)
