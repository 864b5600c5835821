"""Post-training quantization: float products become integer products."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from ...graph.core.check import check
from ...graph.core.ir import Graph
from ...graph.passes import simplify
from ...graph.passes.split_gemm import split_gemm
from ..errors import FeedError, PlanError
from ..shapes.specialise import specialise
from .products import find_products, list_activations
from .quantized import Form, Quantized, insert_integers
from .ranges import METHODS, Devices, Method, observe

Activations: TypeAlias = Literal["uint8", "int8"]


def quantize(
    graph: Graph,
    items: Iterable[Mapping[str, Any]],
    devices: Devices = ("cpu",),
    *,
    ranges: Method = "minmax",
    exclude: Sequence[str] = (),
    activations: Activations = "uint8",
    per_channel: bool = True,
    form: Form = "integer",
    min_sqnr_db: float | None = None,
) -> Quantized:
    """Return a float graph with its products computed in 8-bit integers.

    The graph runs on sample items, to find the ranges of the inputs of products. Conv, MatMul and
    Gemm get these inputs as bytes and their weights as int8; everything else stays in floats.

    Parameters
    ----------
    graph : Graph
    items : iterable of Mapping
        Sample inputs like those fed later; a few dozen, which cover the whole variety.
    devices : str, Device, or iterable of them, default ("cpu",)
        The devices that run the items.
    ranges : {"minmax", "percentile", "mse"}, default "minmax"
        The range that bytes represent: all values that occurred; all but 0.01 % of them; or the
        range with the least squared error from rounding and clipping.
    exclude : sequence of str
        Nodes that stay in floats: names, patterns such as ``"head/*"``, or operators.
    activations : {"uint8", "int8"}, default "uint8"
        The dtype of the inputs of products; weights are int8.
    per_channel : bool, default True
        Whether the weights of each output channel have their own scale.
    form : {"integer", "qdq"}, default "integer"
        ``"qdq"`` keeps the float products, with QuantizeLinear and DequantizeLinear before them,
        which other tools convert to integer products themselves.
    min_sqnr_db : float, optional
        The quality that outputs must keep on the items: signal to noise, in decibels. Each product
        is tried alone, and the products that lose most stay in floats until all outputs are good
        enough.

    Returns
    -------
    Quantized
        The graph, a record of the changes, and methods that measure the loss.

    Raises
    ------
    PlanError
        If an argument is invalid.
    FeedError
        If there are no items, or one does not fit the graph.
    SessionError
        If called in a trio task, which it would block.

    Examples
    --------
    >>> import numpy as np, plait as pl
    >>> random = np.random.default_rng(0)
    >>> b = pl.GraphBuilder("layer")
    >>> x = b.input("x", "float32", ("n", 64))
    >>> w = random.standard_normal((64, 10)).astype("float32")
    >>> b.output("y", b.op("MatMul", x, w))
    >>> items = [{"x": random.standard_normal((8, 64)).astype("float32")} for _ in range(4)]
    >>> made = pl.quantize(b.build(), items)
    >>> [node.op for node in made.graph.nodes]
    ['QuantizeLinear', 'MatMulInteger', 'DequantizeLinear']
    >>> made.accuracy(items)["y"].sqnr_db > 30
    True
    """
    _check_arguments(graph, ranges, activations, form, min_sqnr_db, exclude)
    fed = list(items)
    if not fed:
        raise FeedError("there are no items to calibrate with", fix="pass some inputs to run")
    floats = simplify(simplify(specialise(check(graph))), (split_gemm,))
    products, kept = find_products(floats, exclude, per_channel)
    found = observe(floats, list_activations(products), fed, devices, ranges)
    for name, product in list(products.items()):
        between = [found[product.node.inputs[index]] for index in product.activations]
        if not all(map(math.isfinite, (edge for one in between for edge in one))):
            kept[name] = "not all numbers that it is fed are finite"
            del products[name]
    made = Quantized(
        insert_integers(floats, products.values(), found, activations, form),
        graph,
        floats,
        products,
        kept,
        found,
        activations,
        form,
    )
    return made if min_sqnr_db is None else made.at_least(min_sqnr_db, fed, devices)


def _check_arguments(
    graph: Graph, ranges: str, activations: str, form: str, least: float | None, exclude: object
) -> None:
    if not isinstance(graph, Graph):
        raise PlanError(
            f"expected a graph, got {type(graph).__name__}", fix="pass what load() returned"
        )
    if isinstance(exclude, str):
        raise PlanError(f"exclude is {exclude!r}", fix=f"pass a list: [{exclude!r}]")
    for what, given, allowed in (
        ("ranges", ranges, tuple(METHODS)),
        ("activations", activations, get_args(Activations)),
        ("form", form, get_args(Form)),
    ):
        if given not in allowed:
            raise PlanError(f"{what} is {given!r}", fix=f"choose one of {', '.join(allowed)}")
    if least is not None and not math.isfinite(least):
        raise PlanError(f"min_sqnr_db is {least!r}", fix="pass decibels, such as 20")
