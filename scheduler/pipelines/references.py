"""Values of a pipeline, and the references by which steps name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...graph.core.printing import format_count
from ...graph.values.errors import GraphError, suggest_names
from .step_options import ITEM
from .steps import Inputs, Reference


class Value(NamedTuple):
    """One result of a step, or a part of the fed item."""

    step: str
    number: int


@dataclass(frozen=True, slots=True)
class StepResults:
    examples: tuple[tuple[Any, ...], ...]
    """The results, one tuple for each example."""
    names: tuple[str, ...] = ()
    """Those of a model's outputs, or of the parts of a fed mapping."""
    is_tuple: bool = False
    """Whether a callable returns a tuple."""

    @property
    def count(self) -> int:
        return len(self.examples[0])


class Scope:
    """The values that a step can refer to: those of the steps before it, by name."""

    def __init__(self) -> None:
        self.results: dict[str, StepResults] = {}

    @property
    def last(self) -> str:
        return next(reversed(self.results))

    def add(self, step: str, results: StepResults) -> None:
        self.results[step] = results

    def find(self, inputs: Inputs, step: str) -> list[Value]:
        """Return the values that `inputs` of `step` name, in order; the last results for None.

        Raises GraphError if a reference names no value.
        """
        if inputs is None:
            return self._all_of(self.last)
        if isinstance(inputs, str | int):
            return self._find(inputs, step)
        assert isinstance(inputs, Sequence)
        return [value for one in inputs for value in self._find(one, step)]

    def find_named(self, inputs: Mapping[str, Any], step: str) -> dict[str, Value]:
        """Return one value for each of `inputs`, those of the model in `step`.

        Raises GraphError if a reference names no value, or several.
        """
        found = {}
        for name, reference in inputs.items():
            values = self._find(reference, step)
            if len(values) != 1:
                raise GraphError(
                    f"{reference!r} has {len(values)} results, input {name!r} takes one",
                    at=f"step {step!r}",
                    fix=f"say which one: {name!r}: '{values[0].step}.0'",
                )
            found[name] = values[0]
        return found

    def examples_of(self, value: Value) -> list[Any]:
        return [one[value.number] for one in self.results[value.step].examples]

    def refer_to(self, value: Value) -> str:
        """Return a reference to `value` alone."""
        results = self.results[value.step]
        part = [*results.names, *map(str, range(results.count))][value.number]
        return value.step if results.count == 1 else f"{value.step}.{part}"

    def _all_of(self, step: str) -> list[Value]:
        return [Value(step, index) for index in range(self.results[step].count)]

    def _find(self, reference: Reference, step: str) -> list[Value]:
        if isinstance(reference, int):
            constant = f"; a whole number as a model's constant is np.array({reference})"
            return [self._part(self.last, str(reference), step, constant)]
        name, dot, part = reference.partition(".")
        if name not in self.results:
            known = [one for one in self.results if one != ITEM]
            raise GraphError(
                f"there is no step {name!r} before this one",
                at=f"step {step!r}",
                fix=suggest_names(name, known, f"refer to one of {', '.join([ITEM, *known])}"),
            )
        return [self._part(name, part, step)] if dot else self._all_of(name)

    def _part(self, name: str, part: str, step: str, more: str = "") -> Value:
        results = self.results[name]
        if part in results.names:
            return Value(name, results.names.index(part))
        if part.isdecimal() and int(part) < results.count:
            return Value(name, int(part))
        has = ", ".join(results.names) or f"{format_count(results.count, 'result')}, from 0 on"
        if any(isinstance(one, Mapping) for one in results.examples[0]):
            has += ": a dict is one value; read its entries in the callable"
        raise GraphError(
            f"step {name!r} has no result {part!r}", at=f"step {step!r}", fix=f"it has {has}{more}"
        )
