"""Sequences of tensors that exporters build and take apart at once: written with tensors alone.

SequenceInsert, ..., ConcatFromSequence -> Concat; SequenceAt of SplitToSequence -> Slice or Gather.
A sequence is known while the model is read if all positions are constants. Graphs with others, such
as sequences that a Loop carries on, are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ...values.tensor import Array
from .nodes import DEFAULT_DOMAINS, GRAPH, iterate_nodes
from .tensors import text

MOST_MEMBERS = 1 << 20
"""How many members all sequences of a graph may have together: each insertion copies the others."""

_NUMBERS_ARE_INPUTS = 13
"""Since this opset axes of Unsqueeze and lengths of Split are inputs."""


class _Parts(NamedTuple):
    """The sequence that SplitToSequence makes of parts of one length."""

    source: str
    axis: int
    length: int | None
    """None for parts that have lost the axis."""


Sequence: TypeAlias = "tuple[str, ...] | _Parts"


class _UnknownError(Exception):
    """A sequence is not known before the model runs."""


def replace_sequences(model: Any, opset: int) -> Any:
    """Replace sequences in `model`, of `opset`, by tensors, in graphs where all are known."""
    from onnx import ModelProto

    if not any(_is_of_sequences(node) for node in iterate_nodes(model.graph)):
        return model
    written = ModelProto()
    written.CopyFrom(model)
    _rewrite(written.graph, opset, {}, {})
    return written


def _rewrite(
    graph: Any, opset: int, outer: Mapping[str, Any], known: Mapping[str, Sequence]
) -> None:
    """Replace sequences in `graph` by tensors, if all are known; `known` are those around it."""
    constants = {**outer, **{text(one.name): one for one in graph.initializer}}
    constants.update(_find_constants(graph))
    writer = _Writer(opset, constants, dict(known))
    try:
        nodes = [made for node in graph.node for made in writer.nodes(node)]
        if any(text(one.name) in writer.sequences for one in graph.output):
            raise _UnknownError
    except _UnknownError:
        return
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == GRAPH:
                _rewrite(attribute.g, opset, constants, writer.sequences)
    # Copied before they are deleted: messages of a field lie in its memory.
    copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _find_constants(graph: Any) -> Iterator[tuple[str, Any]]:
    for node in graph.node:
        if node.op_type == "Constant" and len(node.attribute) == 1 and node.output:
            (attribute,) = node.attribute
            named = {"value": attribute.t, "value_int": attribute.i}
            yield text(node.output[0]), named.get(text(attribute.name))


class _Writer:
    """Follows the sequences of a graph through its nodes, in their order.

    `sequences` are those that are known, by name.
    """

    def __init__(
        self, opset: int, constants: Mapping[str, Any], sequences: dict[str, Sequence]
    ) -> None:
        self.sequences = sequences
        self._opset, self._constants, self._members = opset, constants, 0
        self._rules: Mapping[str, Callable[[Any], list[Any]]] = {
            "SequenceEmpty": lambda node: self._hold(node, ()),
            "SequenceConstruct": lambda node: self._hold(node, tuple(map(text, node.input))),
            "SequenceInsert": self._insert,
            "SequenceErase": self._erase,
            "SequenceAt": self._take,
            "SequenceLength": self._count,
            "SplitToSequence": self._split,
            "ConcatFromSequence": self._join,
        }

    def nodes(self, node: Any) -> list[Any]:
        """Return nodes of tensors in place of `node`, or raise _UnknownError for a sequence."""
        reads = [name for name in map(text, node.input) if name in self.sequences]
        if _is_of_sequences(node):
            return self._rules[node.op_type](node)
        if reads and node.op_type == "Identity" and node.domain in DEFAULT_DOMAINS:
            return self._hold(node, self.sequences[reads[0]])
        if reads:
            raise _UnknownError
        return [node]

    def _hold(self, node: Any, sequence: Sequence) -> list[Any]:
        self._members += len(sequence)
        if not node.output or self._members > MOST_MEMBERS:
            raise _UnknownError
        self.sequences[text(node.output[0])] = sequence
        return []

    def _insert(self, node: Any) -> list[Any]:
        members = self._listed(node)
        if len(node.input) < 2:
            raise _UnknownError
        place = self._position(node, 2, len(members), most=len(members))
        return self._hold(node, (*members[:place], text(node.input[1]), *members[place:]))

    def _erase(self, node: Any) -> list[Any]:
        members = self._listed(node)
        place = self._position(node, 1, len(members), most=len(members) - 1)
        return self._hold(node, (*members[:place], *members[place + 1 :]))

    def _take(self, node: Any) -> list[Any]:
        sequence = self._sequence(node)
        if isinstance(sequence, _Parts):
            return self._part(node, sequence)
        place = self._position(node, 1, len(sequence), most=len(sequence) - 1)
        return [_replace_by("Identity", [sequence[place]], node)]

    def _part(self, node: Any, parts: _Parts) -> list[Any]:
        index = self._scalar(node, 1)
        name = text(node.output[0])
        if parts.length is None:  # a negative index counts from the end, as for Gather
            place = _make_constant(f"{name}/place", [index], scalar=True)
            return [
                place,
                _replace_by("Gather", [parts.source, *place.output], node, axis=parts.axis),
            ]
        if index < 0:
            raise _UnknownError
        ends = {"from": index * parts.length, "to": (index + 1) * parts.length, "axis": parts.axis}
        numbers = [_make_constant(f"{name}/{what}", [value]) for what, value in ends.items()]
        inputs = [parts.source, *(one.output[0] for one in numbers)]
        return [*numbers, _replace_by("Slice", inputs, node)]

    def _count(self, node: Any) -> list[Any]:
        return [_make_constant(text(node.output[0]), [len(self._listed(node))], scalar=True)]

    def _split(self, node: Any) -> list[Any]:
        axis, keeps = _get_attribute(node, "axis", 0), _get_attribute(node, "keepdims", 1)
        source = text(node.input[0])
        if not _is_given(node, 1):
            return self._hold(node, _Parts(source, axis, 1 if keeps else None))
        lengths = self._integers(node, 1)
        if lengths.ndim == 0:
            return self._hold(node, _Parts(source, axis, int(lengths)))
        name = text(node.output[0])
        parts = tuple(f"{name}/{index}" for index in range(len(lengths)))
        self._hold(node, parts)
        return self._make_with_numbers(
            name, "lengths", lengths.tolist(), "Split", source, parts, axis=axis
        )

    def _join(self, node: Any) -> list[Any]:
        members, axis = self._listed(node), _get_attribute(node, "axis", None)
        if not members or axis is None:
            raise _UnknownError
        self._members += len(members)
        if self._members > MOST_MEMBERS:
            raise _UnknownError
        if not _get_attribute(node, "new_axis", 0):
            return [_replace_by("Concat", members, node, axis=axis)]
        name = text(node.output[0])
        parts = [f"{name}/{index}" for index in range(len(members))]
        made = [
            one
            for member, part in zip(members, parts, strict=True)
            for one in self._make_with_numbers(part, "axes", [axis], "Unsqueeze", member, [part])
        ]
        return [*made, _replace_by("Concat", parts, node, axis=axis)]

    def _make_with_numbers(
        self, name: str, suffix: str, numbers: Any, op: str, source: str, outputs: Any, **more: Any
    ) -> list[Any]:
        """Return nodes that apply `op` to `source` with `numbers` and attributes `more`.

        They write `outputs`. The numbers are an attribute in old opsets; later, they are a
        constant, the `suffix` of `name`.
        """
        from onnx import helper

        if self._opset < _NUMBERS_ARE_INPUTS:
            more["axes" if op == "Unsqueeze" else "split"] = numbers
            return [helper.make_node(op, [source], outputs, **more)]
        constant = _make_constant(f"{name}/{suffix}", numbers)
        return [constant, helper.make_node(op, [source, *constant.output], outputs, **more)]

    def _sequence(self, node: Any) -> Sequence:
        name = text(node.input[0]) if node.input else ""
        if name not in self.sequences or not node.output:
            raise _UnknownError
        return self.sequences[name]

    def _listed(self, node: Any) -> tuple[str, ...]:
        sequence = self._sequence(node)
        if isinstance(sequence, _Parts):
            raise _UnknownError
        return sequence

    def _position(self, node: Any, index: int, count: int, *, most: int) -> int:
        """Return input `index` of `node`, a position among `count` members, by default `most`."""
        if not _is_given(node, index):
            place = most
        else:
            place = self._scalar(node, index)
            place += count * (place < 0)
        if not 0 <= place <= most:
            raise _UnknownError
        return place

    def _scalar(self, node: Any, index: int) -> int:
        found = self._integers(node, index)
        if found.size != 1:
            raise _UnknownError
        return int(found.item())

    def _integers(self, node: Any, index: int) -> Array:
        """Return the constant integers of input `index` of `node`, a scalar or a row."""
        from onnx import TensorProto, numpy_helper

        value = self._constants.get(text(node.input[index])) if _is_given(node, index) else None
        if isinstance(value, int):
            return np.array(value)
        if isinstance(value, TensorProto) and value.data_location != TensorProto.EXTERNAL:
            with suppress(Exception):  # damaged: it is read again, and told, with all others
                array = numpy_helper.to_array(value)
                if array.dtype.kind in "iu" and array.ndim < 2:
                    return array
        raise _UnknownError


def _is_given(node: Any, index: int) -> bool:
    return len(node.input) > index and bool(node.input[index])


def _is_of_sequences(node: Any) -> bool:
    known = ("SequenceEmpty", "SequenceConstruct", "SequenceInsert", "SequenceErase", "SequenceAt")
    more = ("SequenceLength", "SplitToSequence", "ConcatFromSequence")
    return node.domain in DEFAULT_DOMAINS and node.op_type in (*known, *more)


def _get_attribute(node: Any, name: str, default: int | None) -> Any:
    return next((one.i for one in node.attribute if one.name == name), default)


def _replace_by(op: str, inputs: Any, node: Any, **attributes: Any) -> Any:
    made = _make_node(op, inputs, text(node.output[0]), **attributes)
    made.name = node.name
    return made


def _make_node(op: str, inputs: Any, output: str, **attributes: Any) -> Any:
    from onnx import helper

    return helper.make_node(op, list(inputs), [output], **attributes)


def _make_constant(name: str, values: list[int], *, scalar: bool = False) -> Any:
    from onnx import TensorProto, helper

    value = helper.make_tensor("", TensorProto.INT64, [] if scalar else [len(values)], values)
    return _make_node("Constant", [], name, value=value)
