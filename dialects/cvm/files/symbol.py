"""A cvm symbol: JSON with a graph and tables of its entries, parsed but not yet validated.

An entry is one output of one node; entries are numbered node by node. Malformed JSON, unknown keys
and values of another type are runtime failures, free of charge; missing keys and tables of the
wrong length are the model's fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ....graph.formats.sources import decode_json
from ....graph.values.errors import LogicError, RuntimeFailureError

DEFAULT_VERSION = "cvm_1.0.0"
VERSIONS = (DEFAULT_VERSION, "cvm_1.1.0")
"""The tables of the first version must be complete and right; those of the second are remade."""

EXPORT = "write the model again: the file is damaged, or its writer is wrong"


@dataclass(frozen=True, slots=True)
class SymbolNode:
    name: str
    function: str | None
    """The operator's name, perhaps with a number at its end; None for a variable."""
    inputs: tuple[tuple[int, int], ...]
    """Node and output of each."""


@dataclass(frozen=True, slots=True)
class SymbolGraph:
    nodes: tuple[SymbolNode, ...]
    heads: tuple[tuple[int, int], ...]
    """The graph's outputs: node and output of each."""
    arg_nodes: tuple[int, ...]
    node_row_ptr: tuple[int, ...]
    """The variables, and the first entry of each node."""
    shapes: tuple[tuple[int, ...], ...]
    """Per entry, like storage_ids, precisions and dltypes."""
    storage_ids: tuple[int, ...]
    precisions: tuple[int, ...]
    dltypes: tuple[str, ...]
    op_attributes: tuple[str, ...]
    """A JSON object of strings for each node."""
    version: str
    postprocess: str


def parse_symbol(data: bytes | str, at: str = "symbol") -> SymbolGraph:
    """Parse `data`, the JSON of a symbol; `at` is its name in errors.

    Raises RuntimeFailureError if it is malformed, has an unknown key, or a value of the wrong type;
    LogicError if a key is missing.
    """
    root = _read_object(parse_json(data, at), at)
    _check_keys(root, _ROOT, ("nodes", "heads", "attrs"), at)
    # Only types are checked here; comparing tables with nodes takes the whole graph.
    tables = _read_tables(root["attrs"], f"attrs, {at}")
    return SymbolGraph(
        nodes=tuple(
            _read_node(value, f"node {index}, {at}")
            for index, value in enumerate(_read_list(root["nodes"], f"nodes, {at}"))
        ),
        heads=_read_entries(root["heads"], f"heads, {at}"),
        arg_nodes=_read_integers(root.get("arg_nodes", []), f"arg_nodes, {at}"),
        node_row_ptr=_read_integers(root.get("node_row_ptr", []), f"node_row_ptr, {at}"),
        shapes=tables.get("shape", ()),
        storage_ids=tables.get("storage_id", ()),
        precisions=tables.get("precision", ()),
        dltypes=tables.get("dltype", ()),
        op_attributes=tables.get("op_attrs", ()),
        version=_read_text(root.get("version", DEFAULT_VERSION), f"version, {at}"),
        postprocess=_read_text(root.get("postprocess", ""), f"postprocess, {at}")[:32],
    )


_ROOT = ("nodes", "arg_nodes", "node_row_ptr", "heads", "attrs", "version", "postprocess")
_NODE = ("op", "name", "inputs", "attrs", "precision")
_NODE_ATTRS = ("func_name", "num_inputs", "num_outputs", "op_attrs", "flatten_data")


def _read_node(value: Any, at: str) -> SymbolNode:
    node = _read_object(value, at)
    _check_keys(node, _NODE, ("op", "name", "inputs"), at)
    kind = _read_text(node["op"], f"op, {at}")
    if kind not in ("cvm_op", "null"):
        reject(f"op is {kind!r}, neither 'cvm_op' nor 'null'", at)
    # Only its type matters, since the table of precisions is used.
    _read_integer(node.get("precision", 0), f"precision, {at}")
    attributes: Mapping[str, str] = {}
    if "attrs" in node or kind == "cvm_op":
        # Only func_name matters: a node's inputs are those that it lists.
        attributes = read_texts(node.get("attrs", {}), f"attrs, {at}")
        _check_keys(attributes, _NODE_ATTRS, ("func_name",), f"attrs, {at}")
    return SymbolNode(
        _read_text(node["name"], f"name, {at}"),
        attributes["func_name"] if kind == "cvm_op" else None,
        _read_entries(node["inputs"], f"inputs, {at}"),
    )


def _read_tables(value: Any, at: str) -> dict[str, Any]:
    """Read the attributes of a graph, pairs of a type and a list in `value`, at the place `at`."""
    tables = _read_object(value, at)
    _check_keys(tables, _TABLES, ("shape", "storage_id", "op_attrs"), at)
    found = {}
    for key, pair in tables.items():
        where = f"{key}, {at}"
        listed = _read_list(pair, where)
        if len(listed) != 2:
            reject(f"has {len(listed)} elements, not a type and a list", where)
        kind = _read_text(listed[0], where)
        if key == "dtype":  # unused, so that its content is not checked
            if kind not in ("list_int", "list_str"):
                fail(f"is of the type {kind!r}", where)
            continue
        if kind != _TABLES[key]:
            reject(f"is of the type {kind!r}, not {_TABLES[key]!r}", where)
        found[key] = _LISTS[kind](listed[1], where)
    if found.get("device_index"):
        reject("device_index is not empty", at)
    return found


_TABLES = {
    "shape": "list_shape",
    "storage_id": "list_int",
    "op_attrs": "list_str",
    "precision": "list_int",
    "dltype": "list_str",
    "device_index": "list_int",
    "dtype": "",
}


def parse_json(data: bytes | str, at: str) -> Any:
    """Parse the JSON `data` of the file `at`; repeated keys and infinite numbers are errors."""

    def text() -> str:
        return data if isinstance(data, str) else bytes(data).decode()

    return decode_json(text, at, RuntimeFailureError, EXPORT)


def fail(what: str, at: str) -> NoReturn:
    raise RuntimeFailureError(what, at=at, fix=EXPORT)


def reject(what: str, at: str) -> NoReturn:
    raise LogicError(what, at=at, fix=EXPORT)


def read_texts(value: Any, at: str) -> dict[str, str]:
    return {key: _read_text(one, f"{key}, {at}") for key, one in _read_object(value, at).items()}


def _check_keys(
    value: Mapping[str, Any],
    known: Sequence[str] | Mapping[str, str],
    required: Sequence[str],
    at: str,
) -> None:
    for key in value:
        if key not in known:
            fail(f"there is no key {key!r} in a cvm model", at)
    for key in required:
        if key not in value:
            reject(f"the key {key!r} is missing", at)


def _read_object(value: Any, at: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        fail(f"expected an object, got {_shorten(value)}", at)
    return value


def _read_list(value: Any, at: str) -> list[Any]:
    if not isinstance(value, list):
        fail(f"expected a list, got {_shorten(value)}", at)
    return value


def _read_text(value: Any, at: str) -> str:
    if not isinstance(value, str):
        fail(f"expected a string, got {_shorten(value)}", at)
    try:
        # JSON can spell half of a surrogate pair, which cannot be encoded in files or messages.
        value.encode()
    except UnicodeEncodeError:
        fail(f"{_shorten(value)} holds half a surrogate pair", at)
    return value


def _read_integer(value: Any, at: str) -> int:
    # In Python, true is an instance of int.
    if not isinstance(value, int) or isinstance(value, bool):
        fail(f"expected an integer, got {_shorten(value)}", at)
    return value


def _shorten(value: Any) -> str:
    return f"{type(value).__name__} {value!r}"[:60]


def _read_integers(value: Any, at: str) -> tuple[int, ...]:
    return tuple(_read_integer(element, at) for element in _read_list(value, at))


def _read_strings(value: Any, at: str) -> tuple[str, ...]:
    return tuple(_read_text(element, at) for element in _read_list(value, at))


def _read_shapes(value: Any, at: str) -> tuple[tuple[int, ...], ...]:
    return tuple(_read_integers(element, at) for element in _read_list(value, at))


def _read_entries(value: Any, at: str) -> tuple[tuple[int, int], ...]:
    """Read `value`, pairs of a node and an output, at the place `at`; a third number is ignored."""
    entries = _read_shapes(value, at)
    for entry in entries:
        if len(entry) not in (2, 3):
            reject(f"an entry has {len(entry)} numbers, not a node and an output", at)
    return tuple((entry[0], entry[1]) for entry in entries)


_LISTS = {"list_int": _read_integers, "list_str": _read_strings, "list_shape": _read_shapes}
