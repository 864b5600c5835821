"""Whatever plait has for operators is there for each of its own, or the operator says why not.

The shape rule and the cost are no question: nothing can be defined without them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import replace
from functools import cache
from typing import Any

import plait as pl
import pytest
from generators import list_generated_ops
from plait.devices.codegen import registry as codegen
from plait.devices.formal import registry as formal
from plait.devices.formal.registry import find_definition
from plait.devices.kernels import registry as kernels
from plait.devices.kernels.registry import ANY, find_kernel
from plait.graph.core.operator import Operator, _operators, find_operator
from plait.graph.core.traits import Part
from plait.graph.decompositions import rules as decomposing
from plait.graph.decompositions.rules import decompositions
from plait.graph.gradients import registry as gradients
from plait.graph.gradients.registry import differentiable


def is_moved_as_bytes(operator: Operator) -> bool:
    """True where all outputs are bytes of inputs, which every device copies."""
    return {output for output, _ in operator.views} >= set(range(len(operator.outputs.split())))


THERE: Mapping[Part, Callable[[Operator], bool]] = {
    Part.GRADIENT: lambda one: one.name in {*differentiable(), *decompositions()},
    Part.DECOMPOSITION: lambda one: one.name in decompositions(),
    Part.KERNEL: lambda one: find_kernel(one.name, "cpu") is not None,
    Part.DEFINITION: lambda one: find_definition(one.name) is not None,
    Part.CODEGEN: lambda one: one.name in list_generated_ops() or is_moved_as_bytes(one),
}
"""How each is asked for by those who use it."""


@cache
def own_names() -> list[str]:
    """Return plait's operators, as a process has them that ran no tests and no examples."""
    code = "from plait.graph.core.operator import list_operators; print(*list_operators())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return told.stdout.split()


def own() -> list[Operator]:
    """Return plait's operators as they are registered now, without Python functions."""
    found = map(find_operator, own_names())
    return [operator for operator in found if operator.function is None]


def missing(part: Part) -> set[str]:
    """Return the operators that lack something without a word about it."""
    return {one.name for one in own() if not THERE[part](one) and not one.lacks.get(part)}


def excused(part: Part) -> set[str]:
    """Return the operators that say that they lack what they have."""
    return {one.name for one in own() if part in one.lacks and THERE[part](one)}


@pytest.mark.parametrize("part", Part)
def test_every_operator_has_it_or_says_why_not(part: Part) -> None:
    assert missing(part) == set()
    assert excused(part) == set()


TAKEN_AWAY: Mapping[Part, tuple[MutableMapping[Any, Any], Any]] = {
    Part.GRADIENT: (gradients._rules, "MatMul"),
    Part.DECOMPOSITION: (decomposing._rules, "Softmax"),
    Part.KERNEL: (kernels._kernels, ("Add", ANY)),
    Part.DEFINITION: (formal._definitions, "Conv"),
    Part.CODEGEN: (codegen._generators, "Conv"),
}


@pytest.mark.parametrize("part", Part)
def test_what_is_taken_away_is_missed(part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing(part) == set()  # all is imported now
    table, key = TAKEN_AWAY[part]
    monkeypatch.delitem(table, key)
    assert missing(part) == {key[0] if isinstance(key, tuple) else key}


@pytest.mark.parametrize("part", Part)
def test_a_reason_for_what_is_there_is_noticed(part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    one = replace(find_operator("Softmax"), lacks={part: "nobody wrote it"})
    monkeypatch.setitem(_operators, "Softmax", one)
    assert excused(part) == {"Softmax"}


def test_users_who_miss_a_gradient_are_told_the_reason() -> None:
    b = pl.GraphBuilder("values")
    x = b.input("x", "float32", (3,))
    y = b.op("ReduceSum", b.op("Unique", x))
    with pytest.raises(pl.GraphError, match="Unique is known: what is equal to what jumps"):
        pl.gradients(b, y, [x])
