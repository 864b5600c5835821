"""A cvm symbol: JSON that holds a graph and what each of its entries is, read but not yet believed.

An entry is one output of one node; entries are numbered through, node by node. What is no JSON, has
a key that cvm does not know, or a value of another type, is a runtime failure, free of charge; what
is missing or of the wrong length is the model's fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ....graph.errors import LogicError, RuntimeFailureError
from ....graph.formats.sources import decode_json

DEFAULT_VERSION = "cvm_1.0.0"
VERSIONS = (DEFAULT_VERSION, "cvm_1.1.0")
"""Of the first, all tables must be there and right; of the second, they are made anew."""

EXPORT = "write the model again: it is damaged, or whatever wrote it is wrong"


@dataclass(frozen=True, slots=True)
class SymbolNode:
    """A node as the symbol has it.

    Attributes
    ----------
    name : str
    function : str or None
        The operator's name, perhaps with a number behind it; None for a variable.
    inputs : tuple of (int, int)
        Which output of which node.
    """

    name: str
    function: str | None
    inputs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class SymbolGraph:
    """A symbol's content.

    Attributes
    ----------
    nodes : tuple of SymbolNode
    heads : tuple of (int, int)
        The graph's outputs: which output of which node.
    arg_nodes, node_row_ptr : tuple of int
        The variables, and the first entry of each node.
    shapes : tuple of tuple of int
        Of each entry; so are storage_ids, precisions and dltypes.
    storage_ids, precisions : tuple of int
    dltypes : tuple of str
    op_attributes : tuple of str
        A JSON object of strings for each node.
    version, postprocess : str
    """

    nodes: tuple[SymbolNode, ...]
    heads: tuple[tuple[int, int], ...]
    arg_nodes: tuple[int, ...]
    node_row_ptr: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    storage_ids: tuple[int, ...]
    precisions: tuple[int, ...]
    dltypes: tuple[str, ...]
    op_attributes: tuple[str, ...]
    version: str
    postprocess: str


def parse_symbol(data: bytes | str, at: str = "symbol") -> SymbolGraph:
    """Return what a symbol holds.

    Raises
    ------
    RuntimeFailureError
        If it is no JSON, has an unknown key, or a value of the wrong type.
    LogicError
        If something is missing.
    """
    root = _object(parse_json(data, at), at)
    _check_keys(root, _ROOT, ("nodes", "heads", "attrs"), at)
    # Types alone are looked at here: whether tables agree with the nodes takes the whole graph.
    tables = _tables(root["attrs"], f"attrs, {at}")
    return SymbolGraph(
        nodes=tuple(
            _node(value, f"node {index}, {at}")
            for index, value in enumerate(_list(root["nodes"], f"nodes, {at}"))
        ),
        heads=_entries(root["heads"], f"heads, {at}"),
        arg_nodes=_integers(root.get("arg_nodes", []), f"arg_nodes, {at}"),
        node_row_ptr=_integers(root.get("node_row_ptr", []), f"node_row_ptr, {at}"),
        shapes=tables.get("shape", ()),
        storage_ids=tables.get("storage_id", ()),
        precisions=tables.get("precision", ()),
        dltypes=tables.get("dltype", ()),
        op_attributes=tables.get("op_attrs", ()),
        version=_text(root.get("version", DEFAULT_VERSION), f"version, {at}"),
        postprocess=_text(root.get("postprocess", ""), f"postprocess, {at}")[:32],
    )


_ROOT = ("nodes", "arg_nodes", "node_row_ptr", "heads", "attrs", "version", "postprocess")
_NODE = ("op", "name", "inputs", "attrs", "precision")
_NODE_ATTRS = ("func_name", "num_inputs", "num_outputs", "op_attrs", "flatten_data")


def _node(value: Any, at: str) -> SymbolNode:
    node = _object(value, at)
    _check_keys(node, _NODE, ("op", "name", "inputs"), at)
    kind = _text(node["op"], f"op, {at}")
    if kind not in ("cvm_op", "null"):
        wrong(f"op is {kind!r}, neither 'cvm_op' nor 'null'", at)
    # Of its type, whatever it is: the table of precisions counts.
    _integer(node.get("precision", 0), f"precision, {at}")
    attributes: Mapping[str, str] = {}
    if "attrs" in node or kind == "cvm_op":
        # Of these only func_name means anything: what a node reads are the inputs that it lists.
        attributes = texts(node.get("attrs", {}), f"attrs, {at}")
        _check_keys(attributes, _NODE_ATTRS, ("func_name",), f"attrs, {at}")
    return SymbolNode(
        _text(node["name"], f"name, {at}"),
        attributes["func_name"] if kind == "cvm_op" else None,
        _entries(node["inputs"], f"inputs, {at}"),
    )


def _tables(value: Any, at: str) -> dict[str, Any]:
    """Return the graph's attributes: each is a pair of a type's name and a list."""
    tables = _object(value, at)
    _check_keys(tables, _TABLES, ("shape", "storage_id", "op_attrs"), at)
    found = {}
    for key, pair in tables.items():
        where = f"{key}, {at}"
        listed = _list(pair, where)
        if len(listed) != 2:
            wrong(f"has {len(listed)} elements, not a type and a list", where)
        kind = _text(listed[0], where)
        if key == "dtype":  # known but never used, whatever it holds
            if kind not in ("list_int", "list_str"):
                fail(f"is of the type {kind!r}", where)
            continue
        if kind != _TABLES[key]:
            wrong(f"is of the type {kind!r}, not {_TABLES[key]!r}", where)
        found[key] = _LISTS[kind](listed[1], where)
    if found.get("device_index"):
        wrong("device_index is not empty", at)
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
    """Return a JSON value; no key twice, no number that is none."""

    def text() -> str:
        return data if isinstance(data, str) else bytes(data).decode()

    return decode_json(text, at, RuntimeFailureError, EXPORT)


def fail(what: str, at: str) -> NoReturn:
    """Raise a RuntimeFailureError about a damaged or foreign model."""
    raise RuntimeFailureError(what, at=at, fix=EXPORT)


def wrong(what: str, at: str) -> NoReturn:
    """Raise a LogicError about a model that breaks a rule."""
    raise LogicError(what, at=at, fix=EXPORT)


def texts(value: Any, at: str) -> dict[str, str]:
    """Return a JSON object of strings."""
    return {key: _text(element, f"{key}, {at}") for key, element in _object(value, at).items()}


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
            wrong(f"the key {key!r} is missing", at)


def _object(value: Any, at: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        fail(f"expected an object, got {_brief(value)}", at)
    return value


def _list(value: Any, at: str) -> list[Any]:
    if not isinstance(value, list):
        fail(f"expected a list, got {_brief(value)}", at)
    return value


def _text(value: Any, at: str) -> str:
    if not isinstance(value, str):
        fail(f"expected a string, got {_brief(value)}", at)
    try:
        # JSON can spell half a character, which no file or message could hold.
        value.encode()
    except UnicodeEncodeError:
        fail(f"{_brief(value)} holds half a surrogate pair", at)
    return value


def _integer(value: Any, at: str) -> int:
    # JSON's true would pass for 1.
    if not isinstance(value, int) or isinstance(value, bool):
        fail(f"expected an integer, got {_brief(value)}", at)
    return value


def _brief(value: Any) -> str:
    return f"{type(value).__name__} {value!r}"[:60]


def _integers(value: Any, at: str) -> tuple[int, ...]:
    return tuple(_integer(element, at) for element in _list(value, at))


def _strings(value: Any, at: str) -> tuple[str, ...]:
    return tuple(_text(element, at) for element in _list(value, at))


def _shapes(value: Any, at: str) -> tuple[tuple[int, ...], ...]:
    return tuple(_integers(element, at) for element in _list(value, at))


def _entries(value: Any, at: str) -> tuple[tuple[int, int], ...]:
    """Return pairs of node and output; a third number, a version, means nothing."""
    entries = _shapes(value, at)
    for entry in entries:
        if len(entry) not in (2, 3):
            wrong(f"an entry has {len(entry)} numbers, not a node and an output", at)
    return tuple((entry[0], entry[1]) for entry in entries)


_LISTS = {"list_int": _integers, "list_str": _strings, "list_shape": _shapes}
