"""Compute products between dequantized and quantized tensors in integers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.ir import Node
from ..values.names import Names
from ..values.tensor import Array
from .pipeline import make_pass
from .quantized import Quantization, read_quantization
from .rewriting import Rewriter

BYTES = (np.dtype(np.int8), np.dtype(np.uint8))


@make_pass("DequantizeLinear")
def integer_islands(rewriter: Rewriter) -> None:
    """Compute Conv and MatMul in integers: DequantizeLinear, Conv, QuantizeLinear -> QLinearConv.

    A product that is not quantized again becomes ConvInteger or MatMulInteger; its int32 sums are
    dequantized, and the bias added. Results that are quantized again may differ by one, as sums and
    scales are rounded in another order; others by rounding of float32. Scales and zero points must
    be constants: one for the left factor, one or one for each feature for the weights.
    """
    names = Names(node.name for node in rewriter.graph.nodes)
    for node in rewriter.find("Conv", "MatMul"):
        product = _find_product(rewriter, node)
        if product is not None and not _fuse_requantization(rewriter, product):
            _sum_integers(rewriter, names, product)
    rewriter.drop_dead()


class _Product(NamedTuple):
    """A product of dequantized tensors, and the nodes that dequantize them."""

    node: Node
    left: Quantization
    right: Quantization
    bias: Array | None
    """Real values for each feature."""
    integers: Quantization | None
    """A bias that is given as integers of the scale left · right."""
    sources: tuple[Node, ...]

    @property
    def scale(self) -> Array:
        """The factor from sums of integer products to reals."""
        made: Array = self.left.scale.reshape(()) * self.right.scale
        return made if made.size > 1 else made.reshape(())

    @property
    def features(self) -> int:
        return 1 if self.node.op == "Conv" else -1


def _find_product(rewriter: Rewriter, node: Node) -> _Product | None:
    sources = [rewriter.producer(name) for name in node.inputs if name]
    left, right = (_find_factor(rewriter, source) for source in sources[:2])
    if left is None or right is None or left.scale.size > 1:
        return None
    rank = rewriter.tensors[right.tensor].rank
    if right.axis is not None and not (
        right.axis == 0 if node.op == "Conv" else (rank == 2 and right.axis == 1)
    ):
        return None
    bias, integers = None, None
    if len(node.inputs) > 2 and node.inputs[2]:
        bias, integers = _find_bias(rewriter, node.inputs[2], left, right)
        if bias is None:
            return None
    return _Product(node, left, right, bias, integers, tuple(filter(None, sources)))


def _find_factor(rewriter: Rewriter, source: Node | None) -> Quantization | None:
    if source is None or source.op != "DequantizeLinear":
        return None
    found = read_quantization(rewriter, source)
    return found if found is not None and found.zero.dtype in BYTES else None


def _find_bias(
    rewriter: Rewriter, name: str, left: Quantization, right: Quantization
) -> tuple[Array | None, Quantization | None]:
    """Return constant bias `name` as reals, and as integers if its scale is `left` · `right`."""
    if name in rewriter.constants:
        return rewriter.constants[name], None
    found = read_quantization(rewriter, rewriter.producer(name))
    if found is None or found.zero.any() or found.tensor not in rewriter.constants:
        return None, None
    value = rewriter.constants[found.tensor]
    scale = np.broadcast_to(found.scale, value.shape)
    expected = np.broadcast_to(left.scale.reshape(()) * right.scale, value.shape)
    fits = value.dtype == np.int32 and np.allclose(scale, expected, rtol=1e-6, atol=0)
    return (value * scale).astype(np.float32), found if fits else None


def _fuse_requantization(rewriter: Rewriter, product: _Product) -> bool:
    node = product.node
    after = rewriter.only_consumer(node)
    made = read_quantization(rewriter, after)
    if after is None or after.op != "QuantizeLinear" or made is None or made.scale.size > 1:
        return False
    if made.zero.dtype not in BYTES or (product.bias is not None and product.integers is None):
        return False
    operands = [
        *_name_operand(rewriter, product.left),
        *_name_operand(rewriter, product.right),
        *_name_operand(rewriter, made)[1:],
    ]
    if product.integers is not None:
        operands.append(product.integers.tensor)
    new = rewriter.make(
        f"QLinear{node.op}", operands, after.outputs, name=node.name, **node.attributes
    )
    if not rewriter.may_merge([*product.sources, node, after], new):
        return False
    rewriter.replace([node, after], [new])
    return True


def _name_operand(rewriter: Rewriter, made: Quantization) -> tuple[str, str, str]:
    if made.names:
        return made.tensor, made.names[0], made.names[1]
    scale = rewriter.constant(made.scale, f"{made.tensor}.scale")
    return made.tensor, scale, rewriter.constant(made.zero, f"{made.tensor}.zero")


def _sum_integers(rewriter: Rewriter, names: Names, product: _Product) -> None:
    node = product.node
    left, right = (_name_operand(rewriter, one) for one in (product.left, product.right))
    factors = [left[0], right[0], left[2]]
    if product.right.zero.any():  # some devices take one zero point alone, though all are 0
        factors.append(right[2])
    sums = rewriter.make(
        f"{node.op}Integer", factors, name=names.take(f"{node.name}/sums"), **node.attributes
    )
    scale = rewriter.constant(product.scale, f"{node.name}/scale")
    scaled = (sums.outputs[0], scale)
    axis = product.features
    if product.bias is None:
        last = rewriter.make("DequantizeLinear", scaled, node.outputs, name=node.name, axis=axis)
        new = [sums, last]
    else:
        floats = rewriter.make(
            "DequantizeLinear", scaled, name=names.take(f"{node.name}/floats"), axis=axis
        )
        rank = rewriter.tensors[product.right.tensor].rank or 0
        aligned = product.bias.reshape(-1, *(1,) * (rank - 2))
        bias = rewriter.constant(aligned, f"{node.name}/bias")
        last = rewriter.make("Add", (floats.outputs[0], bias), node.outputs, name=node.name)
        new = [sums, floats, last]
    if all(rewriter.may_merge([*product.sources, node], one) for one in new):
        rewriter.replace([node], new)
