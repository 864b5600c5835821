"""Parse the values of options: devices, pins, shapes, sizes of memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TypeVar

from ..graph.values.errors import PlaitError

T = TypeVar("T")

UNITS = {"": 1, "B": 1}
"""Bytes in a unit, by its name in capitals."""
for _power, _prefix in enumerate("KMGT", 1):
    UNITS |= {f"{_prefix}B": 1000**_power, f"{_prefix}IB": 1024**_power}


class CommandError(PlaitError):
    """The command line is wrong."""


def parse_devices(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise CommandError(
            f"--devices {text!r} has an empty name", fix="list names: --devices worker:0,cpu"
        )
    return names


def parse_device_options(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for text in texts:
        named, _, value = text.partition("=")
        device, _, option = named.rpartition(".")
        if not device or not option or not value:
            raise CommandError(
                f"--device-option {text!r} is not DEVICE.OPTION=VALUE",
                fix="for example --device-option cpu.threads=2",
            )
        put_once(found.setdefault(device, {}), option, value, "--device-option")
    return found


def parse_pins(texts: Sequence[str]) -> dict[str, str]:
    # Node names may hold "="; device names do not.
    return parse_pairs(texts, "--pin", "NODE=DEVICE", "'encoder.*=cpu'", str)


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    def parse(lengths: str) -> tuple[int, ...] | None:
        dims = lengths.split(",") if lengths else []
        return tuple(map(int, dims)) if all(dim.strip().isdecimal() for dim in dims) else None

    return parse_pairs(texts, "--shape", "NAME=LENGTH,LENGTH,...", "image=1,3,48,320", parse)


def parse_bounds(texts: Sequence[str]) -> dict[str, int | tuple[int, int]]:
    """Parse `texts` of ``--bound``, each ``SYMBOL=LARGEST`` or ``SYMBOL=SMALLEST:LARGEST``."""

    def parse(lengths: str) -> int | tuple[int, int] | None:
        low, colon, high = lengths.rpartition(":")
        if not high.isdecimal() or (colon and not low.isdecimal()):
            return None
        return (int(low), int(high)) if low else int(high)

    form = "SYMBOL=LARGEST, nor SYMBOL=SMALLEST:LARGEST"
    return parse_pairs(texts, "--bound", form, "width=32:640", parse)


def parse_limits(texts: Sequence[str]) -> dict[str, int]:
    """Parse `texts` of ``--memory-limit``, each ``NAME=SIZE``, to bytes by device or memory."""
    example = "cuda:0=2GiB, or host=512MB"
    return parse_pairs(texts, "--memory-limit", "NAME=SIZE", example, parse_size)


def parse_precisions(texts: Sequence[str]) -> str | dict[str, str]:
    named: dict[str, str] = {}
    for text in texts:
        device, named_one, dtype = text.rpartition("=")
        alone = not named_one and len(texts) == 1
        if dtype not in ("float16", "float32") or not (device or alone):
            raise CommandError(
                f"--precision {text!r} is not float16, nor DEVICE=float16",
                fix="for example --precision cuda:0=float16",
            )
        if alone:
            return dtype
        put_once(named, device, dtype, "--precision")
    return named


def parse_size(text: str) -> int | None:
    """Return the bytes that `text` says, such as ``2GiB``, ``1.5 MB`` or ``4096``, or None."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip(), re.IGNORECASE | re.ASCII)
    unit = UNITS.get(found[2].upper()) if found else None
    return int(Decimal(found[1]) * unit) if found and unit else None


def put_once(values: dict[str, T], name: str, value: T, option: str) -> None:
    if values.setdefault(name, value) != value:
        raise CommandError(f"{option} says two things of {name!r}", fix="give it once")


def parse_pairs(
    texts: Sequence[str],
    option: str,
    form: str,
    example: str,
    parse: Callable[[str], T | None],
    *,
    splits_first: bool = False,
) -> dict[str, T]:
    """Return the values in `texts`, each ``NAME=VALUE``, by name; each is parsed by `parse`.

    `splits_first` ends the name at the first ``=``, not at the last. Raises CommandError, with the
    `form` and an `example` of `option`, for a missing name or a value parsed as None or "".
    """
    found: dict[str, T] = {}
    for text in texts:
        name, _, value = text.partition("=") if splits_first else text.rpartition("=")
        parsed = parse(value)
        if not name or parsed is None or parsed == "":
            raise CommandError(
                f"{option} {text!r} is not {form}", fix=f"for example {option} {example}"
            )
        put_once(found, name, parsed, option)
    return found


def parse_factors(texts: Sequence[str]) -> dict[str, float]:
    def parse(number: str) -> float | None:
        try:
            factor = float(number)
        except ValueError:
            return None
        return factor if 0 < factor < float("inf") else None

    return parse_pairs(texts, "--faster", "OP=FACTOR", "Conv=2", parse)
