"""Writes a graph of cvm operators as a cvm model: a symbol and a file of parameters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ....graph.core.check import check
from ....graph.core.infer import infer_node
from ....graph.core.ir import Graph, Node
from ....graph.values.errors import GraphError
from ....graph.values.names import Names
from ..precision import check_parameters, infer_precision
from .graph import DATA
from .operators import format_attributes, get_function_name
from .params import write_params
from .storage import ELEMENT_BYTES
from .symbol import DEFAULT_VERSION

POSTPROCESSING = ("", "argmax", "detection")


def dump_cvm(graph: Graph, *, postprocess: str = "") -> tuple[bytes, bytes]:
    """Return the symbol and the parameter file of `graph`, in the format cvm_1.0.0, as bytes.

    Parameters
    ----------
    graph : Graph
        With static shapes and cvm operators only. Its only input is called ``data``; the input and
        all constants have a declared precision.
    postprocess : str, optional
        cvm's postprocessing of the outputs: ``"argmax"``, ``"detection"``, or nothing.

    Raises
    ------
    GraphError
        If the graph does not meet these conditions, or the postprocessing is unknown.
    LogicError
        If a constant exceeds its precision, or a node may need too many bits.
    """
    _check(graph, postprocess)
    graph = _with_names(graph)
    symbol = _Writer(graph).symbol(postprocess)
    bits = graph.precisions
    params = {
        name: value.astype(np.int8 if bits[name] <= 8 else np.int32)
        for name, value in graph.constants.items()
    }
    return json.dumps(symbol).encode(), write_params(params)


def _check(graph: Graph, postprocess: str) -> None:
    check(graph)
    if graph.inputs != (DATA,):
        raise GraphError(
            f"the inputs are {', '.join(graph.inputs) or 'none'}",
            at=graph.name,
            fix=f"a cvm model has one input, called {DATA!r}; make the others constants",
        )
    undeclared = [name for name in (DATA, *graph.constants) if name not in graph.precisions]
    if undeclared:
        raise GraphError(
            f"no precision is declared for {', '.join(undeclared)}",
            at=graph.name,
            fix="pass precision= to GraphBuilder.input and GraphBuilder.constant",
        )
    if postprocess not in POSTPROCESSING:
        raise GraphError(
            f"cvm has no postprocessing {postprocess!r}",
            at=graph.name,
            fix=f"choose one of {', '.join(map(repr, POSTPROCESSING))}",
        )
    check_parameters(graph)


def _with_names(graph: Graph) -> Graph:
    """Return `graph` with names for all outputs, since each has an entry, read or not."""
    if all(all(node.outputs) for node in graph.nodes):
        return graph
    names, tensors, nodes = Names(graph.tensors), dict(graph.tensors), []
    for node in graph.nodes:
        specs = infer_node(node, graph.call(node))
        outputs = tuple(
            name or names.take(f"{node.name}.{place}") for place, name in enumerate(node.outputs)
        )
        tensors.update(zip(outputs, specs, strict=True))
        nodes.append(replace(node, outputs=outputs))
    return replace(graph, nodes=tuple(nodes), tensors=tensors)


class _Writer:
    """Numbers the entries: variables first, then the outputs of nodes."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._nodes = [node for node in graph.nodes if node.op != "Identity"]
        self._variables = (*graph.inputs, *graph.constants)
        self._places = {name: (index, 0) for index, name in enumerate(self._variables)}
        for index, node in enumerate(self._nodes, len(self._variables)):
            self._places |= {name: (index, out) for out, name in enumerate(node.outputs)}
        self._entries = tuple(self._places)
        self._same = {name: name for name in self._entries}
        for node in graph.nodes:
            if node.op == "Identity":  # another name of an entry
                self._same[node.outputs[0]] = self._same[node.inputs[0]]

    def symbol(self, postprocess: str) -> dict[str, object]:
        starts = [index for index, name in enumerate(self._entries) if not self._places[name][1]]
        return {
            "nodes": [
                *({"op": "null", "name": name, "inputs": []} for name in self._variables),
                *map(self._node, self._nodes),
            ],
            "arg_nodes": list(range(len(self._variables))),
            "node_row_ptr": [*starts, len(self._entries)],
            "heads": self._references(self._graph.outputs),
            "attrs": self._tables(),
            "version": DEFAULT_VERSION,
            "postprocess": postprocess,
        }

    def _tables(self) -> dict[str, object]:
        precisions = infer_precision(self._graph)
        shapes = [self._graph.tensors[name].static_shape for name in self._entries]
        storage = self._storage()
        texts = [json.dumps(format_attributes(node.attributes)) for node in self._nodes]
        return {
            "shape": ["list_shape", shapes],
            "storage_id": ["list_int", [storage[name] for name in self._entries]],
            "precision": ["list_int", [precisions[name] for name in self._entries]],
            "dltype": ["list_str", ["int32"] * len(self._entries)],
            "op_attrs": ["list_str", ["{}"] * len(self._variables) + texts],
        }

    def _references(self, names: Sequence[str]) -> list[tuple[int, int, int]]:
        return [(*self._places[self._same[name]], 0) for name in names]

    def _node(self, node: Node) -> dict[str, object]:
        return {
            "op": "cvm_op",
            "name": node.outputs[0],
            "inputs": self._references(node.inputs),
            "attrs": {
                "func_name": get_function_name(node.op, str(node)),
                "num_inputs": str(len(node.inputs)),
                "num_outputs": str(len(node.outputs)),
                "flatten_data": "0",
            },
        }

    def _storage(self) -> dict[str, int]:
        """Assign a place to each entry: a new one, or the best one without further readers."""
        sizes = {name: ELEMENT_BYTES * self._graph.tensors[name].size for name in self._entries}
        storage = {name: place for place, name in enumerate(self._variables)}
        room: dict[int, int] = {}
        free: list[int] = []
        dying = self._dying()
        for node in self._nodes:
            for name in node.outputs:
                fitting = [place for place in free if room[place] >= sizes[name]]
                compute_limit = sorted(free, key=room.__getitem__)[-1:]
                place = min(
                    fitting or compute_limit,
                    key=room.__getitem__,
                    default=len(self._variables) + len(room),
                )
                if place in room:
                    free.remove(place)
                storage[name] = place
                room[place] = max(room.get(place, 0), sizes[name])
            free += [storage[name] for name in dying[node.name]]
        return storage

    def _dying(self) -> dict[str, list[str]]:
        """Return, for each node, the nodes' entries of which it is the last reader."""
        last = {name: node.name for node in self._nodes for name in node.outputs}
        for node in self._nodes:
            last |= {self._same[name]: node.name for name in node.inputs}
        kept = {*self._variables, *(self._same[name] for name in self._graph.outputs)}
        dying: dict[str, list[str]] = {node.name: [] for node in self._nodes}
        for name, reader in last.items():
            if name not in kept:
                dying[reader].append(name)
        return dying
