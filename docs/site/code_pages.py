"""Pages of the reference, from the code: public names, the command line, the operators."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import click
import plait
from plait import devices, formats, jobs, learning, operators, packing, passes, sources
from plait.cli.group import cli
from plait.dialects import cvm
from plait.graph.core.operator import Operator, find_operator, list_operators
from plait.graph.core.traits import IN_PLANS_ALONE, Part
from plait.scheduler import ray

OWN_OPERATORS = ("plait.graph.operators", "plait.dialects.cvm")
"""The beginnings of the modules that define them."""


class Page(NamedTuple):
    """A page of the reference.

    Attributes
    ----------
    title, about : str
    homes : tuple of str
        Where the public names on it are defined, as beginnings of the names of modules.
    module : ModuleType, optional
        Its public names follow.
    others : tuple of str
        Further contents, by full names.
    """

    title: str
    about: str
    homes: tuple[str, ...] = ()
    module: ModuleType | None = None
    others: tuple[str, ...] = ()


PAGES = {
    "graphs": Page(
        "Graphs",
        "What to compute: graphs are built, checked and printed with these.",
        ("plait.graph",),
    ),
    "pipelines": Page(
        "Pipelines",
        "Graphs made from callables, models and an example."
        " [Pipelines](../pipelines.md#in-ten-lines) explains them.",
        ("plait.scheduler.pipelines",),
    ),
    "files": Page(
        "Files and weights",
        "Models, weights and checkpoints in files. [Formats](../formats.md) and"
        " [state](../state.md) tell of them.",
        ("plait.graph.formats",),
        formats,
    ),
    "plans": Page(
        "Plans",
        "What is decided before anything runs, predicted, compared, tuned and kept."
        " [Plans](../plans.md) and [simulation](../simulation.md) tell of them.",
        (
            *("plait.scheduler.planner", "plait.scheduler.plans", "plait.scheduler.costs"),
            *("plait.scheduler.reports", "plait.scheduler.simulation", "plait.scheduler.tuning"),
            *("plait.scheduler.quantization", "plait.devices.model"),
        ),
    ),
    "sessions": Page(
        "Sessions",
        "Plans at work: items, streams, micro-batches, profiles. [Streams](../streams.md) and"
        " [profiling](../profiling.md) tell of them.",
        ("plait.scheduler.runtime", "plait.scheduler.bridges", "plait.scheduler.profile"),
    ),
    "training": Page(
        "Training",
        "Gradients, losses and optimizers as nodes of the same graph. [Train](../learning.md) and"
        " [gradients](../gradients.md) tell of them.",
        ("plait.graph.gradients",),
        learning,
    ),
    "sources": Page(
        "Sources",
        "Items from files, cameras and microphones. [Live streams](../live.md) tells of them.",
        module=sources,
    ),
    "jobs": Page(
        "Jobs",
        "Pipelines over data sets, stopped and resumed. [Jobs](../jobs.md) tells of them.",
        ("plait.scheduler.jobs",),
        jobs,
    ),
    "clusters": Page(
        "Clusters",
        "Devices and replicas of sessions on the hosts of a Ray cluster. [Cluster](../ray.md)"
        " tells of them.",
        module=ray,
    ),
    "errors": Page("Errors", "Each says what went wrong, where, and how to fix it."),
    "devices": Page(
        "Devices",
        "Where nodes run, and the protocol of a device of your own. [Add a device](../devices.md)"
        " tells of it.",
        ("plait.devices",),
        devices,
    ),
    "integers": Page(
        "Exact integers",
        "Networks that yield the same bits everywhere, and cvm models."
        " [Exact integers](../integers.md) tells of them.",
        module=cvm,
    ),
    "extending": Page(
        "Operators",
        "What operators, kernels, gradients and oracles of your own are made with, and what tests"
        " them. [Add an operator](../operators.md) tells of them.",
        module=operators,
        others=("plait.conformance.run_suite", "plait.testing.OnnxBackend"),
    ),
    "passes": Page(
        "Passes",
        "Rewrites of graphs, patterns and rules. [Passes](../passes.md) and"
        " [editing](../editing.md) tell of them.",
        module=passes,
    ),
    "packing": Page(
        "Packing",
        "Offsets of blocks that share bytes. [Packing](../packing.md) tells of them.",
        module=packing,
    ),
}


def code_pages() -> dict[str, str]:
    """Return all pages that are written from the code."""
    found = {f"reference/{name}.md": api_page(name) for name in PAGES}
    found["reference/index.md"] = index_page()
    found["reference/command_line.md"] = command_line_page()
    found["reference/operators.md"] = operators_page()
    return found


def names_on(page: str) -> list[str]:
    """Return the full names that are described on a page."""
    own = [name for name in _values() if page_of(name) == page]
    module = PAGES[page].module
    inner = [] if module is None else [one for one in module.__all__ if one not in _values()]
    more = [f"{_public_name(module)}.{one}" for one in inner] if module else []
    return [*(f"plait.{name}" for name in own), *more, *PAGES[page].others]


def page_of(name: str) -> str:
    """Return the page of a public name: the one with the longest beginning of its home.

    Raises
    ------
    LookupError
        If no page takes names that are defined there.
    """
    value = _values()[name]
    if inspect.isclass(value) and issubclass(value, Exception):
        return "errors"
    homes = {home: page for page, one in PAGES.items() for home in one.homes}
    fitting = [home for home in homes if f"{value.__module__}.".startswith(f"{home}.")]
    if not fitting:
        raise LookupError(f"no page of the reference takes plait.{name} of {value.__module__}")
    return homes[max(fitting, key=len)]


def api_page(name: str) -> str:
    """Return a page of the API, for mkdocstrings to fill in."""
    page = PAGES[name]
    parts = [f"# {page.title}\n\n{page.about}"]
    parts += [f"::: {each}" for each in names_on(name)]
    return "\n\n".join(parts) + "\n"


def index_page() -> str:
    """Return the page that lists all public names with the first line of each."""
    lines = ["# API", "", "`import plait as pl` offers these names."]
    for name, page in PAGES.items():
        lines += ["", f"## [{page.title}]({name}.md)", "", "| name | is |", "|---|---|"]
        for full in names_on(name):
            about = first_line(look_up(full)).replace("|", "\\|")
            lines.append(f"| [`{full.removeprefix('plait.')}`][{full}] | {about} |")
    return "\n".join(lines) + "\n"


def first_line(value: Any) -> str:
    """Return the first line of a docstring."""
    return (inspect.getdoc(value) or "").partition("\n")[0]


def command_line_page() -> str:
    """Return the page of all commands with their options."""
    context = click.Context(cli, info_name="plait")
    lines = ["# Command line", "", cli.help or "", "", "`plait COMMAND --help` prints the same."]
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        own = click.Context(command, context, name)
        lines += _command_lines(command, own)
        for inner in command.commands.values() if isinstance(command, click.Group) else ():
            lines += _command_lines(inner, click.Context(inner, own, f"{name} {inner.name}"))
    return "\n".join(lines) + "\n"


def _command_lines(command: click.Command, context: click.Context) -> Iterator[str]:
    yield from ("", f"## plait {context.info_name}", "", _prose(command.help or ""))
    yield from ("", "```text", command.get_usage(context).removeprefix("Usage: "), "```")
    records = [one.get_help_record(context) for one in command.get_params(context)]
    yield from ("", "| option | does |", "|---|---|")
    for record in filter(None, records):
        if record[0] == "--help" or not record[1]:
            continue
        option, text = (" ".join(part.split()).replace("|", "\\|") for part in record)
        yield f"| `{option}` | {_escaped(text)} |"


def _prose(text: str) -> str:
    """Return a command's help as Markdown; text that click must not wrap is kept."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    kept = ("\b" in one for one in paragraphs)
    return "\n\n".join(
        f"```text\n{one.replace(chr(8), '').strip()}\n```" if keep else _escaped(one)
        for one, keep in zip(paragraphs, kept, strict=True)
    )


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*")


def operators_page() -> str:
    """Return the page of all operators, with their properties."""
    own = sorted(own_operators(), key=lambda one: one.name.lower())
    lines = [
        "# Operators",
        "",
        f"plait has {len(own)} operators of its own. Those that ONNX has too mean what ONNX says.",
        "`?` marks an input that may be left out, `*` any number of inputs, `+` one or more.",
        "Training needs gradients. An operator with a decomposition can be written out in simpler",
        "operators, for devices that lack it. You can [add operators](../operators.md); those of",
        "[ONNX Runtime](../devices.md#operators-that-only-onnx-runtime-has) run on `ort` alone.",
        "",
        "| operator | inputs | attributes | gradient | decomposition |",
        "|---|---|---|---|---|",
        *(_operator_row(one) for one in own),
    ]
    return "\n".join(lines) + "\n"


def own_operators() -> list[Operator]:
    """Return plait's operators: not those of users, of ONNX Runtime, or for plans alone."""
    known = map(find_operator, list_operators())
    own = (one for one in known if one.module.startswith(OWN_OPERATORS))
    return [one for one in own if one.lacks != IN_PLANS_ALONE]


def _operator_row(operator: Operator) -> str:
    has = (_has(operator, part) for part in (Part.GRADIENT, Part.DECOMPOSITION))
    attributes = ", ".join(f"`{name}`" for name in operator.attributes)
    inputs = f"`{operator.inputs}`" if operator.inputs else ""
    return f"| `{operator.name}` | {inputs} | {attributes} | {' | '.join(has)} |"


def _has(operator: Operator, part: Part) -> str:
    return "" if part in operator.lacks else "yes"


def _values() -> dict[str, Any]:
    """Return the public names but modules: these have pages of their own."""
    found = {name: getattr(plait, name) for name in plait.__all__}
    return {name: value for name, value in found.items() if not isinstance(value, ModuleType)}


def _public_name(module: ModuleType) -> str:
    return next(f"plait.{name}" for name in plait.__all__ if getattr(plait, name) is module)


def look_up(full: str) -> Any:
    """Return the object of a full name."""
    parts = full.split(".")
    for at in range(len(parts) - 1, 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:at]))
        except ModuleNotFoundError:
            continue
        for part in parts[at:]:
            value = getattr(value, part)
        return value
    raise LookupError(full)


def all_names() -> Iterable[str]:
    """Return every full name that some page describes."""
    return [name for page in PAGES for name in names_on(page)]
