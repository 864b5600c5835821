"""Completion for shells: devices, and what is named in the model that stands on the line.

Whatever goes wrong here, such as a model that is half written, completes nothing and says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from ..graph.ir import Graph

FILE = [CompletionItem("", type="file")]
"""Leaves completing to the shell."""

Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def complete_devices(
    ctx: click.Context, parameter: click.Parameter, text: str
) -> list[CompletionItem]:
    """Complete the last of some names of devices, with commas between them."""
    from ..devices import names

    before, comma, _ = text.rpartition(",")
    given = set(before.split(","))
    return _starting(text, (before + comma + name for name in names() if name not in given))


def complete_device(
    ctx: click.Context, parameter: click.Parameter, text: str
) -> list[CompletionItem]:
    """Complete one name of a device."""
    from ..devices import names

    return _starting(text, names())


def complete_pins(
    ctx: click.Context, parameter: click.Parameter, text: str
) -> list[CompletionItem]:
    """Complete the node in NODE=DEVICE, and then the device."""
    from ..devices import names

    node, equals, _ = text.rpartition("=")
    if equals:
        return _starting(text, (f"{node}={name}" for name in names()))
    return _starting(text, _named(ctx, lambda graph: (node.name for node in graph.nodes), "="))


def complete_tensors(
    ctx: click.Context, parameter: click.Parameter, text: str
) -> list[CompletionItem]:
    """Complete the name of a tensor."""
    return _starting(text, _named(ctx, lambda graph: graph.tensors))


def complete_shapes(
    ctx: click.Context, parameter: click.Parameter, text: str
) -> list[CompletionItem]:
    """Complete the input in NAME=SHAPE, with the shape that it has."""

    def told(graph: Graph) -> Iterator[str]:
        for name in graph.inputs:
            shape = graph.tensors[name].shape or ()
            yield f"{name}={','.join(map(str, shape))}"

    return _starting(text, _named(ctx, told))


def complete_inputs(
    ctx: click.Context, parameter: click.Parameter, text: str
) -> list[CompletionItem]:
    """Complete the input in NAME=SOURCE; the shell completes files."""
    from .inputs import RANDOM

    name, equals, _ = text.partition("=")
    if equals:
        return [*_starting(text, [f"{name}={RANDOM}"]), *FILE]
    return [*_starting(text, _named(ctx, lambda graph: graph.inputs, "=")), *FILE]


def complete_symbols(
    ctx: click.Context, parameter: click.Parameter, text: str
) -> list[CompletionItem]:
    """Complete the symbol in SYMBOL=LOW:HIGH."""

    def told(graph: Graph) -> Iterator[str]:
        for name in graph.inputs:
            yield from (dim for dim in graph.tensors[name].shape or () if isinstance(dim, str))

    return _starting(text, _named(ctx, told, "="))


def _named(
    ctx: click.Context, names: Callable[[Graph], Iterable[str]], ending: str = ""
) -> list[str]:
    """Return what is named in the model of the command line; nothing where there is none yet."""
    from pathlib import Path

    from ..scheduler.reports.plan_file import is_saved_plan, load_plan
    from .plan import load_graph

    # Where the option that is completed stands last, click has not told arguments apart yet.
    words = (ctx.params.get("model"), *ctx.args)
    model = next((Path(word) for word in words if isinstance(word, str | Path)), None)
    if model is None or not model.is_file():
        return []
    with suppress(Exception):  # the user hears of it from the command
        graph = load_plan(model).fed if is_saved_plan(model) else load_graph(model, None)
        return [f"{name}{ending}" for name in dict.fromkeys(names(graph))]
    return []


def _starting(text: str, words: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words if word.startswith(text)]
