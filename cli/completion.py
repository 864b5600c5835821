"""Completion for shells: names of devices, and names from the model on the command line.

Errors, such as of a half-written model, are ignored and yield no completions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from ..graph.core.ir import Graph

FILE = [CompletionItem("", type="file")]
"""Leaves completion to the shell."""

Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
Words = Callable[[click.Context, str], Iterable[str]]


def _complete(words: Words, *more: CompletionItem) -> Completion:
    def complete(ctx: click.Context, parameter: click.Parameter, text: str) -> list[CompletionItem]:
        found = (word for word in words(ctx, text) if word.startswith(text))
        return [*map(CompletionItem, found), *more]

    return complete


def _list_devices(ctx: click.Context, text: str) -> Iterable[str]:
    from ..devices import names

    before, comma, _ = text.rpartition(",")
    given = set(before.split(","))
    return (before + comma + name for name in names() if name not in given)


def _list_pins(ctx: click.Context, text: str) -> Iterable[str]:
    from ..devices import names

    node, equals, _ = text.rpartition("=")
    if equals:
        return (f"{node}={name}" for name in names())
    return _list_names(ctx, lambda graph: (node.name for node in graph.nodes), "=")


def _list_shapes(graph: Graph) -> Iterator[str]:
    for name in graph.inputs:
        shape = graph.tensors[name].shape or ()
        yield f"{name}={','.join(map(str, shape))}"


def _list_inputs(ctx: click.Context, text: str) -> Iterable[str]:
    """Complete the input in `text`: NAME=SOURCE, for the model in `ctx`; shells complete files."""
    from .inputs import RANDOM

    name, equals, _ = text.partition("=")
    return [f"{name}={RANDOM}"] if equals else _list_names(ctx, lambda graph: graph.inputs, "=")


def _list_symbols(graph: Graph) -> Iterator[str]:
    for name in graph.inputs:
        yield from (dim for dim in graph.tensors[name].shape or () if isinstance(dim, str))


def _list_names(
    ctx: click.Context, names: Callable[[Graph], Iterable[str]], ending: str = ""
) -> list[str]:
    from pathlib import Path

    from ..scheduler.reports.plan_file import is_saved_plan, load_plan
    from .plan import load_graph

    # If the completed option comes last, click has not assigned the arguments yet.
    words = (ctx.params.get("model"), *ctx.args)
    model = next((Path(word) for word in words if isinstance(word, str | Path)), None)
    if model is None or not model.is_file():
        return []
    with suppress(Exception):  # the command itself will report it
        graph = load_plan(model).fed if is_saved_plan(model) else load_graph(model, None)
        return [f"{name}{ending}" for name in dict.fromkeys(names(graph))]
    return []


complete_devices, complete_pins = _complete(_list_devices), _complete(_list_pins)
complete_device = _complete(lambda ctx, text: _list_devices(ctx, ""))
complete_tensors = _complete(lambda ctx, text: _list_names(ctx, lambda graph: graph.tensors))
complete_shapes = _complete(lambda ctx, text: _list_names(ctx, _list_shapes))
complete_inputs = _complete(_list_inputs, *FILE)
complete_symbols = _complete(lambda ctx, text: _list_names(ctx, _list_symbols, "="))
