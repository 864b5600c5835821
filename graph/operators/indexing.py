"""Operators that read or write at the places in a tensor of indices."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.attribute import Attribute, Kind
from ..core.operator import Call, Specs, define, free
from ..core.traits import (
    FIRST_FOLLOWS,
    FOLLOWS,
    IN_COORDINATES,
    IN_STEPS,
    IN_SUMS,
    PRIMITIVE,
    SELECTS,
)
from ..values.dims import UNKNOWN, normalize_axis
from ..values.errors import ShapeError
from ..values.tensor import Dim, Shape, TensorSpec
from .inputs import (
    ANY,
    INTEGERS,
    NUMBERS,
    REALS,
    check_dtype,
    check_rank,
    find_common_dtype,
    may_equal,
    read_integers,
)
from .rules import FIRST

REDUCTIONS = ("none", "add", "mul", "max", "min")


@define(
    "GatherND",
    inputs="data indices",
    attributes={"batch_dims": Attribute(Kind.INT, 0, 0)},
    cost=free,
    traits=SELECTS,
    float16=FIRST_FOLLOWS,
    lacks=PRIMITIVE,
)
def infer_gather_nd(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: each row of indices gives data's axes beyond those it names."""
    data, indices, batch = call.spec(0), call.spec(1), call.attributes["batch_dims"]
    depth = _find_depth(data, indices, batch)
    if data.shape is None or indices.shape is None or depth is None:
        return (TensorSpec(data.dtype, None),)
    if not all(map(may_equal, data.shape[:batch], indices.shape[:batch])):
        raise ShapeError(
            f"data {data} and indices {indices} differ in their {batch} batch dimensions",
            fix="make them equal, or use a smaller batch_dims",
        )
    # The batch axes are the first ones of both, and come once.
    return (TensorSpec(data.dtype, (*indices.shape[:-1], *data.shape[batch + depth :])),)


def _find_depth(data: TensorSpec, indices: TensorSpec, batch: int = 0) -> int | None:
    """Return how many axes of `data` a row of `indices` names, or None if that is unknown."""
    check_dtype(indices, INTEGERS, "indices")
    check_rank(data, batch + 1, "a tensor with an axis to index")
    check_rank(indices, batch + 1, "rows of indices, one per element or slice")
    if indices.shape is None or isinstance(indices.shape[-1], str):
        return None
    # How long a row is decides the output's rank: a symbol there leaves even that open.
    depth = indices.shape[-1]
    most = None if data.shape is None else len(data.shape) - batch
    if depth < 1 or (most is not None and depth > most):
        raise ShapeError(
            f"rows of {depth} indices do not name a place in {data}",
            fix=f"make the last axis of indices {'at least 1' if most is None else f'1 to {most}'}",
        )
    return depth


_SCATTER = {"reduction": Attribute(Kind.STRING, "none", choices=REDUCTIONS)}


def _scatter_cost(call: Call, outputs: Specs) -> int:
    return 0 if call.attributes["reduction"] == "none" else call.spec(2).size


def _check_updates(call: Call) -> None:
    # Complex numbers and truth values have no order.
    comparing = call.attributes["reduction"] in ("max", "min")
    find_common_dtype((call.spec(0), call.spec(2)), REALS if comparing else ANY)


@define(
    "ScatterND",
    inputs="data indices updates",
    attributes=_SCATTER,
    cost=_scatter_cost,
    inplace=FIRST,
    float16=IN_SUMS,
    lacks=PRIMITIVE,
)
def infer_scatter_nd(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: like data; the updates have the shape of GatherND's output."""
    data, indices, updates = (call.spec(index) for index in range(3))
    _check_updates(call)
    depth = _find_depth(data, indices)
    if data.shape is not None and indices.shape is not None and depth is not None:
        _check_shape(updates, (*indices.shape[:-1], *data.shape[depth:]), "updates")
    return (data,)


@define(
    "ScatterElements",
    inputs="data indices updates",
    attributes={"axis": Attribute(Kind.INT, 0), **_SCATTER},
    cost=_scatter_cost,
    inplace=FIRST,
    float16=IN_SUMS,
    lacks=PRIMITIVE,
)
def infer_scatter_elements(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: like data; the updates are shaped like the indices."""
    data, indices, updates = (call.spec(index) for index in range(3))
    check_dtype(indices, INTEGERS, "indices")
    _check_updates(call)
    if indices.shape is not None:
        _check_shape(updates, indices.shape, "updates")
    if data.shape is None:
        return (data,)
    axis = normalize_axis(call.attributes["axis"], len(data.shape))
    if indices.shape is not None and not _fits(indices.shape, data.shape, axis):
        raise ShapeError(
            f"indices {indices} do not fit into data {data} along axis {axis}",
            fix="make them of data's rank, and no longer than data along the other axes",
        )
    return (data,)


def _check_shape(spec: TensorSpec, wanted: Sequence[Dim], label: str) -> None:
    if spec.shape is None:
        return
    if len(spec.shape) != len(wanted) or not all(map(may_equal, spec.shape, wanted)):
        listed = ", ".join(map(str, wanted))
        raise ShapeError(f"{label} are {spec}, not of shape [{listed}]", fix="reshape them")


def _fits(part: Shape, whole: Shape, axis: int) -> bool:
    return len(part) == len(whole) and all(
        i == axis or isinstance(a, str) or isinstance(b, str) or a <= b
        for i, (a, b) in enumerate(zip(part, whole, strict=True))
    )


@define(
    "TensorScatter",
    inputs="past_cache update write_indices?",
    attributes={
        "axis": Attribute(Kind.INT, -2),
        "mode": Attribute(Kind.STRING, "linear", choices=("linear", "circular")),
    },
    cost=free,
    inplace=FIRST,
    float16=FOLLOWS,
    lacks=PRIMITIVE,
)
def infer_tensor_scatter(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: like the cache; the update differs from it along `axis` only."""
    cache, update = call.spec(0), call.spec(1)
    find_common_dtype((cache, update))
    if call.has(2):
        check_dtype(call.spec(2), INTEGERS, "write_indices")
    if cache.shape is None:
        return (cache,)
    axis = normalize_axis(call.attributes["axis"], len(cache.shape))
    if axis == 0:
        raise ShapeError("axis 0 is the batch", fix="name the axis of the sequence")
    if call.has(2):
        _check_shape(call.spec(2), cache.shape[:1], "write_indices")
    if update.shape is None:
        return (cache,)
    # Along no axis longer, that of the sequence included.
    if not _fits(update.shape, cache.shape, -1):
        raise ShapeError(
            f"the update {update} does not fit into the cache {cache}",
            fix=f"make their shapes equal but for a shorter axis {axis}",
        )
    wanted = (*cache.shape[:axis], update.shape[axis], *cache.shape[axis + 1 :])
    _check_shape(update, wanted, "the updates")
    return (cache,)


@define(
    "OneHot",
    inputs="indices depth values",
    attributes={"axis": Attribute(Kind.INT, -1)},
    cost=free,
    float16=IN_COORDINATES,
    lacks=PRIMITIVE,
)
def infer_one_hot(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: the indices' shape with an axis of `depth` put in at `axis`."""
    indices, depth, values = (call.spec(index) for index in range(3))
    check_dtype(indices, NUMBERS, "indices")
    check_dtype(depth, NUMBERS, "the depth")
    _check_shape(values, (2,), "values")
    if indices.shape is None:
        return (TensorSpec(values.dtype, None),)
    # The axis counts among the output's, which are one more than those of the indices.
    axis = normalize_axis(call.attributes["axis"], len(indices.shape) + 1)
    length = _count(call, 1, "the depth")
    return (TensorSpec(values.dtype, (*indices.shape[:axis], length, *indices.shape[axis:])),)


def _count(call: Call, index: int, label: str) -> Dim:
    """Return the one number ≥ 0 in input `index` of `call`, UNKNOWN before the run."""
    value = call.value(index)
    if value is None:
        return UNKNOWN
    count = int(value.reshape(-1)[0]) if value.size == 1 else -1
    if count < 0:
        raise ShapeError(f"{label} must be one number ≥ 0, got {value.tolist()}", fix="pass one")
    return count


@define(
    "TopK",
    inputs="x k",
    outputs="values indices",
    attributes={
        "axis": Attribute(Kind.INT, -1),
        "largest": Attribute(Kind.BOOL, True),
        "sorted": Attribute(Kind.BOOL, True),
    },
    cost=lambda call, outputs: call.spec(0).size * max(call.spec(0).size.bit_length(), 1),
    float16=IN_STEPS,
    lacks=PRIMITIVE,
)
def infer_top_k(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: like x, with k elements along the axis."""
    x = call.spec(0)
    check_dtype(x, NUMBERS)
    read_integers(call, 1, "k")
    if x.shape is None:
        return TensorSpec(x.dtype, None), TensorSpec("int64", None)
    axis = normalize_axis(call.attributes["axis"], len(x.shape))
    # k may come from another node: its length is open then, and checked by the run.
    k, length = _count(call, 1, "k"), x.shape[axis]
    if isinstance(k, int) and isinstance(length, int) and k > length:
        raise ShapeError(f"axis {axis} of {x} has no {k} elements", fix=f"use k ≤ {length}")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return TensorSpec(x.dtype, shape), TensorSpec("int64", shape)
