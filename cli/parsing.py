"""Parse the values of options: devices, pins, shapes, sizes of memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import TypeVar

from .errors import CommandError

T = TypeVar("T")

UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
"""Bytes in a unit, by its name in capitals."""


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
    pins: dict[str, str] = {}
    for text in texts:
        # Node names may hold "="; device names do not.
        node, _, device = text.rpartition("=")
        if not node or not device:
            raise CommandError(
                f"--pin {text!r} is not NODE=DEVICE", fix="for example --pin 'encoder.*=cpu'"
            )
        put_once(pins, node, device, "--pin")
    return pins


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, lengths = text.rpartition("=")
        dims = lengths.split(",") if lengths else []
        if not name or not all(dim.strip().isdecimal() for dim in dims):
            raise CommandError(
                f"--shape {text!r} is not NAME=LENGTH,LENGTH,...",
                fix="for example --shape image=1,3,48,320",
            )
        put_once(shapes, name, tuple(map(int, dims)), "--shape")
    return shapes


def parse_bounds(texts: Sequence[str]) -> dict[str, int | tuple[int, int]]:
    """Parse ``SYMBOL=LARGEST`` and ``SYMBOL=SMALLEST:LARGEST`` options."""
    bounds: dict[str, int | tuple[int, int]] = {}
    for text in texts:
        symbol, _, lengths = text.rpartition("=")
        low, colon, high = lengths.rpartition(":")
        if not symbol or not high.isdecimal() or (colon and not low.isdecimal()):
            raise CommandError(
                f"--bound {text!r} is not SYMBOL=LARGEST, nor SYMBOL=SMALLEST:LARGEST",
                fix="for example --bound width=32:640",
            )
        put_once(bounds, symbol, (int(low), int(high)) if low else int(high), "--bound")
    return bounds


def parse_limits(texts: Sequence[str]) -> dict[str, int]:
    """Parse ``NAME=SIZE`` options to bytes; names are of devices or memories."""
    limits: dict[str, int] = {}
    for text in texts:
        name, _, size = text.rpartition("=")
        nbytes = parse_size(size)
        if not name or nbytes is None:
            raise CommandError(
                f"--memory-limit {text!r} is not NAME=SIZE",
                fix="for example --memory-limit cuda:0=2GiB, or host=512MB",
            )
        put_once(limits, name, nbytes, "--memory-limit")
    return limits


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
    """Parse ``2GiB``, ``1.5 MB`` or ``4096`` to bytes, or return None."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip(), re.IGNORECASE | re.ASCII)
    unit = UNITS.get(found[2].upper()) if found else None
    return int(Decimal(found[1]) * unit) if found and unit else None


def put_once(values: dict[str, T], name: str, value: T, option: str) -> None:
    """Add an option's value for a name; CommandError if it already has another value."""
    if values.setdefault(name, value) != value:
        raise CommandError(f"{option} says two things of {name!r}", fix="give it once")


def parse_factors(texts: Sequence[str]) -> dict[str, float]:
    factors: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            factor = float(number)
        except ValueError:
            factor = 0.0
        if not name or not 0 < factor < float("inf"):
            raise CommandError(
                f"--faster {text!r} is not OP=FACTOR", fix="for example --faster Conv=2"
            )
        put_once(factors, name, factor, "--faster")
    return factors
