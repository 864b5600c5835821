"""The registry of LightNet's operators, with the names of their arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from .entries import Entry, fail
from .statement import Statement

Writer: TypeAlias = Callable[[Statement], None]

DEVICES = ("_cpu", "_cuda", "_cudnn")
"""Suffixes of optypes in files made for a device."""


@dataclass(frozen=True, slots=True)
class LightNetRule:
    inputs: str
    outputs: str
    parameters: str
    """The names of its arguments; ``*`` after a prefix allows any number of them."""
    write: Writer


RULES: dict[str, LightNetRule] = {}
"""By optype, without the suffix of a device."""


def register_rule(
    optype: str, inputs: str, parameters: str = "", outputs: str = "dst"
) -> Callable[[Writer], Writer]:
    def register(write: Writer) -> Writer:
        RULES[optype] = LightNetRule(inputs, outputs, parameters, write)
        return write

    return register


def find_rule(optype: str) -> LightNetRule | None:
    for suffix in DEVICES:
        optype = optype.removesuffix(suffix)
    return RULES.get(optype)


def check_arguments(entry: Entry, rule: LightNetRule, at: str) -> None:
    """Raise ParseError, at the place `at`, if `entry` has arguments that `rule` does not list."""
    groups: tuple[tuple[str, Mapping[str, object], str], ...] = (
        ("input", entry.inputs, rule.inputs),
        ("output", entry.outputs, rule.outputs),
        ("parameter", entry.parameters, rule.parameters),
    )
    for what, given, formals in groups:
        for name in given:
            if not any(_matches(formal, name) for formal in formals.split()):
                fail(f"there is no {what} {name!r}, only {formals or 'none'}", f"{entry}, {at}")


def _matches(formal: str, name: str) -> bool:
    return name.startswith(formal[:-1]) if formal.endswith("*") else name == formal
