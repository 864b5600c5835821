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


def complete_devices(
    ctx: click.Context, parameter: click.Parameter, text: str
) -> list[CompletionItem]:
    """Complete the last name of a comma-separated list of devices."""
    from ..devices import names

    before, comma, _ = text.rpartition(",")
    given = set(before.split(","))
    return _filter_words(text, (before + comma + name for name in names() if name not in given))


def complete_device(
    ctx: click.Context, parameter: click.Parameter, text: str
) -> list[CompletionItem]:
    from ..devices import names

    return _filter_words(text, names())


def complete_pins(
    ctx: click.Context, parameter: click.Parameter, text: str
) -> list[CompletionItem]:
    """Complete the node, then the device, in NODE=DEVICE."""
    from ..devices import names

    node, equals, _ = text.rpartition("=")
    if equals:
        return _filter_words(text, (f"{node}={name}" for name in names()))
    return _filter_words(
        text, _list_names(ctx, lambda graph: (node.name for node in graph.nodes), "=")
    )


def complete_tensors(
    ctx: click.Context, parameter: click.Parameter, text: str
) -> list[CompletionItem]:
    return _filter_words(text, _list_names(ctx, lambda graph: graph.tensors))


def complete_shapes(
    ctx: click.Context, parameter: click.Parameter, text: str
) -> list[CompletionItem]:
    def list_shapes(graph: Graph) -> Iterator[str]:
        for name in graph.inputs:
            shape = graph.tensors[name].shape or ()
            yield f"{name}={','.join(map(str, shape))}"

    return _filter_words(text, _list_names(ctx, list_shapes))


def complete_inputs(
    ctx: click.Context, parameter: click.Parameter, text: str
) -> list[CompletionItem]:
    """Complete the input in NAME=SOURCE; the shell completes files."""
    from .inputs import RANDOM

    name, equals, _ = text.partition("=")
    if equals:
        return [*_filter_words(text, [f"{name}={RANDOM}"]), *FILE]
    return [*_filter_words(text, _list_names(ctx, lambda graph: graph.inputs, "=")), *FILE]


def complete_symbols(
    ctx: click.Context, parameter: click.Parameter, text: str
) -> list[CompletionItem]:
    def list_symbols(graph: Graph) -> Iterator[str]:
        for name in graph.inputs:
            yield from (dim for dim in graph.tensors[name].shape or () if isinstance(dim, str))

    return _filter_words(text, _list_names(ctx, list_symbols, "="))


def _list_names(
    ctx: click.Context, names: Callable[[Graph], Iterable[str]], ending: str = ""
) -> list[str]:
    """Return names in the model on the command line, if it has one."""
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


def _filter_words(text: str, words: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words if word.startswith(text)]
