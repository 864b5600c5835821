"""Quantized products of a graph, a record of the changes, and their effect on accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from ...graph.core.check import check
from ...graph.core.ir import Graph, Node
from ...graph.passes import simplify
from ...graph.passes.integer_islands import integer_islands
from ...graph.passes.quantized import absorb_clip, hoist_quantize
from ...graph.passes.rewriting import Rewriter
from ...graph.passes.unneeded import merge_common
from ...graph.values.errors import join_lines
from ...graph.values.names import Names
from ...graph.values.tensor import Array
from .accuracy import Accuracy, compare
from .products import QuantizedProduct
from .ranges import Devices, Items, Range, iterate_results

Form: TypeAlias = Literal["integer", "qdq"]

PASSES = (absorb_clip, hoist_quantize, merge_common, absorb_clip, integer_islands)
"""In order: nodes that move elements may stand between a product and the clip of its results."""


TRIED = 4
"""Items on which each product is tried alone."""


class NodeCost(NamedTuple):
    """The loss of accuracy from quantizing one product alone.

    `sqnr_db` is the ratio of the worst output.
    """

    node: str
    sqnr_db: float


@dataclass(frozen=True, eq=False)
class Quantized:
    """A quantized graph.

    Attributes
    ----------
    graph : Graph
        The graph to plan and run, or to save.
    original : Graph
        The graph that was given.
    floats : Graph
        The original, simplified; it has the nodes that are named below.
    products : Mapping of str to QuantizedProduct
        The products in integers, by name of node.
    kept : Mapping of str to str
        The products that stayed in floats, with the reasons.
    ranges : Mapping of str to Range
        The ranges of the inputs of products.
    activations, form : str
        The arguments of `quantize`.

    Examples
    --------
    >>> import numpy as np
    >>> import plait as pl
    >>> b = pl.GraphBuilder("layer")
    >>> x = b.input("x", "float32", (4, 64))
    >>> weights = np.random.default_rng(0).normal(size=(64, 64)).astype("float32")
    >>> b.output("y", b.op("MatMul", x, weights, name="dense"))
    >>> quantized = pl.quantize(b.build(), [{"x": np.ones((4, 64), "float32")}])
    >>> list(quantized.products), dict(quantized.kept)
    (['dense'], {})
    """

    graph: Graph
    original: Graph = field(repr=False)
    floats: Graph = field(repr=False)
    products: Mapping[str, QuantizedProduct] = field(repr=False)
    kept: Mapping[str, str]
    ranges: Mapping[str, Range] = field(repr=False)
    activations: str
    form: Form

    @property
    def weights_only(self) -> list[str]:
        """The products that have no integer form, and store only their weights as integers."""
        return [name for name, product in self.products.items() if not product.activations]

    def accuracy(self, items: Items, devices: Devices = ("cpu",)) -> dict[str, Accuracy]:
        """Return the error of each output against the float graph, for `items` run on `devices`."""
        return _compare_graphs(self.floats, self.graph, items, devices)

    def costs(self, items: Items, devices: Devices = ("cpu",)) -> list[NodeCost]:
        """Return the loss on `items` from quantizing each product alone, the largest first.

        The graph is planned for `devices` and run once for each product: pass few items.
        """
        expected = list(iterate_results(self.floats, items, devices))
        found = []
        for name, product in self.products.items():
            alone = self._with([product])
            actual = iterate_results(alone, items, devices)
            worst = min(one.sqnr_db for one in compare(zip(expected, actual, strict=True)).values())
            found.append(NodeCost(name, worst))
        return sorted(found, key=lambda cost: cost.sqnr_db)

    def without(self, names: Iterable[str], reason: str = "excluded") -> Quantized:
        """Return the graph with the products in `names` also left in floats, for a `reason`."""
        left = dict.fromkeys(names, reason)
        products = {name: one for name, one in self.products.items() if name not in left}
        graph = self._with(products.values())
        return replace(self, graph=graph, products=products, kept={**self.kept, **left})

    def at_least(self, sqnr_db: float, items: Items, devices: Devices = ("cpu",)) -> Quantized:
        """Return the graph with the worst products in floats, so that outputs keep `sqnr_db`.

        The accuracy is measured on `items`, which are run on `devices`.
        """
        expected = list(iterate_results(self.floats, items, devices))

        def is_good(made: Quantized) -> bool:
            actual = iterate_results(made.graph, items, devices)
            found = compare(zip(expected, actual, strict=True)).values()
            return all(one.sqnr_db >= sqnr_db for one in found)

        if is_good(self):
            return self
        names = [cost.node for cost in self.costs(items[:TRIED], devices)]
        reason = f"outputs would be below {sqnr_db:g} dB"
        too_few, enough = 0, len(names)
        while enough - too_few > 1:
            tried = (too_few + enough) // 2
            if is_good(self.without(names[:tried], reason)):
                enough = tried
            else:
                too_few = tried
        return self.without(names[:enough], reason)

    def report(self, accuracy: Mapping[str, Accuracy] | None = None) -> str:
        """Return the changes, and the `accuracy` of outputs, if given, as text."""
        before, after = count_nbytes(self.original), count_nbytes(self.graph)
        stored = len(self.weights_only)
        more = f", of {stored} more the weights" if stored else ""
        whole = len(self.products) + len(self.kept)
        lines = [
            f"{len(self.products) - stored} of {whole} products in integers{more}",
            f"constants: {before / 2**20:.2f} MiB -> {after / 2**20:.2f} MiB",
        ]
        for name, one in (accuracy or {}).items():
            same = "" if one.same_class is None else f", same class {one.same_class:.2%}"
            lines.append(
                f"output {name}: {one.sqnr_db:.1f} dB, "
                f"error {one.max_error:.3g} at most, {one.mean_error:.3g} on average{same}"
            )
        lines += [f"in floats: {name}: {reason}" for name, reason in self.kept.items()]
        return join_lines(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the changes as plain values, for JSON."""
        return {
            "products": list(self.products),
            "weights_only": self.weights_only,
            "kept": dict(self.kept),
            "constants_nbytes": {
                "before": count_nbytes(self.original),
                "after": count_nbytes(self.graph),
            },
            "ranges": {name: list(one) for name, one in self.ranges.items()},
        }

    def _with(self, products: Iterable[QuantizedProduct]) -> Graph:
        return insert_integers(self.floats, products, self.ranges, self.activations, self.form)


def insert_integers(
    floats: Graph,
    products: Iterable[QuantizedProduct],
    ranges: Mapping[str, Range],
    activations: str,
    form: Form,
) -> Graph:
    rounded = insert_quantization(floats, products, ranges, activations)
    return check(simplify(rounded, PASSES) if form == "integer" else rounded)


def count_nbytes(graph: Graph) -> int:
    return sum(value.nbytes for value in graph.constants.values())


def _compare_graphs(
    floats: Graph, graph: Graph, items: Items, devices: Devices
) -> dict[str, Accuracy]:
    both = zip(
        iterate_results(floats, items, devices), iterate_results(graph, items, devices), strict=True
    )
    return compare(both)


WEIGHT_LIMIT = 127
"""Weights have no zero point, so int8's lowest number is not used."""

BIAS_LIMIT = 1 << 30
"""Below half of int32's range, since sums of products are added to it."""


class Integers(NamedTuple):
    """A constant as integers: real = (value - zero point) · scale."""

    value: Array
    scale: Array
    zero: Array
    axis: int = 0
    """The axis with a scale for each index, if there are several."""


def choose_parameters(between: Range, dtype: DTypeLike) -> tuple[Array, Array]:
    """Return the scale and zero point with which integers of `dtype` cover `between`, and 0."""
    limits = np.iinfo(np.dtype(dtype))
    low, high = min(between.low, 0.0), max(between.high, 0.0)
    scale = np.float32((high - low) / (limits.max - limits.min))
    if scale < np.finfo(np.float32).tiny:
        scale = np.float32(1)
    zero = np.clip(np.rint(limits.min - low / scale), limits.min, limits.max)
    return np.asarray(scale), zero.astype(dtype)


def quantize_weights(weights: Array, axis: int | None, least: Array | float = 0.0) -> Integers:
    """Return `weights` as int8 without zero points; each slice along `axis`, if any, has a scale.

    No scale is below `least`: the scale of a bias follows from it, and must represent the bias.
    """
    others = tuple(i for i in range(weights.ndim) if i != axis)
    largest = np.abs(weights).max(others if axis is not None else None, initial=0)
    scale = np.maximum(largest / np.float32(WEIGHT_LIMIT), least).astype(np.float32)
    scale = np.where(scale < np.finfo(np.float32).tiny, np.float32(1), scale)
    along = [1] * weights.ndim
    if axis is not None:
        along[axis] = -1
    value = np.clip(np.rint(weights / scale.reshape(along)), -WEIGHT_LIMIT, WEIGHT_LIMIT)
    return Integers(value.astype(np.int8), scale, np.zeros(scale.shape, np.int8), axis or 0)


def find_least_scale(bias: Array, input_scale: Array, axis: int | None) -> Array:
    needed = np.abs(bias.astype(np.float64)) / (float(input_scale) * BIAS_LIMIT)
    return np.asarray(needed if axis is not None else needed.max(initial=0))


def quantize_bias(bias: Array, input_scale: Array, weight_scale: Array) -> Integers:
    scale = (input_scale * weight_scale).astype(np.float32)
    wide = np.rint(bias.astype(np.float64) / scale.astype(np.float64))
    value = np.clip(wide, -(2**31) + 1, 2**31 - 1).astype(np.int32)
    return Integers(value, scale, np.zeros(scale.shape, np.int32))


def insert_quantization(
    graph: Graph, products: Iterable[QuantizedProduct], ranges: Mapping[str, Range], dtype: str
) -> Graph:
    """Return `graph` with the inputs of `products` rounded to `dtype`, within their `ranges`.

    An input of several products is quantized once. Weights are int8; biases are int32, with the
    scale of sums. Results of products are not rounded here, but at the next product that reads
    them.
    """
    return _Insertion(graph, ranges, dtype).run(products)


class _Insertion:
    """The state of the pass: which tensors are quantized already."""

    def __init__(self, graph: Graph, ranges: Mapping[str, Range], dtype: str) -> None:
        self._rewriter = Rewriter(graph)
        self._names = Names(node.name for node in graph.nodes)
        self._ranges = ranges
        self._dtype = dtype
        self._rounded: dict[str, str] = {}
        self._scales: dict[str, Array] = {}

    def run(self, products: Iterable[QuantizedProduct]) -> Graph:
        for product in products:
            self._quantize(product)
        return self._rewriter.result()

    def _quantize(self, product: QuantizedProduct) -> None:
        node, ahead = product.node, list[Node]()
        inputs = list(node.inputs)
        for index in product.activations:
            ahead += self._activation(node.inputs[index])
            inputs[index] = self._rounded[node.inputs[index]]
        constants = self._constants(product)
        for index, integers in constants.items():
            made = self._dequantized(node.inputs[index], integers)
            ahead.append(made)
            inputs[index] = made.outputs[0]
        self._rewriter.replace([node], [*ahead, replace(node, inputs=tuple(inputs))])

    def _activation(self, tensor: str) -> list[Node]:
        if tensor in self._rounded:
            return []
        rewriter = self._rewriter
        scale, zero = choose_parameters(self._ranges[tensor], self._dtype)
        names = (
            rewriter.constant(scale, f"{tensor}/scale"),
            rewriter.constant(zero, f"{tensor}/zero"),
        )
        integers = rewriter.make(
            "QuantizeLinear", (tensor, *names), name=self._names.take(f"{tensor}/quantized")
        )
        reals = rewriter.make(
            "DequantizeLinear",
            (integers.outputs[0], *names),
            name=self._names.take(f"{tensor}/rounded"),
        )
        self._rounded[tensor], self._scales[tensor] = reals.outputs[0], scale
        return [integers, reals]

    def _constants(self, product: QuantizedProduct) -> dict[int, Integers]:
        if product.weights is None:
            return {}
        given = self._rewriter.constants
        weights = given[product.node.inputs[product.weights]]
        if product.bias is None:
            return {product.weights: quantize_weights(weights, product.axis)}
        bias = given[product.node.inputs[product.bias]]
        scale = self._scales[product.node.inputs[product.activations[0]]]
        made = quantize_weights(weights, product.axis, find_least_scale(bias, scale, product.axis))
        return {product.weights: made, product.bias: quantize_bias(bias, scale, made.scale)}

    def _dequantized(self, name: str, made: Integers) -> Node:
        rewriter = self._rewriter
        names = [
            rewriter.constant(value, f"{name}/{what}")
            for what, value in zip(("integers", "scale", "zero"), made, strict=False)
        ]
        return rewriter.make(
            "DequantizeLinear", names, name=self._names.take(f"{name}/dequantized"), axis=made.axis
        )
