"""Operators as data: JSON that defines an operator by others.

::

    {"operators": [{"name": "my.Shrink", "inputs": ["x"], "outputs": ["y"],
                    "attributes": {"bound": {"kind": "float", "default": 0.5, "minimum": 0}},
                    "rules": [{"replace": ["Abs a", "Greater g", ...],
                               "details": ["a.ins[0] = self.ins[x]", ...]}]}]}

Its rules are those of `plait.graph.formats.rules`: the first with a true condition defines the
nodes. Shapes and costs follow from them; a device that has them has the operator. No code is run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..core.attribute import REQUIRED, RESERVED, Attribute, Kind
from ..core.ir import Graph, Node
from ..core.operator import (
    Call,
    Operator,
    Specs,
    find_operator,
    is_operator,
    register_operator,
    unregister_operator,
)
from ..decompositions.rules import DecompositionBuilder, Result, decomposition
from ..passes.rewriting import Rewriter
from ..values.errors import OperatorError, ShapeError
from ..values.tensor import TensorSpec
from .rules import (
    FormatRule,
    Rules,
    check_keys,
    read_json,
    read_list,
    read_object,
    read_rule,
    read_texts,
    refuse,
)
from .sources import Source

MOST_NODES = 100
"""Limit for one operator, nested operators included."""

DEEPEST = 10
"""Limit of nesting for operators of files."""

KINDS: Mapping[str, Kind] = {
    "int": Kind.INT,
    "float": Kind.FLOAT,
    "bool": Kind.BOOL,
    "string": Kind.STRING,
    "ints": Kind.INTS,
    "floats": Kind.FLOATS,
    "strings": Kind.STRINGS,
    "dtype": Kind.DTYPE,
}

_KEYS = {"name", "inputs", "outputs", "attributes", "rules"}
_OPERATOR = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class FunctionDefinition:
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    """Formal names; ``?`` follows those of optional inputs."""
    attributes: Mapping[str, Attribute]
    rules: tuple[FormatRule, ...]
    text: str
    """Its JSON, which identifies it."""
    nodes: int
    depth: int
    """The number of nodes that it expands to, and the nesting of operators of files in it."""

    def infer(self, call: Call) -> Sequence[TensorSpec]:
        rewriter, _ = self._tried(call)
        for output in self.outputs:
            if output not in rewriter.tensors:
                raise OperatorError(
                    f"no node of {self.name} writes its output {output!r}",
                    fix=f"add a detail: name.outs[0] = self.outs[{output}]",
                )
        return [rewriter.tensors[output] for output in self.outputs]

    def cost(self, call: Call, outputs: Specs) -> int:
        rewriter, nodes = self._tried(call)
        return sum(
            int(node.operator.cost(rewriter.call(node), tuple(rewriter.specs(node))))
            for node in nodes
        )

    def expand(self, rewriter: Rewriter, node: Node) -> list[Node]:
        """Expand `node` in `rewriter` into nodes of operators that no file defines."""
        made = Rules(self.name, {self.name: self.rules})(rewriter, node)
        if made is None:
            raise ShapeError(
                f"no rule says what {self.name} is for these inputs and attributes",
                fix="give it a rule without conditions, or fix the shapes that they ask for",
            )
        found: list[Node] = []
        # Terminates: an operator consists of earlier ones, nested `DEEPEST` times at most.
        for one in made:
            inner = _find_definition(one.op)
            found += [one] if inner is None else inner.expand(rewriter, one)
        return found

    def _tried(self, call: Call) -> tuple[Rewriter, list[Node]]:
        """Return the nodes for `call`, and a rewriter of a graph that has only its inputs."""
        # Specs and costs are computed without a graph, but rules need one.
        formals = [formal.rstrip("?") for formal in self.inputs]
        given = zip(formals, call.inputs, call.values, strict=False)
        known = [(f"self.{name}", spec, value) for name, spec, value in given if spec is not None]
        names = tuple(name for name, _, _ in known)
        constants = {name: value for name, _, value in known if value is not None}
        graph = Graph(self.name, names, (), (), {n: spec for n, spec, _ in known}, constants)
        inputs = (f"self.{f}" if call.has(i) else "" for i, f in enumerate(formals))
        rewriter = Rewriter(graph)
        node = Node(self.name, self.name, tuple(inputs), self.outputs, call.attributes)
        return rewriter, self.expand(rewriter, node)


_definitions: dict[str, FunctionDefinition] = {}
"""All loaded ones by name; their operators may be unregistered or replaced by now."""


def _find_definition(op: str) -> FunctionDefinition | None:
    known = _definitions.get(op)
    return known if known is not None and find_operator(op).infer == known.infer else None


def _write(builder: DecompositionBuilder, *inputs: str) -> Result:
    known = _find_definition(builder.node.op)
    if known is None:
        return None
    builder.nodes += known.expand(builder.rewriter, builder.node)
    return builder.node.outputs


def load_operators(source: Source) -> tuple[str, ...]:
    """Register the operators that a file, the `source`, defines; return their names.

    A file that was loaded before may be loaded again.

    Parameters
    ----------
    source : bytes or path
        The content of the file, or its path.

    Raises
    ------
    ParseError
        If the file is missing or damaged, a formula is none, or an operator stands for too much.
    OperatorError
        If an operator is defined by one that there is not.
    GraphError
        If there is another operator of one of the names; then none is registered.

    Examples
    --------
    >>> import numpy as np, plait as pl
    >>> from plait.formats import load_operators
    >>> load_operators(b'''{"operators": [{
    ...     "name": "doc.Scaled", "inputs": ["x"], "outputs": ["y"],
    ...     "attributes": {"by": {"kind": "float", "default": 2}},
    ...     "rules": [{"replace": ["Mul m"], "details": [
    ...         "m.ins[0] = self.ins[x]", "m.ins[1] = self.params[by]",
    ...         "m.outs[0] = self.outs[y]"]}]}]}''')
    ('doc.Scaled',)
    >>> b = pl.GraphBuilder("scaled")
    >>> b.output("y", b.op("doc.Scaled", b.input("x", "float32", (2,)), by=3))
    >>> pl.run(b.build(), {"x": np.array([1, 2], "float32")})["y"].tolist()
    [3.0, 6.0]
    """
    root, at = read_json(source, "operators")
    if not isinstance(root, dict) or "operators" not in root:
        refuse("these are not operators: there is no list under the key 'operators'", at)
    check_keys(root, {"name", "author", "operators"}, at)
    made: dict[str, FunctionDefinition] = {}
    names = []
    try:
        for index, entry in enumerate(read_list(root["operators"], f"operators, {at}")):
            name = _register(read_object(entry, f"operators[{index}], {at}"), made, at)
            names.append(name)
    except BaseException:
        # All or none: a graph of half of a file could not be built again.
        for name in made:
            unregister_operator(name)
        raise
    # Once for each name: `_write` looks the definition up when it runs.
    decomposition(*(made.keys() - _definitions.keys()), wide=False)(_write)
    _definitions.update(made)
    return tuple(names)


def _register(fields: Mapping[str, Any], made: dict[str, FunctionDefinition], at: str) -> str:
    check_keys(fields, _KEYS, at)
    name = fields.get("name")
    if not isinstance(name, str) or not _OPERATOR.fullmatch(name):
        refuse(f"{name!r} is not the name of an operator: words with dots between", at)
    at = f"operator {name}, {at}"
    # Notebook cells run again: an equal definition is the same operator.
    text = json.dumps(fields, sort_keys=True)
    known = _find_definition(name) if is_operator(name) else None
    if known is not None and known.text == text:
        return name
    definition = _make_definition(name, fields, text, made, at)
    register_operator(
        Operator(
            name,
            " ".join(definition.inputs),
            " ".join(definition.outputs),
            definition.attributes,
            definition.infer,
            definition.cost,
            module=__name__,
        )
    )
    made[name] = definition
    return name


def _make_definition(
    name: str, fields: Mapping[str, Any], text: str, made: Mapping[str, FunctionDefinition], at: str
) -> FunctionDefinition:
    inputs, outputs = (_read_formals(fields.get(key), key, at) for key in ("inputs", "outputs"))
    if inputs[0].endswith("?") or any(one.endswith("?") for one in outputs):
        refuse("the first input and all outputs are always there: no '?' behind them", at)
    declared = read_object(fields.get("attributes", {}), f"attributes, {at}")
    attributes = {one: _read_attribute(one, value, at) for one, value in declared.items()}
    rules = tuple(
        read_rule(one, f"rule {index}, {at}")
        for index, one in enumerate(read_list(fields.get("rules"), f"rules, {at}"))
    )
    if not rules or any(rule.keeps for rule in rules):
        refuse("an operator has rules, each with replace or err: it cannot stay as it is", at)
    # This file first: it may redefine an operator.
    inner = [[made.get(new.op) or _find_definition(new.op) for new in rule.new] for rule in rules]
    # Counted before expansion: nested operators multiply, and would exhaust the memory.
    nodes = max(sum(1 if one is None else one.nodes for one in listed) for listed in inner)
    depth = 1 + max((one.depth for listed in inner for one in listed if one), default=0)
    if nodes > MOST_NODES or depth > DEEPEST:
        refuse(
            f"it stands for {nodes} nodes, {depth} operators deep; at most {MOST_NODES} and "
            f"{DEEPEST} may be",
            at,
        )
    return FunctionDefinition(name, inputs, outputs, attributes, rules, text, nodes, depth)


def _read_formals(value: object, what: str, at: str) -> tuple[str, ...]:
    found = tuple(read_texts(value, f"{what}, {at}"))
    words = [one.removesuffix("?") for one in found]
    wrong = [one for one in words if not _WORD.fullmatch(one)]
    if not found or wrong or len(set(words)) < len(words):
        refuse(f"{what} are {list(found)}, not one or more different names", at)
    optional = [one.endswith("?") for one in found]
    if optional != sorted(optional):
        refuse(f"{what} that may be absent stand behind the others", at)
    return found


def _read_attribute(name: str, value: object, at: str) -> Attribute:
    at = f"attribute {name!r}, {at}"
    fields = read_object(value, at)
    check_keys(fields, {"kind", "default", "minimum", "maximum", "choices"}, at)
    if not _WORD.fullmatch(name):
        refuse("its name is none", at)
    if name in RESERVED:
        refuse("GraphBuilder.op uses this word itself", at)
    kind = fields.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        refuse(f"its kind is {kind!r}; there is {', '.join(KINDS)}", at)
    least, most = (fields.get(key) for key in ("minimum", "maximum"))
    if any(isinstance(o, bool) or not isinstance(o, int | float | None) for o in (least, most)):
        refuse("its minimum or maximum is not a number", at)
    choices = tuple(read_list(fields["choices"], at)) if "choices" in fields else None
    attribute = Attribute(KINDS[kind], REQUIRED, least, most, choices)
    if "default" not in fields:
        return attribute
    default = fields["default"]
    if default is not None:
        default = attribute.complete("the operator", name, default, at)
    return replace(attribute, default=default)
