"""Options for how items are streamed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal

import click

from .help import Adder, add_options, option
from .parsing import CommandError
from .plan import PlanArguments

if TYPE_CHECKING:
    from ..scheduler.runtime.streaming.options import StreamArguments


@dataclass(frozen=True, slots=True)
class Streaming:
    arguments: StreamArguments
    """For the session."""
    stop: bool = False
    """End with the first item that fails."""


def add_streaming_options(command: Callable[..., None]) -> Callable[..., None]:
    @wraps(command)
    def with_streaming(
        request: PlanArguments,
        *,
        unordered: bool,
        batch: int | None,
        max_delay_ms: float | None,
        deadline_ms: float | None,
        on_error: str,
        keep: str | None,
        drop: Literal["oldest", "newest"] | None,
        key: str | None,
        **options: Any,
    ) -> None:
        arguments: StreamArguments = {
            "ordered": not unordered,
            "batch": batch,
            "max_delay_s": None if max_delay_ms is None else max_delay_ms / 1e3,
            "deadline_s": None if deadline_ms is None else deadline_ms / 1e3,
            "keep": "latest" if keep == "latest" else parse_keep(keep),
            "drop": drop,
            "key": key,
        }
        command(request, streaming=Streaming(arguments, stop=on_error == "stop"), **options)

    return add_options(with_streaming, _OPTIONS)


def parse_keep(text: str | None) -> int | None:
    """Return the number of waiting items that `text` says, None for None; or raise CommandError."""
    if text is None:
        return None
    if not text.isdecimal():
        raise CommandError(f"--keep is {text!r}", fix="--keep latest, or a whole number from 1 on")
    return int(text)


_OPTIONS: tuple[Adder, ...] = (
    option(
        "Streaming", "--unordered", is_flag=True, help="Take results as they come, not in order."
    ),
    option(
        "Streaming",
        "--batch",
        type=click.IntRange(min=1),
        metavar="B",
        help="Run B items at once, stacked along the first axis; --max-in-flight counts batches.",
    ),
    option(
        "Streaming",
        "--max-delay-ms",
        type=click.FloatRange(min=0),
        metavar="MS",
        help="How long a batch may wait to fill up; by default forever.",
    ),
    option(
        "Streaming",
        "--deadline-ms",
        type=click.FloatRange(min=0, min_open=True),
        metavar="MS",
        help="Fail items that take longer.",
    ),
    option(
        "Streaming",
        "--on-error",
        type=click.Choice(["continue", "stop"]),
        default="continue",
        show_default=True,
        help="What to do when an item fails.",
    ),
    option(
        "Streaming",
        "--keep",
        metavar="latest|N",
        help="Read items as fast as they come, and let at most N wait, or only the latest; "
        "others are dropped.",
    ),
    option(
        "Streaming",
        "--drop",
        type=click.Choice(["oldest", "newest"]),
        help="Which items --keep drops; by default the oldest.",
    ),
    option(
        "Streaming",
        "--key",
        metavar="INPUT",
        help="Keep a state for each value of this input: see docs/state.md.",
    ),
)
