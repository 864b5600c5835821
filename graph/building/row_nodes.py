"""Nodes for the rows of tensors: those that `GraphBuilder.each` and `reduce` add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.infer import infer_shapes
from ..core.ir import Graph, Node, rename_tensors
from ..core.nested import call_graph, infer_results
from ..core.operator import Operator, find_operator
from ..operators.each import EACH, check_body, check_rows, infer_padded
from ..operators.reduce_rows import REDUCE_ROWS, make_reducing_body
from ..values.dims import find_length_axis
from ..values.errors import GraphError, PlaitError, ShapeError
from ..values.names import Names
from ..values.tensor import Array, Shape, TensorSpec, read_only, spec_of, to_exact

if TYPE_CHECKING:
    from .builder import GraphBuilder

PROBED = 2
"""Rows of the graph that is inferred to find the lengths that do not depend on rows."""


def add_each(
    b: GraphBuilder,
    values: str | Sequence[str],
    body: Graph,
    name: str,
    batch: int | None,
    max_delay_s: float,
    on_error: str,
    keep: int | None,
    drop: str,
    pad: str | None,
) -> Any:
    tensors = _to_list(values)
    if batch is not None:
        check_body(body, f"node {name!r} (Each)", batch)
        body = add_known_lengths(body, [b.spec(one) for one in tensors])
        if keep is not None and (keep < batch or on_error != "value"):
            raise GraphError(
                f"{keep} rows are to be kept, of batches of {batch}, with {on_error=}",
                at=f"node {name!r} (Each)",
                fix='keep a batch or more, with on_error="value": dropped rows are not ok',
            )
        options: dict[str, Any] = {"batch": batch, "max_delay_s": max_delay_s}
        options |= {"on_error": on_error, "keep": keep or 0, "drop": drop, "queue": name}
        if pad is not None:
            options["pad"] = _find_axes(body, [b.spec(one) for one in tensors], pad, name)
        outputs = _name_outputs(name, len(body.outputs) + (on_error == "value"))
        return b.op(EACH, *tensors, name=name, outputs=outputs, body=body, **options)
    if max_delay_s or on_error != "item" or keep is not None or pad is not None:
        raise GraphError(
            "max_delay_s, on_error, keep and pad are about batches",
            at=f"node {name!r} (Each)",
            fix="say how large they are: batch=8",
        )
    ranks = [
        (b.spec(one).rank, body.tensors[fed].rank)
        for one, fed in zip(tensors, body.inputs, strict=False)
    ]
    # A body with an axis of rows takes all of them at once: its nodes become those of the item.
    if len(tensors) == len(body.inputs) and all(given == own for given, own in ranks):
        check_rows(body, f"node {name!r} (Each)")
        made = b.include(body, dict(zip(body.inputs, tensors, strict=True)), f"{name}/")
        found = tuple(made[output] for output in body.outputs)
        return found[0] if len(found) == 1 else found
    outputs = _name_outputs(name, len(body.outputs))
    return b.op(
        "Scan", *tensors, name=name, outputs=outputs, body=body, num_scan_inputs=len(tensors)
    )


def _find_axes(body: Graph, specs: Sequence[TensorSpec], pad: str, name: str) -> list[int]:
    """Return for each of `specs` and outputs of `body` the axis that follows from `pad`, or 0."""
    shapes = [spec.shape or () for spec in specs]
    axes = [shape.index(pad, 1) if pad in shape[1:] else 0 for shape in shapes]
    known = sorted({dim for shape in shapes for dim in shape[1:] if isinstance(dim, str)})
    if not any(axes):
        raise GraphError(
            f"pad is {pad!r}, and the other axes of the values have other lengths",
            at=f"node {name!r} (Each)",
            fix=f"name one of {', '.join(known)}" if known else "leave pad out",
        )
    for output, spec in zip(body.outputs, infer_padded(body, specs), strict=True):
        axis = find_length_axis(spec.shape or (), pad) or 0
        axes.append(axis)
        others = [dim for n, dim in enumerate(spec.shape or ()) if n not in (0, axis)]
        is_open = spec.shape is None or any(isinstance(d, str) and d not in known for d in others)
        if is_open and _has_other_shape(body, output, specs, pad):
            raise GraphError(
                f"output {output!r} is {spec}, and its length does not follow from {pad!r} alone",
                at=f"node {name!r} (Each)",
                fix="leave pad out, and call a BlockingSession of the graph in a function, for one "
                "row: lambda row: session(row[None])[0]",
            )
    return axes


def _has_other_shape(body: Graph, output: str, specs: Sequence[TensorSpec], pad: str) -> bool:
    from ..passes.fold_constants import fold_constants

    found = set[Shape | None]()
    for length in (64, 96):
        dims = ([length if dim == pad else dim for dim in (one.shape or ())[1:]] for one in specs)
        rows = [TensorSpec(one.dtype, (PROBED, *d)) for one, d in zip(specs, dims, strict=True)]
        if not all(one.is_static for one in rows):
            return False  # other lengths are open, too
        found.add(fold_constants(call_graph(body, rows)).tensors[output].shape)
    return len(found) > 1 or any(not isinstance(dim, int) for one in found for dim in one or ("",))


def add_known_lengths(body: Graph, specs: Sequence[TensorSpec]) -> Graph:
    """Add to `body`, a graph for rows, its results' lengths, inferred for two rows of `specs`.

    Models reshape by shapes that they compute, which are known if the number of rows is. The
    lengths along other axes do not depend on that number.
    """
    rows = [TensorSpec(one.dtype, one.shape and (PROBED, *one.shape[1:])) for one in specs]
    try:
        symbolic = infer_results(body, specs)
        open_ones = [
            name
            for name, spec in zip(body.outputs, symbolic, strict=True)
            if spec.shape is None or not all(isinstance(dim, int) for dim in spec.shape[1:])
        ]
        if not open_ones or not all(one.is_static for one in rows):
            return body
        from ..passes.fold_constants import fold_constants

        known = fold_constants(call_graph(body, rows)).tensors
    except PlaitError:
        return body  # inference of the node names the mistake
    for name in open_ones:
        shape = known[name].shape or ()
        if shape and known[name].is_static:
            if shape[0] != PROBED:
                raise ShapeError(
                    f"output {name!r} of the graph is {known[name]} for {PROBED} rows",
                    fix="let each output have a row for each row of the inputs: a number of rows "
                    "may be written down in the graph, as in a Reshape. Or call a BlockingSession "
                    "of it in a function, for one row",
                )
            body = _reshape_output(body, name, (0, *shape[1:]))
    return body


def _reshape_output(body: Graph, output: str, shape: Shape) -> Graph:
    """Reshape `output` to `shape` at the end of `body`; 0 keeps the number of rows."""
    if output not in body.producers or 0 in shape[1:]:
        return body
    names = Names(body.tensors)
    before, lengths = names.take(f"{output}/before"), names.take(f"{output}/lengths")
    array = read_only(np.array(shape, np.int64))
    name = Names(node.name for node in body.nodes).take(f"{output}/reshape")
    attributes = find_operator("Reshape").complete({}, name)
    last = Node(name, "Reshape", (before, lengths), (output,), attributes)
    renamed = rename_tensors(body, {output: before})
    return infer_shapes(
        replace(
            renamed,
            outputs=body.outputs,
            nodes=(*renamed.nodes, last),
            tensors={**renamed.tensors, lengths: spec_of(array)},
            constants={**renamed.constants, lengths: array},
        )
    )


def add_reduce(
    b: GraphBuilder,
    values: str | Sequence[str],
    operator: Operator,
    initial: str | Array | float | Sequence[str | Array | float],
    name: str,
    attributes: Mapping[str, Any],
) -> Any:
    tensors = _to_list(values)
    given = initial if isinstance(initial, list | tuple) else [initial]
    specs = tuple(map(b.spec, tensors))
    states = [
        one if isinstance(one, str) else _to_dtype(one, spec.dtype, name)
        for one, spec in zip_longest(given, operator.declared[: len(given)], fillvalue=specs[0])
    ]
    begin = tuple(b.spec(one) if isinstance(one, str) else spec_of(one) for one in states)
    body = make_reducing_body(name, operator, begin, specs, attributes)
    outputs = _name_outputs(name, len(states))
    return b.op(REDUCE_ROWS, *states, *tensors, name=name, outputs=outputs, body=body)


def _to_dtype(value: Any, dtype: np.dtype[Any], name: str) -> Array:
    plain = isinstance(value, bool | int | float)
    return to_exact(value, dtype, f"node {name!r} ({REDUCE_ROWS})") if plain else np.array(value)


def _to_list(values: str | Sequence[str]) -> list[str]:
    return [values] if isinstance(values, str) else list(values)


def _name_outputs(name: str, count: int) -> int | list[str]:
    return 1 if count == 1 else [f"{name}.{index}" for index in range(count)]
