"""Analysis of rows: where those of a batch lie in each tensor, and which nodes mix them.

Graphs for any number of rows are run with rows of one item or of several, however many there are.
That is right only if each row is computed from its own row of the inputs. A rule per operator says
where rows lie in its outputs, given where they lie in its inputs; elementwise operators share one.
Rows that are cut into equal runs along the first axis, as by a Reshape to fewer axes, lie on it.

Nothing is known of functions, of control flow, and of operators without a rule: rows lie `OPEN`
there, and the author of the graph answers for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from math import prod
from typing import TypeAlias, TypeVar

import numpy as np

from ..core.ir import Graph, Node
from ..core.nested import list_graphs
from ..core.operator import Call, Specs
from ..core.traits import Trait
from ..values.dims import UNKNOWN, normalize_axis
from ..values.registry import Registry
from ..values.tensor import Array


class Rows(Enum):
    """Where rows lie if not along one axis."""

    NONE = "none"
    """The tensor is the same for all rows."""
    OPEN = "open"
    """Nothing is known."""
    MIXED = "mixed"
    """Elements follow from several rows, or from a row's place among the others."""


RowAxis: TypeAlias = int | Rows
"""The axis along which rows lie, counted from the front."""

Places: TypeAlias = Sequence[RowAxis]
Rule: TypeAlias = Callable[[Call, Places, Specs], RowAxis | Places]
"""Returns where rows lie in the outputs, one place for all of them or one for each."""

INT_MAX = 2**31 - 1
"""The end of a Slice without an end, or a larger number."""

R = TypeVar("R", bound=Rule)
NONE, OPEN, MIXED = Rows

_rules = Registry[str, Rule]("operator {!r} has two rules for rows")


def find_mixing_node(graph: Graph, inputs: Mapping[str, RowAxis]) -> Node | None:
    places: dict[str, RowAxis] = {**dict.fromkeys(graph.constants, NONE), **inputs}
    for node in graph.nodes:
        given = [places.get(name, NONE) for name in node.inputs]
        found = locate_rows(graph, node, given)
        if MIXED in found:
            return node
        for nested in () if node.op == "Each" else list_graphs(node):  # whose rows mix with none
            # Rows enter by rules of its own: only nodes that mix any input are found.
            inside = find_mixing_node(nested, dict.fromkeys(nested.inputs, OPEN))
            if inside is not None:
                return inside
        places.update(zip(node.outputs, found, strict=False))
    return None


def locate_rows(graph: Graph, node: Node, given: Places) -> Places:
    open_ = [OPEN] * len(node.outputs)
    if all(place is NONE for place in given) and node.operator.function is None:
        return [NONE] * len(node.outputs)
    rule, call = _find_rule(node), graph.call(node)
    shapes = [spec is None or spec.shape is not None for spec in call.inputs]
    if rule is None or not all(shapes):
        return open_
    found = rule(call, given, graph.output_specs(node))
    if found is MIXED and OPEN in given and rule not in (_mix_all, _reshape):
        found = OPEN
    every = [found] * len(node.outputs) if isinstance(found, int | Rows) else found
    return every[: len(node.outputs)]


def _find_rule(node: Node) -> Rule | None:
    default = _align if Trait.ELEMENTWISE in node.operator.traits else None
    return _rules.get(node.op, default)


def register_rule(*ops: str) -> Callable[[R], R]:
    """Register the rule of operators; it is not asked if an input that it names is `OPEN`."""

    def register(rule: R) -> R:
        for op in ops:
            _rules.register(op, rule)
        return rule

    return register


def _rank(call: Call, index: int) -> int:
    return len(call.spec(index).shape or ()) if call.has(index) else 0


def _get_value(call: Call, index: int) -> Array | None:
    return call.value(index) if call.has(index) else None


@register_rule("Fused")
def _align(call: Call, given: Places, outputs: Specs) -> RowAxis:
    # Inputs are broadcast: their last axes lie on each other.
    if OPEN in given:
        return OPEN
    ranks = [0 if spec is None else len(spec.shape or ()) for spec in call.inputs]
    found = {
        place - rank for place, rank in zip(given, ranks, strict=True) if isinstance(place, int)
    }
    if len(found) > 1:
        return MIXED
    place = found.pop()
    others = (index for index, one in enumerate(given) if one is NONE)
    return MIXED if any(_has_places(call, index, place) for index in others) else max(ranks) + place


def _has_places(call: Call, index: int, axis: int) -> bool:
    """Return whether shared input `index` has several cells on `axis`, counted from the end."""
    shape = () if call.inputs[index] is None else call.spec(index).shape or ()
    return 0 < -axis <= len(shape) and isinstance(shape[axis], int) and shape[axis] != 1


def _keep_place(given: Places) -> RowAxis:
    """Keep rows where they lie in the first input `given`, if all rows share the other inputs."""
    return given[0] if all(place is NONE for place in given[1:]) else OPEN


def _are_samples(*indices: int) -> Rule:
    """Return the rule of operators with samples along the first axis of these inputs."""
    return lambda call, given, outputs: _locate_samples(call, given, indices)


def _locate_samples(call: Call, given: Places, indices: Sequence[int]) -> RowAxis:
    if OPEN in given:
        return OPEN
    for index, place in enumerate(given):
        is_sampled = index in indices
        if place is NONE and is_sampled and _has_places(call, index, -_rank(call, index)):
            return MIXED
        if place is not NONE and not (is_sampled and place == 0):
            return MIXED
    return 0


@register_rule("MaxPool")
def _find_maxima(call: Call, given: Places, outputs: Specs) -> Places:
    # Indices count the cells of all rows.
    return [_locate_samples(call, given, [0]), OPEN]


for _op in (
    *("AveragePool", "DepthToSpace", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"),
    *("LpPool", "SpaceToDepth", "InstanceNormalization", "GroupNormalization"),
    *("Conv", "ConvInteger", "ConvTranspose", "QLinearConv", "Col2Im", "STFT"),
):
    register_rule(_op)(_are_samples(0))
register_rule("AffineGrid")(_are_samples(0))
register_rule("GridSample")(_are_samples(0, 1))
register_rule("DeformConv")(_are_samples(0, 2, 4))
register_rule("LinearAttention")(_are_samples(*range(6)))


@register_rule("Attention")
def _attend(call: Call, given: Places, outputs: Specs) -> RowAxis:
    # Masks of fewer axes than four are those of all samples.
    if len(given) > 3 and isinstance(given[3], int) and _rank(call, 3) < 4:
        return MIXED
    return _locate_samples(call, given, range(7))


@register_rule("Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "CumSum", "CumProd", "TopK")
def _go_along_axis(call: Call, given: Places, outputs: Specs) -> RowAxis:
    # Elements of a line along an axis are computed together.
    if "axis" in call.attributes:
        axis = int(call.attributes["axis"])
    else:
        value = _get_value(call, 1)
        if value is None:
            return OPEN
        axis = int(value.reshape(()))
    row = _keep_place(given)
    return MIXED if row == normalize_axis(axis, _rank(call, 0)) else row


@register_rule("DFT")
def _transform(call: Call, given: Places, outputs: Specs) -> RowAxis:
    value = _get_value(call, 2) if len(call.inputs) > 2 else np.array(-2)
    row = _keep_place(given)
    if value is None:
        return OPEN
    last = _rank(call, 0) - 1  # of real and imaginary parts
    return MIXED if row in (last, normalize_axis(int(value.reshape(())), last + 1)) else row


@register_rule("LayerNormalization", "RMSNormalization")
def _go_from_axis_on(call: Call, given: Places, outputs: Specs) -> RowAxis:
    row, axis = _keep_place(given), normalize_axis(call.attributes["axis"], _rank(call, 0))
    return MIXED if isinstance(row, int) and row >= axis else row


@register_rule("LRN")
def _go_across_channels(call: Call, given: Places, outputs: Specs) -> RowAxis:
    row = _keep_place(given)
    return MIXED if row == 1 else row


@register_rule("BatchNormalization")
def _normalize_batch(call: Call, given: Places, outputs: Specs) -> RowAxis:
    return MIXED if call.attributes["training_mode"] else _go_across_channels(call, given, outputs)


@register_rule("MeanVarianceNormalization")
def _normalize_axes(call: Call, given: Places, outputs: Specs) -> RowAxis:
    axes = {normalize_axis(axis, _rank(call, 0)) for axis in call.attributes["axes"]}
    return MIXED if given[0] in axes else given[0]


@register_rule("DynamicQuantizeLinear")
def _mix_all(call: Call, given: Places, outputs: Specs) -> RowAxis:
    # Scales follow from all elements, wherever rows lie.
    return MIXED


@register_rule("ConvWeightsGradient", "EyeLike")
def _mix(call: Call, given: Places, outputs: Specs) -> RowAxis:
    return MIXED


@register_rule("QuantizeLinear", "DequantizeLinear")
def _scale(call: Call, given: Places, outputs: Specs) -> RowAxis:
    # Scales of a granule each belong to places along an axis.
    row = _keep_place(given)
    per_tensor = _rank(call, 1) == 0 or call.spec(1).shape == (1,)
    return row if per_tensor or row != call.attributes["axis"] % _rank(call, 0) else MIXED


@register_rule("CastLike", "Dropout", "Bernoulli", "After")
def _take_first(call: Call, given: Places, outputs: Specs) -> RowAxis:
    return given[0]


@register_rule(*(f"Reduce{op}" for op in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min")))
@register_rule(*(f"Reduce{op}" for op in ("Prod", "Sum", "SumSquare")))
def _reduce(call: Call, given: Places, outputs: Specs) -> RowAxis:
    axes = _get_value(call, 1)
    if len(call.inputs) > 1 and call.has(1) and axes is None:
        return OPEN
    listed = [] if axes is None else axes.reshape(-1).tolist()
    if not listed:
        return given[0] if call.attributes["noop_with_empty_axes"] else MIXED
    return _remove_axes(call, given[0], listed, mixes=True, keeps=call.attributes["keepdims"])


@register_rule("ArgMax", "ArgMin")
def _choose(call: Call, given: Places, outputs: Specs) -> RowAxis:
    axes, keeps = [call.attributes["axis"]], call.attributes["keepdims"]
    return _remove_axes(call, given[0], axes, mixes=True, keeps=keeps)


def _remove_axes(
    call: Call, row: RowAxis, axes: Sequence[int], *, mixes: bool, keeps: bool = False
) -> RowAxis:
    if not isinstance(row, int):
        return row
    gone = {normalize_axis(axis, _rank(call, 0)) for axis in axes}
    if row in gone:
        return MIXED if mixes else OPEN
    return row if keeps else row - sum(axis < row for axis in gone)


@register_rule("Squeeze")
def _squeeze(call: Call, given: Places, outputs: Specs) -> RowAxis:
    axes = _get_value(call, 1) if len(call.inputs) > 1 else None
    return OPEN if axes is None else _remove_axes(call, given[0], axes.tolist(), mixes=False)


@register_rule("Unsqueeze")
def _unsqueeze(call: Call, given: Places, outputs: Specs) -> RowAxis:
    axes, row = _get_value(call, 1), given[0]
    if axes is None or not isinstance(row, int):
        return OPEN
    added = {normalize_axis(axis, _rank(call, 0) + axes.size) for axis in axes.tolist()}
    left = (axis for axis in range(_rank(call, 0) + axes.size) if axis not in added)
    return [*left][row]


@register_rule("Transpose")
def _transpose(call: Call, given: Places, outputs: Specs) -> RowAxis:
    row, perm = given[0], call.attributes["perm"]
    order = range(_rank(call, 0))[::-1] if perm is None else perm
    return [*order].index(row) if isinstance(row, int) else row


@register_rule("Reshape", "Flatten")
def _reshape(call: Call, given: Places, outputs: Specs) -> RowAxis:
    # Rows stay where they come in memory, in runs of any shape, if as much is in front of them.
    shape, row = outputs[0].shape, given[0]
    if row is NONE and OPEN not in given:
        return NONE
    dims = call.spec(0).shape or ()
    in_front = dims[:row] if isinstance(row, int) else (UNKNOWN,)
    if isinstance(row, int) and shape is not None and isinstance(dims[row], str):
        known = {*dims[:row], *dims[row + 1 :]}
        if all(isinstance(dim, int) or dim in known for dim in shape):
            return MIXED  # its elements are those of one row
    if shape is None or not all(isinstance(dim, int) for dim in in_front):
        return OPEN
    left = prod(int(dim) for dim in in_front)
    for axis, dim in enumerate(shape):
        if left == 1 and dim != 1:
            return axis
        if not isinstance(dim, int) or not dim or left % dim:
            return OPEN
        left //= dim
    return 0 if row == 0 else OPEN


@register_rule("If")
def _branch(call: Call, given: Places, outputs: Specs) -> RowAxis:
    # All rows take the branch that the condition says.
    return MIXED if isinstance(given[0], int) else OPEN


@register_rule("ConstantOfShape")
def _fill(call: Call, given: Places, outputs: Specs) -> RowAxis:
    # One value everywhere, in any number of rows.
    return MIXED if isinstance(given[0], int) else NONE


@register_rule("Expand")
def _expand(call: Call, given: Places, outputs: Specs) -> RowAxis:
    # Axes are added in front; the shape may follow from the number of rows.
    row, shape, value = given[0], outputs[0].shape, _get_value(call, 1)
    if not isinstance(row, int) or shape is None:
        return row if row is NONE else OPEN
    behind = row - _rank(call, 0)
    if value is not None and value.size >= -behind and value[behind] != 1:
        return MIXED
    return len(shape) + behind


@register_rule("Concat")
def _concat(call: Call, given: Places, outputs: Specs) -> RowAxis:
    row = _align(call, given, outputs)
    axis = normalize_axis(call.attributes["axis"], _rank(call, 0))
    return MIXED if row == axis else row


@register_rule("Split")
def _split(call: Call, given: Places, outputs: Specs) -> RowAxis:
    axis = normalize_axis(call.attributes["axis"], _rank(call, 0))
    return MIXED if given[0] == axis else given[0]


@register_rule("Trilu", "Det", "Cofactors")
def _go_across_matrices(call: Call, given: Places, outputs: Specs) -> RowAxis:
    row = _keep_place(given)
    return MIXED if isinstance(row, int) and row >= _rank(call, 0) - 2 else row


@register_rule("Slice")
def _slice(call: Call, given: Places, outputs: Specs) -> RowAxis:
    starts, axes = _get_value(call, 1), _get_value(call, 3) if len(call.inputs) > 3 else None
    listed = axes.tolist() if axes is not None else range(0 if starts is None else starts.size)
    if starts is None and axes is None:
        return OPEN
    row = _keep_place(given)
    places = [index for index, axis in enumerate(listed) if axis % _rank(call, 0) == row]
    # Others read the whole axis, too: only the number of rows says so.
    return row if all(_is_endless(call, index) for index in places) else OPEN


def _is_endless(call: Call, index: int) -> bool:
    """Return whether the Slice in `call` takes all of its axis `index`, however long."""
    starts, ends = _get_value(call, 1), _get_value(call, 2)
    if len(call.inputs) > 4 and call.has(4):
        steps = _get_value(call, 4)
        if steps is None or steps[index] != 1:
            return False
    return starts is not None and ends is not None and not starts[index] and ends[index] >= INT_MAX


@register_rule("Pad", "Tile")
def _repeat_along_axes(call: Call, given: Places, outputs: Specs) -> RowAxis:
    amounts, row = _get_value(call, 1), _keep_place(given)
    if amounts is None or not isinstance(row, int) or len(amounts) % _rank(call, 0):
        return OPEN
    if len(call.inputs) > 3 and call.has(3):
        return OPEN
    changed = amounts.reshape(-1, _rank(call, 0))[:, row] - (len(amounts) == _rank(call, 0))
    return MIXED if changed.any() else row


@register_rule("Gather")
def _gather(call: Call, given: Places, outputs: Specs) -> RowAxis:
    # Gather: the data may have rows, read at the same indices, or the indices.
    axis = normalize_axis(call.attributes["axis"], _rank(call, 0))
    data, places = given
    if OPEN in given:
        return OPEN
    if isinstance(places, int):
        return axis + places if data is NONE else MIXED
    if data == axis:
        return MIXED
    assert isinstance(data, int)
    return data if data < axis else data + _rank(call, 1) - 1


@register_rule("GatherElements")
def _gather_elements(call: Call, given: Places, outputs: Specs) -> RowAxis:
    axis = normalize_axis(call.attributes["axis"], _rank(call, 0))
    data, places = given
    if OPEN in given or (data is NONE) != (places is NONE):
        return OPEN
    return MIXED if data != places or data == axis else data


@register_rule("OneHot")
def _mark(call: Call, given: Places, outputs: Specs) -> RowAxis:
    row, axis = _keep_place(given), normalize_axis(call.attributes["axis"], _rank(call, 0) + 1)
    return row + (row >= axis) if isinstance(row, int) else row


@register_rule("ReverseSequence")
def _reverse(call: Call, given: Places, outputs: Specs) -> RowAxis:
    if OPEN in given:
        return OPEN
    return MIXED if given[0] == call.attributes["time_axis"] else given[0]


@register_rule("MatMul", "MatMulInteger")
def _multiply(call: Call, given: Places, outputs: Specs) -> RowAxis:
    return _multiply_at(call, given, 0, 1)


@register_rule("QLinearMatMul")
def _multiply_quantized(call: Call, given: Places, outputs: Specs) -> RowAxis:
    return _multiply_at(call, given, 0, 3)


def _multiply_at(call: Call, given: Places, left: int, right: int) -> RowAxis:
    """Locate rows in `call`: those of the factor `left`, columns of `right`, or whole matrices."""
    others = [place for index, place in enumerate(given) if index not in (left, right)]
    a, b = given[left], given[right]
    if OPEN in given or any(place is not NONE for place in others):
        return OPEN
    ranks = _rank(call, left), _rank(call, right)
    rank = max(*ranks, 2) - (ranks[0] == 1) - (ranks[1] == 1)
    # Counted from the end: the last axis of the left factor and the last but one of the right are
    # summed over. Vectors have that axis alone.
    from_behind = [
        None if not isinstance(place, int) else (place - size if size > 1 else -1 - side)
        for side, (place, size) in enumerate(zip((a, b), ranks, strict=True))
    ]
    p, q = from_behind
    if p == -1 or q == -2:
        return MIXED
    if p is not None and q is not None:
        return rank + p if p == q and p < -2 else MIXED
    place = p if p is not None else q
    assert place is not None
    if place < -2 and _has_places(call, right if q is None else left, place):
        return MIXED
    if any(
        _has_places(call, index, -1) for index in range(len(given)) if index not in (left, right)
    ):
        return OPEN
    gone = place < -1 and ranks[1] == 1  # the axis of columns is not there
    return rank + place + gone


@register_rule("Gemm")
def _multiply_matrices(call: Call, given: Places, outputs: Specs) -> RowAxis:
    a, b, *c = given
    if OPEN in given:
        return OPEN
    kept = [place for place, axis in ((a, 0), (b, 1)) if place is not NONE]
    inner_a, inner_b = 1 - int(call.attributes["transA"]), int(call.attributes["transB"])
    if len(kept) > 1 or a == inner_a or b == inner_b:
        return MIXED
    out = 0 if a is not NONE else 1
    added = [place for place in c if isinstance(place, int)]
    aligned = [place + 2 - _rank(call, 2) for place in added]
    if not kept:
        side = aligned[0]  # rows of the left factor, or columns of the right one
        axis = (1 - inner_a, 1 - inner_b)[side]
        return MIXED if _has_places(call, side, axis - 2) else side
    if not added and len(given) > 2 and _has_places(call, 2, out - 2):
        return MIXED
    return out if all(place == out for place in aligned) else MIXED


@register_rule("Einsum")
def _sum_products(call: Call, given: Places, outputs: Specs) -> RowAxis:
    equation = str(call.attributes["equation"]).replace(" ", "")
    if OPEN in given or "..." in equation or "->" not in equation:
        return OPEN
    terms, result = equation.split("->")
    letters = {
        term[place]
        for term, place in zip(terms.split(","), given, strict=True)
        if isinstance(place, int)
    }
    if len(letters) > 1 or not letters <= set(result):
        return MIXED
    letter = letters.pop()
    # A letter that a row has twice, or that an input without rows has too, ties rows to places.
    tied = any(
        term.count(letter) > (1 if isinstance(place, int) else 0)
        for term, place in zip(terms.split(","), given, strict=True)
    )
    return MIXED if tied else result.index(letter)


@register_rule("LSTM", "GRU", "RNN")
def _recur(call: Call, given: Places, outputs: Specs) -> Places | RowAxis:
    # The sequence comes first unless the layout is 1; states are of (directions, batch).
    if OPEN in given or any(place is not NONE for place in given[1:4]):
        return OPEN
    batch = call.attributes["layout"] == 1
    wanted = (0 if batch else 1, *[NONE] * 3, 0, *[0 if batch else 1] * 2, NONE)
    for index, (place, at) in enumerate(zip(given, wanted, strict=False)):
        if place is not NONE and place != at:
            return MIXED
        if (
            isinstance(at, int)
            and place is NONE
            and _has_places(call, index, at - _rank(call, index))
        ):
            return MIXED
    return [0] * 3 if batch else [2, 1, 1]


@register_rule("Resize")
def _resize(call: Call, given: Places, outputs: Specs) -> RowAxis:
    before, after = call.spec(0).shape, outputs[0].shape
    if given[0] != 0 or before is None or after is None:
        return OPEN
    return MIXED if before[0] != after[0] else _locate_samples(call, given, [0])
