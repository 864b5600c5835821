"""Post-training quantization: products of floats become products of integers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from ...graph.check import check
from ...graph.ir import Graph
from ...graph.passes import simplify
from ...graph.passes.split_gemm import split_gemm
from ..errors import FeedError, PlanError
from ..shapes.specialise import specialise
from .products import activations_of, products_of
from .quantized import Form, Quantized, written
from .ranges import METHODS, Method
from .running import Devices, observe

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
    """Return a graph of floats with its products computed in integers of 8 bits.

    The graph is run on some items, to see between which numbers the inputs of products lie. Conv,
    MatMul and Gemm get these as bytes and their weights as int8; everything else stays in floats.

    Parameters
    ----------
    graph : Graph
    items : iterable of Mapping
        Inputs like those that will be fed later; a few dozen, from all over what will come.
    devices : str, Device, or iterable of them, default ("cpu",)
        Where items are run.
    ranges : {"minmax", "percentile", "mse"}, default "minmax"
        Which numbers bytes stand for: all that were seen; all but 0.01 % of them; or those within
        which what is rounded or cut off is off least, in squares.
    exclude : sequence of str
        Nodes that stay in floats: names, patterns such as ``"head/*"``, or operators.
    activations : {"uint8", "int8"}, default "uint8"
        What the inputs of products become; weights are int8.
    per_channel : bool, default True
        Whether the weights of each feature have a scale of their own.
    form : {"integer", "qdq"}, default "integer"
        ``"qdq"`` leaves the products as they are, between QuantizeLinear and DequantizeLinear,
        which other tools turn into integers as suits them.
    min_sqnr_db : float, optional
        How good outputs must stay on the items: signal to noise, in decibels. The products that
        cost most are left in floats until all outputs are, for which each is tried alone.

    Returns
    -------
    Quantized
        The graph, what was done, and ways to see what it costs.

    Raises
    ------
    PlanError
        If an argument makes no sense.
    FeedError
        If there are no items, or one does not fit the graph.
    SessionError
        If called from inside a trio task, which it would block.

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
    products, kept = products_of(floats, exclude, per_channel)
    found = observe(floats, activations_of(products), fed, devices, ranges)
    for name, product in list(products.items()):
        between = [found[product.node.inputs[index]] for index in product.activations]
        if not all(map(math.isfinite, (edge for one in between for edge in one))):
            kept[name] = "not all numbers that it is fed are finite"
            del products[name]
    made = Quantized(
        written(floats, products.values(), found, activations, form),
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
