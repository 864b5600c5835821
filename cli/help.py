"""Help of commands: options in groups, examples and exit codes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeAlias, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
Adder: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]

EXIT_CODES = (
    ("0", "it worked"),
    ("1", "a device, or an item of a stream, failed"),
    ("2", "the command line, the model or the inputs are wrong"),
    ("130", "interrupted"),
)

HELP_OPTIONS = ["-h", "--help"]

OWN = "Options"
"""The heading of options of one command only."""


class Option(click.Option):
    """An option that help shows under a heading."""

    def __init__(self, *arguments: Any, group: str = OWN, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.group = group


def option(group: str, *names: str, **options: Any) -> Callable[[F], F]:
    return click.option(*names, cls=Option, group=group, **options)


def add_options(command: Callable[..., None], options: Sequence[Adder]) -> Callable[..., None]:
    # In reverse: click lists options from the outermost decorator.
    return reduce(lambda asking, adds_option: adds_option(asking), reversed(options), command)


class Command(click.Command):
    """A command with help that shows options in groups, and ends with examples and exit codes.

    `examples` are command lines, one a line.
    """

    def __init__(self, *arguments: Any, examples: str = "", **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.examples = examples

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        """Return constant help options for any `ctx`, since click caches those of the first one."""
        return HELP_OPTIONS

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in `ctx` to `formatter`: the command's own first, then by heading."""
        groups: dict[str, list[tuple[str, str]]] = {OWN: []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                groups.setdefault(getattr(parameter, "group", OWN), []).append(record)
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples.strip().splitlines():
                    formatter.write(f"{'':{formatter.current_indent}}{line.strip()}\n")
        write_exit_codes(formatter)


def write_exit_codes(formatter: click.HelpFormatter) -> None:
    with formatter.section("Exit codes"):
        formatter.write_dl(EXIT_CODES)
