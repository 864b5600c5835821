"""Shapes without inference, if each length is a number or the length of an input.

Equal symbols mean equal lengths. But symbols may also equal numbers, and the support of a node may
depend on lengths. So formulas are used only after inference gave the same shapes at some lengths.
Graphs that compute with lengths, or read them as values, are always inferred.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ...graph.core.ir import Graph
from ...graph.values.tensor import Dim, TensorSpec
from ..plans.shapes import Shapes

TRIALS = 3
"""The number of lengths at which inference has to agree first."""

LEAST = 2
"""The smallest length of formulas: 0 and 1 follow rules of their own."""


class ShapeFormulas:
    """Shapes of a graph's tensors at all lengths from `LEAST` to the largest inferred ones.

    The template has symbols, and `own` is the graph at some lengths, for inputs of `shapes`; `fed`
    are all inputs with symbols, including those that the template does not read.
    """

    def __init__(
        self, template: Graph, own: Graph, fed: Mapping[str, TensorSpec], shapes: Shapes
    ) -> None:
        self._own = own
        self._fed = fed
        self._varying = {
            name: spec
            for name, spec in (*fed.items(), *template.tensors.items())
            if name in own.tensors and not spec.is_static
        }
        self._largest = self._lengths(shapes)
        self._agreed: set[tuple[int, ...]] = set()
        self._hold = own.nodes == template.nodes and self._say(self._largest, own)

    @property
    def have_agreed(self) -> bool:
        return self._hold and len(self._agreed) >= TRIALS

    def at(self, shapes: Shapes) -> Graph | None:
        lengths = self._agreed_lengths(shapes)
        return None if lengths is None else replace(self._own, tensors=self._specs(lengths))

    def specs_at(self, shapes: Shapes, names: Iterable[str]) -> dict[str, TensorSpec] | None:
        lengths, own = self._agreed_lengths(shapes), self._own.tensors
        if lengths is None:
            return None
        varying = self._varying
        return {n: _substitute(varying[n], lengths) if n in varying else own[n] for n in names}

    def _agreed_lengths(self, shapes: Shapes) -> Mapping[str, int] | None:
        if not self.have_agreed:
            return None
        lengths = self._lengths(shapes)
        fit = all(LEAST <= lengths[s] <= largest for s, largest in self._largest.items())
        return lengths if fit else None

    def compare(self, shapes: Shapes, inferred: Graph) -> None:
        lengths = self._lengths(shapes)
        if self._hold and min(lengths.values(), default=0) >= LEAST:
            self._hold = self._say(lengths, inferred)
            self._agreed.add(tuple(lengths.values()))
            self._largest = {s: max(most, lengths[s]) for s, most in self._largest.items()}

    def _lengths(self, shapes: Shapes) -> dict[str, int]:
        return {
            dim: length
            for name, spec in self._fed.items()
            for dim, length in zip(spec.shape or (), shapes[name], strict=False)
            if isinstance(dim, str)
        }

    def _say(self, lengths: Mapping[str, int], inferred: Graph) -> bool:
        own = self._own
        return (
            inferred.nodes == own.nodes
            and inferred.constants.keys() == own.constants.keys()
            and all(array is own.constants[name] for name, array in inferred.constants.items())
            and inferred.tensors == self._specs(lengths)
        )

    def _specs(self, lengths: Mapping[str, int]) -> dict[str, TensorSpec]:
        """Return all specs at these lengths; computed lengths keep their symbols."""
        found = {name: _substitute(spec, lengths) for name, spec in self._varying.items()}
        return {**self._own.tensors, **found}


def _substitute(spec: TensorSpec, lengths: Mapping[str, int]) -> TensorSpec:
    dims: list[Dim] = [lengths.get(d, d) if isinstance(d, str) else d for d in spec.shape or ()]
    return TensorSpec(spec.dtype, dims)
