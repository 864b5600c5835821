"""Gradients of reads and writes at indexed places."""

from __future__ import annotations

from ..operators.slicing import list_slices
from ..values.dims import normalize_axis, slice_range
from .elementwise import Gradients
from .formula import Term
from .movement import add_along, make_range
from .registry import Adjoint, gradient


@gradient("Slice")
def slice_(at: Adjoint) -> Gradients:
    x = at.input(0)
    # One Pad if bounds are known and steps are 1; otherwise axis by axis.
    pads = _find_pads(at, x)
    if pads is not None:
        yield 0, at.dy.op("Pad", at.formula.constant(pads))
        return
    starts, ends, axes, paces = at.input(1), at.input(2), at.optional(3), at.optional(4)
    value = None if axes is None else axes.value
    if (axes is not None and value is None) or starts.spec.shape is None:
        raise at.refused_error("its axes are computed", "pass them as a constant")
    count = starts.spec.shape[0]
    if not isinstance(count, int):
        raise at.refused_error(
            "how many axes it slices is not known", "pass its axes as a constant"
        )
    listed = range(count) if value is None else [int(axis) for axis in value.reshape(-1)]
    # Axis by axis: slices of different axes do not interfere, so the order does not matter.
    made = at.dy
    for place, axis in enumerate(listed):
        made = _undo_slice(
            made, x, axis % x.rank, [_pick_bound(b, place) for b in (starts, ends, paces)]
        )
    yield 0, made


def _find_pads(at: Adjoint, x: Term) -> list[int] | None:
    """Return the cells around the slice that `at` takes of `x`; None unless they are fixed."""
    given = [None if term is None else term.value for term in map(at.optional, range(1, 5))]
    present = [at.optional(index) is not None for index in range(1, 5)]
    if any(here and value is None for here, value in zip(present, given, strict=True)):
        return None
    starts, ends, axes, paces = (
        None if value is None else [int(v) for v in value.reshape(-1)] for value in given
    )
    pads = [0] * (2 * x.rank)
    assert starts is not None
    assert ends is not None
    for axis, bounds in list_slices(x.rank, starts, ends, axes, paces).items():
        length = (x.spec.shape or ())[axis]
        if bounds[2] != 1 or not isinstance(length, int):
            return None
        taken = slice_range(length, *bounds)
        # An empty slice has no first cell; the code below adds nothing for its axis.
        if not taken:
            return None
        pads[axis], pads[axis + x.rank] = taken[0], length - 1 - taken[-1]
    return pads


def _pick_bound(bounds: Term | None, place: int) -> Term | None:
    return None if bounds is None else bounds.op("Gather", bounds.formula.constant([place]))


def _undo_slice(dy: Term, x: Term, axis: int, bounds: list[Term | None]) -> Term:
    """Return zeros like `x`, with `dy` added to the cells that `bounds` sliced along `axis`."""
    formula = x.formula
    length = formula.shape_of(x, axis, axis + 1)
    starts, ends, paces = bounds
    cells = make_range(length).op("Slice", starts, ends, formula.constant([0]), paces)
    return add_along(dy, cells, length, axis)


@gradient("Gather")
def gather(at: Adjoint) -> Gradients:
    x, indices = at.input(0), at.input(1)
    axis = normalize_axis(at["axis"], x.rank)
    formula, inner = at.formula, indices.rank
    if inner == 1:
        yield 0, add_along(at.dy, indices, formula.shape_of(x, axis, axis + 1), axis)
        return
    count = formula.size_of(indices)
    # Slices are added by a list of places, so indices of several axes are flattened.
    flat = indices.reshaped(count)
    before, behind = formula.shape_of(x, 0, axis), formula.shape_of(x, axis + 1)
    rows = at.dy.reshaped(formula.joined(before, count, behind))
    yield 0, add_along(rows, flat, formula.shape_of(x, axis, axis + 1), axis)


@gradient("GatherElements")
def gather_elements(at: Adjoint) -> Gradients:
    # Each element is added to its source, or places are compared if each line has one.
    x, indices = at.input(0), at.input(1)
    if _picks_one(x, indices, at["axis"]):
        yield 0, at.dy.where(_mark_chosen(x, indices, normalize_axis(at["axis"], x.rank)))
    else:
        yield 0, _scatter_add(at.formula.like(x, 0), indices, at.dy, at["axis"])


def _picks_one(x: Term, indices: Term, axis: int) -> bool:
    """Return whether `indices` surely pick one element from each line of `x` along `axis`."""
    lines, own = x.spec.shape, indices.spec.shape
    if lines is None or own is None:
        return False
    axis = normalize_axis(axis, len(lines))
    return own == (*lines[:axis], 1, *lines[axis + 1 :])


def _mark_chosen(x: Term, indices: Term, axis: int) -> Term:
    formula = x.formula
    length = formula.shape_of(x, axis, axis + 1)
    places = indices.cast("int64")
    places = places.where((places < 0).op("Not"), places + length)
    inner = formula.constant([1] * (x.rank - 1 - axis))
    return make_range(length).reshaped(formula.joined(length, inner)).equals(places)


def _scatter_add(zeros: Term, indices: Term, updates: Term, axis: int) -> Term:
    return zeros.op("ScatterElements", indices, updates, axis=axis, reduction="add")


@gradient("GatherND")
def gather_nd(at: Adjoint) -> Gradients:
    x, indices, batch = at.input(0), at.input(1), at["batch_dims"]
    formula = at.formula
    rows = indices.cast("int64")
    for axis in range(batch):  # its own place in the batch leads each row
        numbers = make_range(formula.shape_of(x, axis, axis + 1))
        beside = [i for i in range(indices.rank) if i != axis]
        column = numbers.op("Unsqueeze", formula.constant(beside))
        shape = formula.joined(
            formula.shape_of(indices, 0, indices.rank - 1), formula.constant([1])
        )
        rows = formula.op("Concat", *_lead_columns(rows, column.expanded(shape), axis), axis=-1)
    yield 0, formula.like(x, 0).op("ScatterND", rows, at.dy, reduction="add")


def _lead_columns(rows: Term, column: Term, axis: int) -> list[Term]:
    """Return the first `axis` columns of `rows`, for batch axes, then `column`, then the others."""
    if axis == 0:
        return [column, rows]
    formula = rows.formula
    last = formula.constant([-1])
    before = rows.op("Slice", formula.constant([0]), formula.constant([axis]), last)
    behind = rows.op("Slice", formula.constant([axis]), formula.constant([2**31 - 1]), last)
    return [before, column, behind]


@gradient("TopK")
def top_k(at: Adjoint) -> Gradients:
    zeros = at.formula.like(at.input(0), 0)
    yield 0, _scatter_add(zeros, at.output(1), at.dy, at["axis"])


@gradient("OneHot")
def one_hot(at: Adjoint) -> Gradients:
    values, dy = at.input(2), at.dy
    bounds = at.formula.constant([0, 1], values.dtype)
    hot = at.input(0).op("OneHot", at.input(1), bounds, axis=at["axis"])
    on = (dy * hot).op("ReduceSum", keepdims=False)
    # The off value has the rest of the whole sum.
    off = dy.op("ReduceSum", keepdims=False) - on
    axis = at.formula.constant([0])
    yield 2, at.formula.op("Concat", off.op("Unsqueeze", axis), on.op("Unsqueeze", axis), axis=0)


class _Places:
    """Reads and writes at the places of one kind of indices."""

    def __init__(self, at: Adjoint, indices: Term) -> None:
        self._indices = indices
        self._elements = at.node.op == "ScatterElements"
        self._axis = {"axis": at["axis"]} if self._elements else {}

    def read(self, x: Term) -> Term:
        op = "GatherElements" if self._elements else "GatherND"
        return x.op(op, self._indices, **self._axis)

    def write(self, x: Term, updates: Term, how: str = "none") -> Term:
        op = "ScatterElements" if self._elements else "ScatterND"
        return x.op(op, self._indices, updates, reduction=how, **self._axis)


def _differentiate_scatter(at: Adjoint) -> Gradients:
    # Replaced data get no gradient; replaced updates do, since it is undefined which update stays.
    data, updates, dy, y = at.input(0), at.input(2), at.dy, at.output()
    how, places = at["reduction"], _Places(at, at.input(1))
    if how == "none":
        yield 0, places.write(dy, at.formula.like(updates, 0))
        yield 2, places.read(dy)
    elif how == "add":
        yield 0, dy
        yield 2, places.read(dy)
    elif how == "mul":
        # y = data · Π updates: the slope of each factor is the product of the others, y over it.
        yield 0, dy * places.write(at.formula.like(data, 1), updates, "mul")
        yield 2, places.read(dy * y) / updates
    else:
        chosen = data.equals(y).cast(data.dtype)
        written = updates.equals(places.read(y)).cast(data.dtype)
        # Equal extrema share the gradient equally.
        share = dy / places.write(chosen, written, "add")
        yield 0, share * chosen
        yield 2, places.read(share) * written


gradient("ScatterElements")(_differentiate_scatter)
gradient("ScatterND")(_differentiate_scatter)


@gradient("TensorScatter")
def tensor_scatter(at: Adjoint) -> Gradients:
    # The gradient goes to the update where it was written, and to the cache elsewhere.
    dy, update, starts, formula = at.dy, at.input(1), at.optional(2), at.formula
    axis = normalize_axis(at["axis"], update.rank)
    if at.wants(0):
        yield 0, dy.op("TensorScatter", formula.like(update, 0), starts, axis=axis, mode=at["mode"])
    if at.wants(1):
        places = make_range(formula.shape_of(update, axis, axis + 1))
        if starts is not None:
            places = starts.cast("int64").op("Unsqueeze", formula.constant([1])) + places
        if at["mode"] == "circular":
            # A ring: writes beyond the end continue at the beginning.
            places = places.op("Mod", formula.shape_of(dy, axis, axis + 1))
        beside = [i for i in range(update.rank) if i not in ((0, axis) if starts else (axis,))]
        places = places.op("Unsqueeze", formula.constant(beside)) if beside else places
        places = places.expanded(formula.shape_of(update))
        yield 1, dy.op("GatherElements", places, axis=axis)


@gradient("Compress")
def compress(at: Adjoint) -> Gradients:
    x, formula, axis = at.input(0), at.formula, at["axis"]
    kept = at.input(1).op("NonZero").reshaped(formula.constant([-1]))
    if axis is not None:
        axis = normalize_axis(axis, x.rank)
        yield 0, add_along(at.dy, kept, formula.shape_of(x, axis, axis + 1), axis)
        return
    size = formula.size_of(x)
    yield 0, add_along(at.dy, kept, size, 0).reshaped(formula.shape_of(x))
