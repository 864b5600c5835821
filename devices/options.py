"""Options of devices: what a kind can be told when one is made, as a value or as text."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from ..graph.names import did_you_mean
from .errors import DeviceError

Option: TypeAlias = Callable[[Any], Any]
"""Returns an option's value, given that or its text; raises ValueError, saying what it takes."""


def threads(value: Any) -> int:
    """Return on how many threads a device computes."""
    count = int(value) if isinstance(value, str) and value.isdecimal() else value
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError("a whole number, 1 or more")
    return count


def affinity(value: Any) -> tuple[int, ...]:
    """Return the numbers of the cores that a device computes on: ``"0,2"``, ``"0-3"``."""
    wanted = "numbers of cores, such as [0, 1]; as text 0,1 or 0-3"
    cores = list(_numbers(value, wanted)) if isinstance(value, str) else value
    if not isinstance(cores, Iterable) or isinstance(cores, Mapping):
        raise ValueError(wanted)
    listed = tuple(cores)
    if not listed or not all(isinstance(n, int) and not isinstance(n, bool) for n in listed):
        raise ValueError(wanted)
    if not hasattr(os, "sched_setaffinity"):
        raise ValueError("nothing here: this system cannot bind threads to cores")
    usable = os.sched_getaffinity(0)
    if not usable.issuperset(listed):
        raise ValueError(f"cores that this process may use: {_listed(usable)}")
    return tuple(sorted(set(listed)))


def spinning(value: Any) -> bool:
    """Return whether threads wait for each other in busy loops while a program runs."""
    known = {"yes": True, "true": True, "no": False, "false": False}
    found = known.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise ValueError("True or False; as text yes or no")
    return found


def checked(name: str, known: Mapping[str, Option], given: Mapping[str, object]) -> dict[str, Any]:
    """Return the options of a device as their values.

    Raises
    ------
    DeviceError
        If there is no such option, or it does not take the value.
    """
    found = {}
    for option, value in given.items():
        if option not in known:
            fix = did_you_mean(option, known, f"its options: {', '.join(known) or 'none'}")
            raise DeviceError(f"device {name!r} has no option {option!r}", fix=fix)
        try:
            found[option] = known[option](value)
        except ValueError as error:
            raise DeviceError(
                f"option {option!r} of device {name!r} is {value!r}", fix=f"it takes {error}"
            ) from error
    return found


def as_text(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options as they are written to files, and on the command line."""
    return {
        name: _listed(value) if isinstance(value, tuple) else str(value)
        for name, value in options.items()
    }


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, sorted(numbers)))


def _numbers(text: str, wanted: str) -> Iterable[int]:
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(wanted)
        yield from range(int(first), min(int(last or first), 1 << 16) + 1)
