"""Nodes of random graphs with computed lengths, each with numpy's form of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import plait as pl
from plait.graph.values.tensor import Array
from varying_networks import DTYPES, Drawn, Step, VaryingNetwork


@pl.operator(
    pl.TensorSpec("float32", ("kept", "width")),
    inputs=[pl.TensorSpec("float32", ("rows", "width"))],
    name="varying.rows",
)
def pick_rows(x: Array) -> Array:
    """Return the rows that do not begin with a number above 0.5."""
    return x[~(x[:, 0] > 0.5)] if x.shape[1] else x[:1]


@pl.operator(
    pl.TensorSpec("float32", ("rows", "finite")),
    inputs=[pl.TensorSpec("float32", ("rows", "width"))],
    name="varying.columns",
)
def pick_columns(x: Array) -> Array:
    """Return a view: the columns with a number in their first row, backwards."""
    return x[:, np.isfinite(x[:1]).all(0)][:, ::-1]


@pl.operator(
    (pl.TensorSpec("float32", ("halved", "width")), pl.TensorSpec("int64", ("halved",))),
    inputs=[pl.TensorSpec("float32", ("rows", "width"))],
    name="varying.both",
)
def pick_with_places(x: Array) -> tuple[Array, Array]:
    """Return every other row, a view of the input, and the places of these rows."""
    return x[::2], np.arange(0, len(x), 2)


@pl.operator(
    pl.TensorSpec("float32", ("yielded", "width")),
    inputs=[pl.TensorSpec("float32", ("rows", "width"))],
    name="varying.yield",
)
def yield_rows(x: Array) -> Any:
    """Yield the rows in one buffer that is used again; each second one twice."""
    buffer = np.empty(x.shape[1], x.dtype)
    for index, row in enumerate(x):
        for _ in range(1 + index % 2):
            buffer[...] = row
            yield buffer


def add_unary(net: VaryingNetwork, x: Drawn) -> None:
    kind = x.dtype.kind
    exact: dict[str, Callable[[Array], Array]] = {"Identity": np.copy}
    if kind in "if":
        exact |= {"Neg": np.negative, "Abs": np.abs, "Sign": np.sign}
    if kind == "b":
        exact["Not"] = np.logical_not
    if kind == "f":
        exact |= {
            "Relu": lambda a: np.maximum(a, a.dtype.type(0)),
            "Floor": np.floor,
            "IsNaN": np.isnan,
            "IsInf": np.isinf,
        }
    op = net.rng.choice(list(exact))
    if x.is_exact or op not in ("Sign", "Floor"):
        net.add(op, exact[op], x)


def add_soft(net: VaryingNetwork, x: Drawn) -> None:
    if x.dtype in ("float32", "float64"):
        ops: dict[str, Callable[[Array], Array]] = {
            "Tanh": np.tanh,
            "Exp": np.exp,
            "Sigmoid": lambda a: 1 / (1 + np.exp(-a)),
            "Atan": np.arctan,
        }
        op = net.rng.choice(list(ops))
        net.add(op, lambda a: ops[op](a).astype(a.dtype), x, exact=False)


def add_cast(net: VaryingNetwork, x: Drawn) -> None:
    dtype = net.rng.choice(DTYPES)
    limits = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else None
    for value in x.values:
        if limits is not None and x.is_float:
            wide = value.astype(np.float64)  # which has the limits of all integers
            fits = np.isfinite(wide) & (wide >= limits.min) & (wide <= limits.max)
            if not fits.all():
                return
    if x.is_exact:
        net.add("Cast", lambda a: a.astype(dtype), x, to=dtype)


def add_binary(net: VaryingNetwork, x: Drawn) -> None:
    rng = net.rng
    if x.dtype.kind == "b":
        op, compute = rng.choice([("And", np.logical_and), ("Or", np.logical_or)])
    else:
        ops: list[tuple[str, Any]] = [("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply)]
        ops += [("Max", np.maximum), ("Min", np.minimum)] if x.dtype != "float16" else []
        ops += [("Less", np.less), ("Equal", np.equal)] if x.is_exact else []
        op, compute = rng.choice(ops)
    y: Any = net.one(lambda one: one.dtype == x.dtype and one.dims in (x.dims, ()))
    if rng.random() < 0.3 or (op in ("Less", "Equal") and not y.is_exact):
        y = net.array(rng.choice([(), (1,), (1,) * x.rank]), x.dtype.name)
    net.add(op, compute, *rng.choice([(x, y), (y, x)]))


def add_where(net: VaryingNetwork, x: Drawn) -> None:
    masks = [one for one in net.drawn if one.dtype == bool and one.dims == x.dims]
    if masks:
        y = net.one(lambda one: one.dtype == x.dtype and one.dims in (x.dims, ()))
        net.add("Where", np.where, net.rng.choice(masks), x, y)


def add_transpose(net: VaryingNetwork, x: Drawn) -> None:
    perm = list(range(x.rank))
    net.rng.shuffle(perm)
    net.add("Transpose", lambda a: a.transpose(perm), x, perm=perm)


def add_flatten(net: VaryingNetwork, x: Drawn) -> None:
    shape = net.rng.choice([(-1,), (1, -1), (-1, 1)])
    net.add("Reshape", lambda a, _: a.reshape(_), x, np.array(shape))


def add_reshape_like(net: VaryingNetwork, x: Drawn) -> None:
    """Give the bytes of a tensor the shape of another that has the same lengths."""
    y = net.one(lambda one: sorted(map(str, one.dims)) == sorted(map(str, x.dims)))
    shape = net.add("Shape", _get_shape, y)
    if shape and all(value.size for value in x.values):
        net.add("Reshape", lambda a, s: a.reshape(s), x, shape)


def add_unsqueeze(net: VaryingNetwork, x: Drawn) -> None:
    axis = net.rng.randint(0, x.rank)
    net.add("Unsqueeze", lambda a, _: np.expand_dims(a, axis), x, np.array([axis]))


def add_squeeze(net: VaryingNetwork, x: Drawn) -> None:
    if ones := [axis for axis, dim in enumerate(x.dims) if dim == 1]:
        axis = net.rng.choice(ones)
        net.add("Squeeze", lambda a, _: a.squeeze(axis), x, np.array([axis]))


def add_concat(net: VaryingNetwork, x: Drawn) -> None:
    if not x.rank:
        return
    axis = net.rng.randrange(x.rank)

    def rest(one: Drawn) -> Any:
        return one.dtype, one.dims[:axis], one.dims[axis + 1 :], one.rank

    parts = [x, *(net.one(lambda one: rest(one) == rest(x)) for _ in range(net.rng.randint(1, 2)))]
    net.add("Concat", lambda *all_: np.concatenate(all_, axis), *parts, axis=axis)


def add_slice(net: VaryingNetwork, x: Drawn) -> None:
    if not x.rank:
        return
    axis = net.rng.randrange(x.rank)
    start, stop, step = net.rng.choice(
        [
            (0, 2, 1),
            (1, 2**40, 1),
            (0, 2**40, 2),
            (-1, -(2**40), -1),
            (-1, -(2**40), -2),
            (-2, 9, 1),
        ]
    )

    def compute(a: Array, *_: Array) -> Array:
        end = None if stop < -99 else stop
        return a[(*[slice(None)] * axis, slice(start, end, step))]

    given = (np.array([value]) for value in (start, stop, axis, step))
    net.add("Slice", compute, x, *given)


def add_computed_slice(net: VaryingNetwork, x: Drawn) -> None:
    """Keep the first elements along an axis, as many as a value says."""
    counts = [one for one in net.drawn if one.dtype == "int64" and one.rank <= 1 and one.is_exact]
    counts = [one for one in counts if all(a.size == 1 and a.min() >= 0 for a in one.values)]
    if not counts or not x.rank:
        return
    axis, count = net.rng.randrange(x.rank), net.rng.choice(counts)
    if not count.rank:
        count = net.add("Unsqueeze", lambda a, _: a[None], count, np.array([0]))  # type: ignore[assignment]
    net.add(
        "Slice",
        lambda a, _, end, *__: a[(*[slice(None)] * axis, slice(int(end[0])))],
        *(x, np.array([0]), count, np.array([axis])),
    )


def add_range(net: VaryingNetwork, x: Drawn) -> None:
    counts = [one for one in net.drawn if one.dtype == "int64" and not one.rank and one.is_exact]
    if counts:
        count = net.rng.choice(counts)
        net.add("Range", lambda a, b, c: np.arange(a, b, c), np.int64(0), count, np.int64(1))


def add_gather(net: VaryingNetwork, x: Drawn) -> None:
    """Gather along an axis at computed places."""
    if not x.rank:
        return
    axis = net.rng.randrange(x.rank)
    places = [one for one in net.drawn if one.dtype == "int64" and one.rank <= 2]
    places = [one for one in places if one.is_exact and not one.has_lengths]
    for one in net.rng.sample(places, len(places)):
        pairs = zip(x.values, one.values, strict=True)
        if all(((p >= -a.shape[axis]) & (p < a.shape[axis])).all() for a, p in pairs):
            net.add("Gather", lambda a, p: np.take(a, p, axis), x, one, axis=axis)
            return


def add_gather_nd(net: VaryingNetwork, x: Drawn) -> None:
    """Gather the elements that are not zero."""
    if x.is_exact and x.rank:
        places = net.add("NonZero", _find_places, x)
        places = places and net.add("Transpose", np.transpose, places, perm=(1, 0))
        if places:
            net.add("GatherND", lambda a, p: a[tuple(p.T)], x, places)


def add_non_zero(net: VaryingNetwork, x: Drawn) -> None:
    if x.is_exact:
        net.add("NonZero", _find_places, x)


def _find_places(x: Array) -> Array:
    if not x.ndim:
        return np.zeros((0, int(x != 0)), np.int64)
    return np.array(np.nonzero(x), np.int64)


def add_non_zero_of_constant(net: VaryingNetwork, x: Drawn) -> None:
    array = net.array([net.rng.randint(1, 3) for _ in range(net.rng.randint(1, 2))], "int32")
    name = net.builder.constant(array)
    constant = Drawn(name, (array,) * len(net.items), True)
    if net.rng.random() < 0.5:
        net.add("NonZero", _find_places, constant)
    else:
        add_unique(net, constant)


def add_compress(net: VaryingNetwork, x: Drawn) -> None:
    axis = net.rng.choice([None, *range(x.rank)])
    for one in net.rng.sample(net.drawn, len(net.drawn)):
        if one.dtype != bool or one.rank != 1 or not x.rank:
            continue
        wide = [a.size if axis is None else a.shape[axis] for a in x.values]
        if all(c.size <= most for c, most in zip(one.values, wide, strict=True)):
            given = {} if axis is None else {"axis": axis}
            net.add("Compress", lambda a, c: np.compress(c, a, axis), x, one, **given)
            return


def add_unique(net: VaryingNetwork, x: Drawn) -> None:
    """Take different values, or slices of integers; some results are left out or not read."""
    axis = net.rng.choice([None, *range(x.rank)]) if x.dtype.kind in "iu" else None
    is_sorted, count = net.rng.random() < 0.5, net.rng.randint(1, 4)
    if not x.is_exact or any(np.isnan(a).any() for a in x.values if x.is_float):
        return
    if x.is_float and any((np.signbit(a) & (a == 0)).any() for a in x.values):
        return
    if any(not a.size for a in x.values):
        return

    def compute(a: Array) -> tuple[Array, ...]:
        found, first, inverse, counts = np.unique(a, True, True, True, axis=axis)
        inverse = inverse.reshape(-1)
        if not is_sorted:
            order = np.argsort(first)
            place = np.argsort(order)
            found = np.take(found, order, 0 if axis is None else axis)
            first, inverse, counts = first[order], place[inverse], counts[order]
        return (found, *(one.astype(np.int64) for one in (first, inverse, counts)))

    given = {} if axis is None else {"axis": axis}
    net.add("Unique", compute, x, outputs=count, sorted=is_sorted, **given)


def _get_shape(x: Array) -> Array:
    return np.array(x.shape, np.int64)


def add_shape(net: VaryingNetwork, x: Drawn) -> None:
    if net.rng.random() < 0.5:
        net.add("Size", lambda a: np.array(a.size, np.int64), x)
    else:
        net.add("Shape", _get_shape, x)


def add_expand(net: VaryingNetwork, x: Drawn) -> None:
    like = net.one()
    pairs = zip(reversed(x.dims), reversed(like.dims), strict=False)
    if not all(a == b or 1 in (a, b) for a, b in pairs):
        return
    shape = net.add("Shape", _get_shape, like)
    if shape:
        net.add("Expand", _expand, x, shape)


def _expand(a: Array, shape: Array) -> Array:
    return np.broadcast_to(a, np.broadcast_shapes(a.shape, tuple(shape)))


def add_pad(net: VaryingNetwork, x: Drawn) -> None:
    if not x.rank:
        return
    pads = [net.rng.choice([0, 0, 1, 2]) for _ in range(2 * x.rank)]
    mode = net.rng.choice(["constant", "constant", "edge", "reflect"])
    pairs = list(zip(pads[: x.rank], pads[x.rank :], strict=True))
    for value in x.values:
        if mode != "constant" and any(
            max(pair) >= max(length, 1) for pair, length in zip(pairs, value.shape, strict=True)
        ):
            return
    net.add("Pad", lambda a, _: np.pad(a, pairs, mode), x, np.array(pads), mode=mode)  # type: ignore[call-overload]


def add_tile(net: VaryingNetwork, x: Drawn) -> None:
    repeats = [net.rng.choice([1, 1, 2]) for _ in range(x.rank)]
    net.add("Tile", np.tile, x, np.array(repeats, np.int64))


def add_split(net: VaryingNetwork, x: Drawn) -> None:
    axes = [a for a, dim in enumerate(x.dims) if isinstance(dim, int) and dim > 1]
    if axes:
        axis = net.rng.choice(axes)
        first = net.rng.randint(1, x.values[0].shape[axis] - 1)
        sizes = np.array([first, x.values[0].shape[axis] - first])
        net.add(
            "Split", lambda a, _: tuple(np.split(a, [first], axis)), x, sizes, outputs=2, axis=axis
        )


def add_reduce(net: VaryingNetwork, x: Drawn) -> None:
    axes = sorted(net.rng.sample(range(x.rank), net.rng.randint(0, x.rank)))
    if not axes or not all(a.size for a in x.values):
        return
    if x.dtype not in ("float32", "float64", "int64", "int32"):
        return
    keep = net.rng.random() < 0.5
    ops: dict[str, Any] = {"ReduceMax": np.max, "ReduceMin": np.min, "ReduceSum": np.sum}
    op, compute = net.rng.choice(list(ops.items()))
    exact = op != "ReduceSum" or not x.is_float
    net.add(
        op,
        lambda a, _: np.asarray(compute(a, axis=tuple(axes), keepdims=keep)).astype(a.dtype),
        *(x, np.array(axes)),
        exact=exact,
        keepdims=keep,
    )


def add_arg_max(net: VaryingNetwork, x: Drawn) -> None:
    if x.rank and x.is_exact and x.dtype != bool and all(a.size for a in x.values):
        if x.is_float and any(np.isnan(a).any() for a in x.values):
            return
        axis = net.rng.randrange(x.rank)
        net.add("ArgMax", lambda a: a.argmax(axis), x, axis=axis, keepdims=False)


def add_cum_sum(net: VaryingNetwork, x: Drawn) -> None:
    if x.rank and x.dtype in ("int64", "int32"):
        axis = net.rng.randrange(x.rank)
        net.add("CumSum", lambda a, _: a.cumsum(axis).astype(a.dtype), x, np.int64(axis))


def add_one_hot(net: VaryingNetwork, x: Drawn) -> None:
    if x.dtype == "int64" and x.is_exact:
        values = net.array((2,), "float32")

        def compute(a: Array, _: Array, pair: Array) -> Array:
            inside = (a >= -4) & (a < 4)
            is_on = (np.where(inside, a % 4, -1))[..., None] == np.arange(4)
            return np.where(is_on, pair[1], pair[0])

        net.add("OneHot", compute, x, np.int64(4), values)


def add_product(net: VaryingNetwork, x: Drawn) -> None:
    if x.rank > 1 and x.dtype == "float32" and isinstance(x.dims[-1], int):
        weight = net.array((x.dims[-1], net.rng.choice([1, 3])), "float32")
        net.add("MatMul", lambda a, w: _sum_products(a[..., None] * w, -2), x, weight, exact=False)


def _sum_products(products: Array, axis: int) -> Array:
    """Return sums; written so that no product is left out, or put in, for its zero."""
    total = np.zeros(np.delete(products.shape, axis), products.dtype)
    for part in np.moveaxis(products, axis, 0):
        total = total + part
    return total


def add_convolve(net: VaryingNetwork, x: Drawn) -> None:
    """Convolve over the last axis, or the last two; cells of the padding are zeros."""
    rng = net.rng
    spatial = x.rank - 2
    if x.dtype != "float32" or spatial not in (1, 2) or not isinstance(x.dims[1], int):
        return
    channels = x.dims[1]
    group = rng.choice([1, channels])
    made = rng.choice([1, 2]) * group
    kernel = [rng.choice([1, 2, 3]) for _ in range(spatial)]
    pads = [rng.choice([0, 1]) for _ in range(2 * spatial)]
    strides = [rng.choice([1, 1, 2]) for _ in range(spatial)]
    if any(
        length + pads[i] + pads[i + spatial] < kernel[i]
        for value in x.values
        for i, length in enumerate(value.shape[2:])
    ):
        return
    weight = net.array((made, channels // group, *kernel), "float32")
    net.add(
        "Conv",
        lambda a, w: _compute_convolution(a, w, pads, strides, group),
        *(x, weight),
        exact=False,
        pads=pads,
        strides=strides,
        group=group,
    )


def _compute_convolution(
    x: Array, w: Array, pads: list[int], strides: list[int], group: int
) -> Array:
    spatial = x.ndim - 2
    lengths = [
        (x.shape[2 + i] + pads[i] + pads[i + spatial] - w.shape[2 + i]) // strides[i] + 1
        for i in range(spatial)
    ]
    sides = zip(pads[:spatial], pads[spatial:], strict=True)
    x = np.pad(x, [(0, 0), (0, 0), *sides])
    y = np.zeros((len(x), len(w), *lengths), x.dtype)
    per_group, made = w.shape[1], len(w) // group
    for place in np.ndindex(*lengths):
        for tap in np.ndindex(*w.shape[2:]):
            at = [place[i] * strides[i] + tap[i] for i in range(spatial)]
            for channel in range(len(w)):
                first = channel // made * per_group
                for inner in range(per_group):
                    y[(slice(None), channel, *place)] += (
                        x[(slice(None), first + inner, *at)] * w[(channel, inner, *tap)]
                    )
    return y


def add_call(net: VaryingNetwork, x: Drawn) -> None:
    functions = [
        one for one in net.drawn if one.rank == 2 and one.dtype == "float32" and one.is_exact
    ]
    if not functions:
        return
    x = net.rng.choice(functions)
    which = net.rng.choice(FUNCTIONS)
    if any(not a.shape[0] or not a.shape[1] for a in x.values):
        return

    def compute(a: Array) -> Any:
        found = which(a)
        return np.array([row.copy() for row in found]) if which is yield_rows else found

    net.add(which, compute, x, outputs=2 if which is pick_with_places else 1)


def add_loop(net: VaryingNetwork, x: Drawn) -> None:
    """Add a tensor to a state as often as a value says; the state may grow."""
    counts = [one for one in net.drawn if one.dtype == "int64" and not one.rank and one.is_exact]
    counts = [one for one in counts if all(0 <= a < 6 for a in one.values)]
    if not counts or x.dtype not in ("float32", "int64"):
        return
    grows = net.rng.random() < 0.5 and x.rank
    b = pl.GraphBuilder("body")
    b.input("i", "int64", ())
    going = b.input("going", "bool", ())
    dims = tuple("abcd"[: x.rank])
    state = b.input("state", x.dtype, ("k", *dims[1:]) if grows else dims)
    other = b.input("other", x.dtype, dims)
    b.output("goes_on", b.op("Identity", going))
    b.output("next", b.op("Concat", state, other, axis=0) if grows else b.op("Max", state, other))
    b.output("row", b.op("Size", state))

    def compute(count: Array, _: Any, state: Array, other: Array) -> tuple[Array, Array]:
        rows = []
        for _ in range(int(count)):
            rows.append(state.size)
            state = np.concatenate([state, other]) if grows else np.maximum(state, other)
        return state, np.array(rows, np.int64)

    net.add(
        "Loop",
        compute,
        *(net.rng.choice(counts), np.bool_(True), x, x),
        outputs=2,
        body=b.build(),
        captured=1,
    )


FUNCTIONS = (pick_rows, pick_columns, pick_with_places, yield_rows)
STEPS: Sequence[Step] = (
    *(add_unary, add_unary, add_soft, add_cast, add_binary, add_binary, add_binary, add_where),
    *(add_transpose, add_flatten, add_reshape_like, add_unsqueeze, add_squeeze, add_concat),
    *(add_concat, add_slice, add_slice, add_computed_slice, add_range, add_gather, add_gather_nd),
    *(add_non_zero, add_non_zero, add_non_zero_of_constant, add_compress, add_compress),
    *(add_unique, add_shape, add_shape, add_expand, add_pad, add_tile, add_split, add_reduce),
    *(add_arg_max, add_cum_sum, add_one_hot, add_product, add_convolve, add_convolve, add_call),
    *(add_call, add_loop),
)
