"""Options of devices, as values or as text.

Saved plans carry only options that are `PortableOption`: a file from a stranger must not choose
paths, addresses, or settings of other software, which load libraries by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..graph.values.errors import suggest_names
from .errors import DeviceError

Option: TypeAlias = Callable[[Any], Any]
"""Converts a value or its text; its ValueError describes the accepted values."""

MOST_THREADS = 4096


@dataclass(frozen=True, slots=True)
class PortableOption:
    """An option that saved plans carry, with numbers or fixed words as values.

    Other options are given again when a plan is loaded, because its file may come from anywhere.

    Examples
    --------
    >>> import plait as pl
    >>> level = pl.devices.PortableOption(int)
    >>> level("3")
    3
    """

    convert: Option

    def __call__(self, value: Any) -> Any:
        return self.convert(value)


@PortableOption
def threads(value: Any) -> int:
    count = int(value) if isinstance(value, str) and value.isdecimal() else value
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_THREADS:
        raise ValueError(f"a whole number from 1 to {MOST_THREADS}")
    return count


@PortableOption
def affinity(value: Any) -> tuple[int, ...]:
    """Return the numbers of cores in `value`, sorted: numbers, or ``"0,2"``, ``"0-3"``."""
    wanted = "numbers of cores, such as [0, 1]; as text 0,1 or 0-3"
    cores = list(_parse_numbers(value, wanted)) if isinstance(value, str) else value
    if not isinstance(cores, Iterable) or isinstance(cores, Mapping):
        raise ValueError(wanted)
    listed = tuple(cores)
    if not listed or not all(isinstance(n, int) and not isinstance(n, bool) for n in listed):
        raise ValueError(wanted)
    if not hasattr(os, "sched_setaffinity"):
        raise ValueError("nothing here: this system cannot bind threads to cores")
    usable = os.sched_getaffinity(0)
    if not usable.issuperset(listed):
        raise ValueError(f"cores that this process may use: {_join_numbers(usable)}")
    return tuple(sorted(set(listed)))


@PortableOption
def spinning(value: Any) -> bool:
    """Convert `value`: whether threads wait for each other in busy loops while a program runs."""
    return parse_flag(value)


def parse_flag(value: Any) -> bool:
    known = {"yes": True, "true": True, "no": False, "false": False}
    found = known.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise ValueError("True or False; as text yes or no")
    return found


def accept_words(words: tuple[str, ...]) -> Option:
    def convert(value: Any) -> str:
        if value not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return str(value)

    return PortableOption(convert)


def convert_options(
    name: str, known: Mapping[str, Option], given: Mapping[str, object]
) -> dict[str, Any]:
    """Return the options `given` to device `name`, converted by those that are `known`.

    Raises DeviceError if the option is unknown, or does not accept the value.
    """
    found = {}
    for option, value in given.items():
        if option not in known:
            fix = suggest_names(option, known, f"its options: {', '.join(known) or 'none'}")
            raise DeviceError(f"device {name!r} has no option {option!r}", fix=fix)
        try:
            found[option] = known[option](value)
        except ValueError as error:
            raise DeviceError(
                f"option {option!r} of device {name!r} is {value!r}", fix=f"it takes {error}"
            ) from error
    return found


def to_texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Return `options` as texts for files and command lines."""
    return {
        name: _join_numbers(value) if isinstance(value, tuple) else str(value)
        for name, value in options.items()
    }


def _join_numbers(numbers: Iterable[int]) -> str:
    return ",".join(map(str, sorted(numbers)))


def _parse_numbers(text: str, wanted: str) -> Iterable[int]:
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(wanted)
        yield from range(int(first), min(int(last or first), 1 << 16) + 1)
