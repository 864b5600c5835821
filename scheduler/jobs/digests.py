"""Digests of a job's work, by which a run sees that it is not the same as before."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from typing import Any

from ...graph.ir import Graph
from ...graph.item_order import CALLS, explain_order, find_kept
from ...graph.nested import list_graphs, walk_nodes
from ..costs.signature import to_text
from ..errors import JobError
from .sources import hash_texts

FORMAT = "format"
"""The part of a job that cannot change: pieces of parts are read again."""

_NUMBER = re.compile(r"#\d+$")
"""The end of the name of an operator of a pipeline that was made twice in a process."""


def hash_model(graph: Graph) -> str:
    """Return a digest of a graph: nodes, names, types and constants, without plans or devices."""
    texts: list[str] = []
    _add_graph(graph, texts)
    return hash_texts(texts)


def _add_graph(graph: Graph, texts: list[str]) -> None:
    texts += [str(graph.inputs), str(graph.outputs)]
    for name, value in sorted(graph.constants.items()):
        data = repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes()
        texts += [name, str(graph.tensors[name]), sha256(data).hexdigest()]
    for node in graph.nodes:
        attributes = to_text(node.attributes)
        texts += [_NUMBER.sub("", node.op), str(node.inputs), str(node.outputs), attributes]
        for nested in list_graphs(node):
            _add_graph(nested, texts)


def hash_code(graph: Graph) -> str:
    """Return a digest of the text of a graph's Python functions, without functions they call."""
    return hash_texts(
        _find_text(target)
        for _, _, node in walk_nodes(graph)
        if (function := node.operator.function) is not None
        for target in getattr(function, CALLS, (function,))
    )


def hash_key(key: Any) -> str:
    """Return a digest of the key of a stream, which may be a function."""
    return hash_texts([_find_text(key)]) if callable(key) else str(key)


def _find_text(target: Any) -> str:
    while isinstance(target, partial):
        target = target.func
    if not inspect.isroutine(target) and not inspect.isclass(target):
        target = type(target)
    try:
        return inspect.getsource(target)
    except (OSError, TypeError):  # it has no file: of a prompt, or written in C
        code = getattr(target, "__code__", None)
        return str(getattr(target, "__qualname__", target)) + (code.co_code.hex() if code else "")


def check_unchanged(before: Mapping[str, str], now: Mapping[str, str], *, accepts: bool) -> None:
    """Raise JobError if a part of the job is not as it was at the last commit."""
    changed = [name for name, digest in now.items() if before.get(name) != digest]
    if FORMAT in changed:
        raise JobError(
            f"the job wrote {before.get(FORMAT)} so far, and the sink is {now[FORMAT]}",
            fix="use the same format, or choose another folder",
        )
    if changed and not accepts:
        raise JobError(
            f"the job's {' and '.join(changed)} changed since its last commit",
            fix="accept_changes=True goes on with the rest of the items as they are now; to run "
            "all items, choose another folder",
        )


def check_order(graph: Graph) -> None:
    """Raise JobError for a function that keeps state, which no commit would save."""
    for path, _, node in walk_nodes(graph):
        operator = node.operator
        is_kept = operator.ordered or (operator.ordered is None and find_kept(operator))
        if operator.function is not None and is_kept:
            raise JobError(
                f"function {path!r} depends on the items before ({explain_order(operator)}), and a "
                "commit saves variables alone",
                fix="keep its state in a variable of the graph, or declare ordered=False",
            )
