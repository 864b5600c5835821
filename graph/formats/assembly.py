"""The last step of every reader: the nodes of a file become a checked Graph.

A file is not trusted: operators complete attributes, shapes are inferred again, and declared
shapes must agree with the inferred ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ..core.check import check_structure
from ..core.infer import infer_node
from ..core.ir import Graph, Node, make_call
from ..values.errors import GraphError, ParseError, PlaitError, describe_error
from ..values.tensor import Array, Shape, TensorSpec, spec_of

_NOTHING: Mapping[str, TensorSpec] = {}


class Assembly:
    """A graph under construction, node by node in topological order.

    Attributes
    ----------
    at : str
        The file, for messages.
    tensors : dict of str to TensorSpec
        Of all nodes so far.
    precisions : dict of str to int
        Declared bits of inputs and constants.
    """

    def __init__(self, name: str, at: str) -> None:
        self.name = name
        self.at = at
        self.inputs: list[str] = []
        self.nodes: list[Node] = []
        self.tensors: dict[str, TensorSpec] = {}
        self._lengths: dict[str, Shape] = {}
        self.constants: dict[str, Array] = {}
        self.precisions: dict[str, int] = {}

    def add_input(self, name: str, spec: TensorSpec) -> None:
        self._claim(name, "input")
        self.inputs.append(name)
        self.tensors[name] = spec

    def add_constant(self, name: str, array: Array) -> None:
        self._claim(name, "constant")
        self.constants[name] = array
        self.tensors[name] = spec_of(array)

    def add_node(self, node: Node, declared: Mapping[str, TensorSpec] = _NOTHING) -> None:
        """Complete the attributes of `node`, infer its outputs and append it.

        `declared` holds the file's specs of its outputs. Raises GraphError if the node does not fit
        its operator or its inputs; ParseError if the file contradicts the inferred specs.
        """
        where = f"{node}, {self.at}"
        for name in node.inputs:
            if name and name not in self.tensors:
                raise ParseError(
                    f"input {name!r} is written by no earlier node", at=where, fix=_EXPORT
                )
        for name in filter(None, node.outputs):
            self._claim(name, f"output of node {node.name!r}")
        with locate_errors(node, self.at):
            complete, specs = self._infer(node, where)
        for name, spec in zip(node.outputs, specs, strict=True):
            if name:
                self.tensors[name] = _merge(name, declared.get(name), spec, where)
        self.nodes.append(complete)

    def finish(self, outputs: Sequence[str]) -> Graph:
        graph = Graph(
            self.name,
            tuple(self.inputs),
            tuple(outputs),
            tuple(self.nodes),
            self.tensors,
            self.constants,
            self.precisions,
        )
        try:
            return check_structure(graph)
        except GraphError as error:
            error.at = f"{error.at}, {self.at}"
            error.fix = _EXPORT
            raise

    def _infer(self, node: Node, where: str) -> tuple[Node, tuple[TensorSpec, ...]]:
        operator = node.operator
        present = [bool(name) for name in node.inputs]
        operator.check_arity(len(node.inputs), present, len(node.outputs), where)
        complete = replace(node, attributes=operator.complete(node.attributes, where))
        call = make_call(complete, self.tensors, self.constants, self._lengths)
        return complete, infer_node(complete, call, self._lengths)

    def _claim(self, name: str, what: str) -> None:
        if not name or name in self.tensors:
            raise ParseError(
                f"tensor {name!r} is defined twice" if name else f"an {what} has no name",
                at=f"{what}, {self.at}",
                fix=_EXPORT,
            )


@contextmanager
def locate_errors(node: Node, at: str) -> Iterator[None]:
    """Add `at`, the place of `node`, to errors raised inside; turn Python's into ParseErrors.

    Files may hold values that no builder lets pass, and on which operators' rules fail.
    """
    where = f"{node}, {at}"
    try:
        yield
    except PlaitError as error:
        if error.at is None or not error.at.endswith(at):
            error.at = f"{error.at}, {at}" if error.at else where
        error.fix = error.fix or _EXPORT
        raise
    except Exception as error:
        raise ParseError(
            f"{node.op} cannot be understood: {describe_error(error)}", at=where, fix=_EXPORT
        ) from error


_EXPORT = "write the file again: it is damaged, or whatever wrote it is wrong"


def _merge(name: str, declared: TensorSpec | None, inferred: TensorSpec, where: str) -> TensorSpec:
    if declared is None or declared == inferred:
        return inferred
    if declared.dtype == inferred.dtype:
        if inferred.shape is None or declared.shape is None:
            return inferred if declared.shape is None else declared
        if len(declared.shape) == len(inferred.shape):
            pairs = list(zip(declared.shape, inferred.shape, strict=True))
            if not any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs):
                return TensorSpec(
                    declared.dtype, [b if isinstance(b, int) else a for a, b in pairs]
                )
    raise ParseError(
        f"tensor {name!r} is declared as {declared}, but its node makes {inferred}",
        at=where,
        fix=_EXPORT,
    )
