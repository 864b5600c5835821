"""Converts a cvm symbol to a graph; checks all rules about names, entries, tables and shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ....graph.core.ir import Graph, Node
from ....graph.core.operator import Operator
from ....graph.formats.assembly import Assembly
from ....graph.values.tensor import TensorSpec
from ..operators.rules import MAX_DIM, MAX_RANK, MAX_SIZE
from .operators import find_function, parse_attributes
from .storage import check_storage
from .symbol import VERSIONS, SymbolGraph, fail, reject

DATA = "data"
"""The only variable that is not a parameter."""


def make_graph(symbol: SymbolGraph, at: str) -> Graph:
    """Return the graph of `symbol`, with all its variables as inputs; `at` is its name in errors.

    An output that is repeated, or is a variable, is copied by an Identity. Raises LogicError or
    RuntimeFailureError or GraphError if the symbol breaks a rule.
    """
    return _Reader(symbol, at).graph()


class _Reader:
    """Checks a symbol and makes a graph of it."""

    def __init__(self, symbol: SymbolGraph, at: str) -> None:
        self._symbol = symbol
        self._at = at
        self._operators: list[Operator | None] = []
        self._first: list[int] = []
        self._count = 0

    def graph(self) -> Graph:
        # In this order: each step relies on the previous checks.
        self._check_names()
        attributes = self._find_operators()
        self._number_entries()
        self._check_order()
        self._check_storage()
        self._check_tables()
        self._check_version()
        return self._assemble(attributes)

    def _check_names(self) -> None:
        names = Counter(node.name for node in self._symbol.nodes if node.function is None)
        for name, count in names.most_common(1):
            if count > 1:
                fail(f"{count} variables are named {name!r}", self._at)

    def _find_operators(self) -> list[dict[str, object]]:
        nodes, texts = self._symbol.nodes, self._symbol.op_attributes
        self._check_length("op_attrs", len(texts), len(nodes))
        found: list[dict[str, object]] = []
        for node, text in zip(nodes, texts, strict=True):
            operator, attributes = None, {}
            if node.function is not None:
                at = f"node {node.name!r}, {self._at}"
                operator = find_function(node.function, at)
                attributes = parse_attributes(operator, text, at)
                present = [True] * len(node.inputs)
                operator.check_arity(len(node.inputs), present, _count_outputs(operator), at)
            self._operators.append(operator)
            found.append(attributes)
        return found

    def _number_entries(self) -> None:
        for operator in self._operators:
            self._first.append(self._count)
            self._count += _count_outputs(operator)
        self._first.append(self._count)  # the end of the last one

    def _entry(self, reference: tuple[int, int], at: str) -> int:
        node, output = reference
        if not 0 <= node < len(self._operators):
            reject(f"there is no node {node}", at)
        if not 0 <= output < _count_outputs(self._operators[node]):
            reject(f"node {node} has no output {output}", at)
        return self._first[node] + output

    def _check_order(self) -> None:
        for index, node in enumerate(self._symbol.nodes):
            at = f"node {node.name!r}, {self._at}"
            if node.function is None and node.inputs:
                reject("a variable has inputs", at)
            for reference in node.inputs:
                # Entries are numbered node by node, so a cycle would read a later one.
                if self._entry(reference, at) >= self._first[index]:
                    reject("it reads what no earlier node writes", at)
        if not self._symbol.heads:
            reject("the model has no outputs", self._at)
        for reference in self._symbol.heads:
            self._entry(reference, f"heads, {self._at}")

    def _check_storage(self) -> None:
        symbol = self._symbol
        self._check_length("storage_id", len(symbol.storage_ids), self._count)
        steps = [
            (
                operator.name,
                [self._entry(reference, self._at) for reference in node.inputs],
                range(self._first[index], self._first[index + 1]),
            )
            for index, (node, operator) in enumerate(
                zip(symbol.nodes, self._operators, strict=True)
            )
            if operator is not None
        ]
        inputs = [i for i in self._variables() if symbol.nodes[i].name == DATA]
        parameters = [self._first[i] for i in self._variables() if i not in inputs]
        heads = [self._entry(reference, self._at) for reference in symbol.heads]
        check_storage(
            symbol.storage_ids, parameters, [self._first[i] for i in inputs], steps, heads, self._at
        )

    def _variables(self) -> list[int]:
        return [index for index, operator in enumerate(self._operators) if operator is None]

    def _check_tables(self) -> None:
        symbol = self._symbol
        self._check_length("shape", len(symbol.shapes), self._count)
        for entry, shape in enumerate(symbol.shapes):
            check_shape(shape, f"entry {entry}, {self._at}")
        self._check_length("precision", len(symbol.precisions), self._count)
        for entry, bits in enumerate(symbol.precisions):
            if bits != -1 and not 1 <= bits <= 32:
                reject(f"the precision of entry {entry} is {bits}, not -1 or 1 to 32", self._at)
        for index in self._variables():
            if symbol.precisions[self._first[index]] == -1:
                reject(f"variable {symbol.nodes[index].name!r} has no precision", self._at)

    def _check_version(self) -> None:
        symbol = self._symbol
        if symbol.version not in VERSIONS:
            known = " and ".join(VERSIONS)
            fail(f"the version is {symbol.version[:32]!r}; plait reads {known}", self._at)
        if symbol.version != VERSIONS[0]:
            return
        self._check_length("dltype", len(symbol.dltypes), self._count)
        if set(symbol.dltypes) - {"int32"}:
            reject("dltype is not int32 throughout", self._at)
        if list(symbol.node_row_ptr) != self._first:
            reject("node_row_ptr does not list the first entry of each node", self._at)
        if list(symbol.arg_nodes) != self._variables():
            reject("arg_nodes does not list the variables", self._at)

    def _check_length(self, table: str, length: int, wanted: int) -> None:
        if length != wanted:
            reject(f"{table} has {length} elements, {wanted} are needed", self._at)

    def _assemble(self, attributes: Sequence[Mapping[str, object]]) -> Graph:
        symbol = self._symbol
        assembly = Assembly("cvm", self._at)
        names = self._names()
        for index in self._variables():
            entry = self._first[index]
            assembly.add_input(names[entry], TensorSpec("int32", symbol.shapes[entry]))
            assembly.precisions[names[entry]] = symbol.precisions[entry]
        for index, (node, operator) in enumerate(zip(symbol.nodes, self._operators, strict=True)):
            if operator is None:
                continue
            outputs = names[self._first[index] : self._first[index + 1]]
            inputs = [names[self._entry(reference, self._at)] for reference in node.inputs]
            made = Node(outputs[0], operator.name, tuple(inputs), outputs, attributes[index])
            assembly.add_node(made)
            # Checked now, so that an error names the first wrong node, not one of its readers.
            self._check_shapes(assembly, outputs, index)
        heads = [names[self._entry(reference, self._at)] for reference in symbol.heads]
        return assembly.finish(_copy_heads(assembly, heads))

    def _names(self) -> tuple[str, ...]:
        """Return a unique name for each entry: the node's, unless it is taken."""
        taken = {self._symbol.nodes[index].name for index in self._variables()}
        names: list[str] = []
        for index, (node, operator) in enumerate(
            zip(self._symbol.nodes, self._operators, strict=True)
        ):
            for output in range(_count_outputs(operator)):
                name = f"{node.name}.{output}" if output else node.name
                # Variables are fed by name and keep theirs; other names do not matter.
                if operator is not None and (not name or name in taken):
                    name = f"{name}#{index}.{output}"
                    while name in taken:
                        name += "'"
                taken.add(name)
                names.append(name)
        return tuple(names)

    def _check_shapes(self, assembly: Assembly, outputs: Sequence[str], index: int) -> None:
        for offset, name in enumerate(outputs):
            inferred = assembly.tensors[name].static_shape
            declared = self._symbol.shapes[self._first[index] + offset]
            if inferred != declared:
                at = f"node {self._symbol.nodes[index].name!r}, {self._at}"
                reject(f"its output {offset} is declared as {declared}, but is {inferred}", at)


def _copy_heads(assembly: Assembly, heads: Sequence[str]) -> tuple[str, ...]:
    """Return unique names for the output tensors `heads`.

    Inputs and repeated heads are copied by nodes added to `assembly`.
    """
    outputs: list[str] = []
    taken = set(assembly.inputs)
    for name in heads:
        if name in taken:  # an input or a repeated output: outputs must be separate tensors
            public = f"{name}#output{len(outputs)}"
            while public in assembly.tensors:
                public += "'"
            assembly.add_node(Node(public, "Identity", (name,), (public,)))
            name = public
        taken.add(name)
        outputs.append(name)
    return tuple(outputs)


def check_shape(shape: Sequence[int], at: str) -> None:
    """Raise LogicError if cvm does not allow `shape`; `at` is the tensor's place in the file."""
    if not 1 <= len(shape) <= MAX_RANK:
        reject(f"its rank is {len(shape)}, not 1 to {MAX_RANK}", at)
    size = 1
    for length in shape:
        size *= length  # checked in each step: the full product may have thousands of digits
        if not 1 <= length <= MAX_DIM or size > MAX_SIZE:
            reject(f"the shape {list(shape)} is too large, or empty", at)


def _count_outputs(operator: Operator | None) -> int:
    return 1 if operator is None else len(operator.outputs.split())
