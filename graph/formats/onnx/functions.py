"""Functions that a model brings along: written out where they are called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from ...errors import ParseError
from .nested import all_nodes
from .tensors import text

Key: TypeAlias = tuple[str, str, str]
"""A function's domain, name and overload."""

MOST_NODES = 1_000_000
"""Functions that call functions may grow without bound: a model of more nodes is refused."""


def without_functions(model: Any, at: str) -> Any:
    """Return the model with its functions written out.

    Raises
    ------
    ParseError
        If they call themselves, or come to too many nodes, or do not hold together.
    """
    if not model.functions:
        return model
    sizes = _sizes(model, at)
    total = sum(sizes.get(_called(node), 1) for node in all_nodes(model.graph))
    if total > MOST_NODES:
        raise ParseError(
            f"the model's functions, written out, come to {total} nodes",
            at=at,
            fix=f"export the model with at most {MOST_NODES}",
        )
    from onnx import inliner

    try:
        return inliner.inline_local_functions(model)
    except Exception as error:  # of C++, with no class of its own
        raise ParseError(
            f"the model's functions cannot be written out: {error}",
            at=at,
            fix="export the model without functions",
        ) from error


def _sizes(model: Any, at: str) -> Mapping[Key, int]:
    """Return how many nodes each function comes to."""
    calls = {
        (text(each.domain), text(each.name), _overload(each)): [
            _called(node) for node in all_nodes(each)
        ]
        for each in model.functions
    }
    waits = {key: {one for one in called if one in calls} for key, called in calls.items()}
    readers: dict[Key, list[Key]] = {key: [] for key in calls}
    for key, needed in waits.items():
        for one in needed:
            readers[one].append(key)
    sizes: dict[Key, int] = {}
    ready = [key for key, needed in waits.items() if not needed]
    while ready:
        key = ready.pop()
        sizes[key] = sum(sizes.get(one, 1) for one in calls[key])
        for reader in readers[key]:
            waits[reader].discard(key)
            if not waits[reader]:
                ready.append(reader)
    if len(sizes) < len(calls):
        stuck = next(key for key in calls if key not in sizes)
        raise ParseError(
            f"the function {stuck[1]!r} calls itself, directly or through others",
            at=at,
            fix="export the model again: functions of ONNX may not",
        )
    return sizes


def _called(node: Any) -> Key:
    return text(node.domain), text(node.op_type), _overload(node)


def _overload(proto: Any) -> str:
    return text(getattr(proto, "overload", ""))
