"""Functions defined in a model: inlined at their calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from ...values.errors import ParseError
from .nodes import DEFAULT_DOMAINS, GRAPH
from .tensors import text

Key: TypeAlias = tuple[str, str, str]
"""A function's domain, name and overload."""

MOST_NBYTES = 1 << 26
"""Functions call functions, so that a few bytes may come to any number: a model that comes to more
than this, and to more than `MOST_TIMES` its own size, is refused."""

MOST_TIMES = 10

NODE_NBYTES = 1 << 10
"""Bytes of an inlined node, in addition to those in the file."""

DEEPEST = 100
"""Deepest nesting of calls and of graphs in nodes, which are inlined recursively."""


def inline_functions(model: Any, at: str) -> Any:
    """Return `model` with its functions inlined; errors, such as for recursion, name it `at`."""
    if not model.functions:
        return model
    _Reckoning(model, at).check()
    from onnx import inliner

    try:
        return inliner.inline_local_functions(model)
    except Exception as error:  # of C++, with no class of its own
        raise ParseError(
            f"the model's functions cannot be written out: {error}",
            at=at,
            fix="export the model without functions",
        ) from error


class _Given(NamedTuple):
    """A graph that is an attribute of a node, and where it was written down."""

    graph: Any
    given: Mapping[str, _Given | None]
    """The graphs among the attributes of the function around it, which it may refer to."""
    callers: tuple[Key, ...]
    """The functions around it."""


class _Reckoning:
    """The size of a model after inlining, computed before any inlining.

    Every call is followed, until the total is too large: the size of a function depends on the
    graphs passed to it, which may call functions and have nested graphs.
    """

    def __init__(self, model: Any, at: str) -> None:
        self._model, self._at = model, at
        self._functions: dict[Key, Any] = {}
        for one in model.functions:
            key = _make_key(one.domain, one.name, one)
            if key in self._functions:
                raise self._unreadable_error(f"the function {key[1]!r} is defined twice")
            self._functions[key] = one
        self._most = max(MOST_NBYTES, MOST_TIMES * model.ByteSize())
        self._nbytes = 0
        self._known: dict[Key, int] = {}
        """The sizes of functions without graph arguments."""

    def check(self) -> None:
        self._follow(self._model.graph, {}, (), 0)
        for key in self._functions:
            self._call(key, {}, (), 0)  # functions without calls may be inlined all the same

    def _follow(
        self, body: Any, given: Mapping[str, _Given | None], callers: tuple[Key, ...], depth: int
    ) -> None:
        """Count the nodes of `body` and of its calls, which stand at `depth` under `callers`.

        `given` are the graphs that its caller passes as attributes.
        """
        if depth > DEEPEST:
            raise self._unreadable_error(
                f"functions and graphs are over {DEEPEST} deep in each other"
            )
        self._spend(body.ByteSize() + NODE_NBYTES * len(body.node))
        for node in body.node:
            graphs: dict[str, _Given | None] = {}
            for attribute in node.attribute:
                if attribute.ref_attr_name:
                    graphs[attribute.name] = given.get(attribute.ref_attr_name)
                elif attribute.type == GRAPH:
                    graphs[attribute.name] = _Given(attribute.g, given, callers)
                    self._nbytes -= attribute.g.ByteSize()  # counted where it is put
            key = _make_key(node.domain, node.op_type, node)
            if key in self._functions:
                self._call(key, graphs, callers, depth)
            else:
                for one in filter(None, graphs.values()):
                    self._follow(*one, depth + 1)

    def _call(
        self, key: Key, given: Mapping[str, _Given | None], callers: tuple[Key, ...], depth: int
    ) -> None:
        if key in callers:
            raise self._unreadable_error(
                f"the function {key[1]!r} calls itself, directly or through others"
            )
        is_plain = not any(given.values())
        if is_plain and key in self._known:
            self._spend(self._known[key])
            return
        before = self._nbytes
        self._follow(self._functions[key], given, (*callers, key), depth + 1)
        if is_plain:
            self._known[key] = self._nbytes - before

    def _spend(self, nbytes: int) -> None:
        self._nbytes += nbytes
        if self._nbytes > self._most:
            raise self._unreadable_error(
                f"the model's functions, written out, come to more than {self._most:,} bytes"
            )

    def _unreadable_error(self, what: str) -> ParseError:
        return ParseError(what, at=self._at, fix="export the model again, without functions")


def _make_key(domain: Any, name: Any, proto: Any) -> Key:
    found = text(domain)
    overload = text(getattr(proto, "overload", ""))
    return "" if found in DEFAULT_DOMAINS else found, text(name), overload
