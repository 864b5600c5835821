"""Evaluate the rules of files: read facts of a node, and make the nodes that replace it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..core.ir import Node
from ..core.operator import find_operator
from ..core.ordering import sort_nodes
from ..passes.rewriting import Rewriter
from ..values.errors import ParseError
from ..values.tensor import to_exact
from .expressions import Formula, Path

_FIX = "correct the rule"

MOST_PLACES = 1000
"""Limit of inputs or outputs of a new node."""


class UnknownError(Exception):
    """A requested fact is unknown or absent."""


class RuleTensor(str):
    """The name of a tensor, distinct from text."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class New:
    """A new node: its operator, and its name in details."""

    op: str
    name: str


@dataclass(frozen=True, slots=True)
class Detail:
    """An input, output or attribute of a new node: a path of three, and its value."""

    path: Path
    formula: Formula


@dataclass(slots=True)
class _Draft:
    op: str
    inputs: dict[int, str] = field(default_factory=dict)
    outputs: dict[int, str] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)


def read_value(path: Path, rewriter: Rewriter, node: Node) -> Any:
    """Return the value of `path`, which starts with ``self``, for `node` in `rewriter`.

    Raises UnknownError for a symbolic length or an absent input, ParseError for other wrong paths.
    """
    match path:
        case ("self", "params", str(name), *index) if name in node.operator.attributes:
            return _get_element(node.attributes.get(name), index, path)
        case ("self", "ins" | "outs" as side, key, *rest):
            names = node.inputs if side == "ins" else node.outputs
            place = place_of(node.op, side, key)
            # Optional ones may be omitted at the end, or have an empty name.
            tensor = names[place] if place < len(names) else ""
            if not rest:
                return RuleTensor(tensor) if tensor else None
            if not tensor:
                raise UnknownError
            return _read_fact(tensor, rest, path, rewriter)
    raise _nothing_there_error(path)


def make_replacement(
    new: Sequence[New], details: Sequence[Detail], rewriter: Rewriter, node: Node
) -> list[Node]:
    if details:
        return _Replacing(new, rewriter, node).nodes(details)
    known = find_operator(new[0].op).attributes
    # Without details, only the operator and unknown attributes change.
    kept = {name: value for name, value in node.attributes.items() if name in known}
    return [_make_node(rewriter, node.name, new[0].op, node.inputs, node.outputs, kept)]


def place_of(op: str, side: str, key: str | int) -> int:
    """Return the position of `key`, a name or number, on one `side` of `op`: inputs or outputs."""
    if isinstance(key, int):
        return key
    operator = find_operator(op)
    formals = operator.inputs if side == "ins" else operator.outputs
    names = [one.rstrip("?*+") for one in formals.split()]
    if key not in names:
        what = "input" if side == "ins" else "output"
        raise ParseError(f"{op} has no {what} {key!r}", fix=f"there is {', '.join(names)}")
    return names.index(key)


class _Replacing:
    def __init__(self, new: Sequence[New], rewriter: Rewriter, node: Node) -> None:
        self._rewriter, self._node = rewriter, node
        self._drafts = {one.name: _Draft(one.op) for one in new}

    def nodes(self, details: Sequence[Detail]) -> list[Node]:
        # Outputs first: they have their names before others read them.
        for detail in sorted(details, key=lambda one: one.path[1] != "outs"):
            self._set(detail)
        return [self._node_of(name, draft) for name, draft in self._in_order()]

    def _in_order(self) -> list[tuple[str, _Draft]]:
        edges = [
            Node(name, one.op, tuple(one.inputs.values()), tuple(one.outputs.values()))
            for name, one in self._drafts.items()
        ]
        order, cycle = sort_nodes(edges)
        if cycle:
            waiting = ", ".join(node.name for node in cycle)
            raise ParseError(f"new nodes wait for each other: {waiting}", fix=_FIX)
        return [(node.name, self._drafts[node.name]) for node in order]

    def _set(self, detail: Detail) -> None:
        name, side, key = detail.path
        draft, value = self._drafts[str(name)], detail.formula(self._lookup)
        if side == "params":
            draft.attributes[str(key)] = value
        elif side == "ins":
            draft.inputs[_place_in(draft, side, key)] = self._tensor(value)
        elif value is None:  # the old node has no such output, so it has no readers
            pass
        elif not isinstance(value, RuleTensor):
            raise ParseError(f"{name}.outs[{key}] is {value!r}, no tensor", fix=_FIX)
        else:
            draft.outputs[_place_in(draft, str(side), key)] = value

    def _lookup(self, path: Path) -> Any:
        if path[0] == "self":
            try:
                return read_value(path, self._rewriter, self._node)
            except UnknownError:
                raise ParseError(f"{_to_text(path)} is not known", fix=_FIX) from None
        draft = self._drafts.get(str(path[0]))
        match path:
            case (_, "outs", key) if draft is not None:
                place = _place_in(draft, "outs", key)
                if place not in draft.outputs:
                    stem = f"{self._node.name}/{path[0]}"
                    draft.outputs[place] = self._rewriter.new_tensor(stem)
                return RuleTensor(draft.outputs[place])
            case (_, "params", str(key)) if draft is not None and key in draft.attributes:
                return draft.attributes[key]
        raise _nothing_there_error(path)

    def _tensor(self, value: Any) -> str:
        """Return the tensor `value` or a new constant; numbers get the first tensor's dtype."""
        if value is None or isinstance(value, RuleTensor):
            return value or ""
        stem = f"{self._node.name}/constant"
        if isinstance(value, tuple) and all(type(one) is int for one in value):
            numbers = [to_exact(one, np.dtype(np.int64), stem) for one in value]
            return self._rewriter.constant(np.array(numbers, np.int64), stem)
        if isinstance(value, str | tuple):
            raise ParseError(f"{value!r} is neither a tensor nor a number", fix=_FIX)
        first = next(filter(None, (*self._node.inputs, *self._node.outputs)))
        dtype = self._rewriter.tensors[first].dtype
        return self._rewriter.constant(to_exact(value, dtype, stem), stem)

    def _node_of(self, name: str, draft: _Draft) -> Node:
        inputs = [draft.inputs.get(i, "") for i in range(max(draft.inputs, default=-1) + 1)]
        outputs = [draft.outputs.get(i, "") for i in range(max(draft.outputs, default=-1) + 1)]
        # Pins and profiles use the name: it goes to the writer of the first output.
        takes_name = self._node.outputs[0] in outputs
        called = self._node.name if takes_name else f"{self._node.name}/{name}"
        return _make_node(self._rewriter, called, draft.op, inputs, outputs, draft.attributes)


def _make_node(
    rewriter: Rewriter,
    name: str,
    op: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    attributes: Mapping[str, Any],
) -> Node:
    operator = find_operator(op)
    complete = operator.complete(attributes, name)
    # Passes know the arity of their nodes, a file may have any.
    operator.check_arity(len(inputs), [bool(one) for one in inputs], len(outputs) or 1, name)
    return rewriter.make(op, inputs, outputs or None, name=name, **complete)


def _place_in(draft: _Draft, side: str, key: str | int) -> int:
    place = place_of(draft.op, side, key)
    if place >= MOST_PLACES:
        raise ParseError(f"{draft.op} has no {side}[{place}]", fix=_FIX)
    return place


def _read_fact(tensor: str, rest: Sequence[str | int], path: Path, rewriter: Rewriter) -> Any:
    spec, constant = rewriter.tensors.get(tensor), rewriter.constants.get(tensor)
    if spec is None:  # an output, while its operator is being inferred
        raise UnknownError
    match rest:
        case ("dtype",):
            return spec.dtype.name
        case ("value",):
            if constant is None or constant.size != 1:
                raise UnknownError
            return constant.item()
    if spec.shape is None:
        raise UnknownError
    match rest:
        case ("ndim",):
            return len(spec.shape)
        case ("dims", *index):
            found = _get_element(spec.shape, index, path)
            # Rules are applied before any run: a symbol decides nothing.
            if any(isinstance(dim, str) for dim in (found if index == [] else (found,))):
                raise UnknownError
            return found
        case ("len",):
            if not spec.is_static:
                raise UnknownError
            return spec.size
    raise _nothing_there_error(path)


def _get_element(value: Any, index: Sequence[str | int], path: Path) -> Any:
    if not index:
        return value
    (place, *more) = index
    if more or not isinstance(place, int) or not isinstance(value, tuple):
        raise _nothing_there_error(path)
    if place >= len(value):
        raise UnknownError
    return value[place]


def _nothing_there_error(path: Path) -> ParseError:
    return ParseError(
        f"there is no {_to_text(path)}",
        fix="write self.params[name], self.ins[name] or self.outs[name], for the last two with "
        ".dtype, .ndim, .dims, .len or .value behind it",
    )


def _to_text(path: Path) -> str:
    return ".".join(map(str, path))
