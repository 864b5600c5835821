"""Shapes without inference, if each length follows from those of inputs.

Equal symbols mean equal lengths. But symbols may also equal numbers, and the support of a node may
depend on lengths. So formulas are used only after inference gave the same shapes at some lengths.
Nodes that read lengths are constants where these are known: the constants are computed anew.

Two tensors may fit together only at some lengths, such as multiples of a network's strides. Among
lengths with the same rest, quotients grow in proportion: shapes that fit at a few fit at all.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import lcm
from typing import TypeAlias

import numpy as np

from ...graph.core.infer import infer_node
from ...graph.core.ir import Graph, Node, make_call
from ...graph.values.dims import evaluate_dim
from ...graph.values.tensor import Array, Dim, Shape, TensorSpec
from ..plans.plan import Shapes
from .specialise import specialise

TRIALS = 3
"""The number of lengths with the same rest at which inference has to agree first."""

MOST_RESTS = 64
"""The greatest number of rests: with more of them, trials would hardly end."""

LEAST = 2
"""The smallest length of formulas: 0 and 1 follow rules of their own."""


_DIVISOR = re.compile(r"//(\d+)")
_CURVED = re.compile(r"max\(|ceil\(|slice\(|%|//\D")
"""Parts of lengths that do not grow in proportion."""

Found: TypeAlias = tuple[dict[str, TensorSpec], Mapping[str, Array]]


class ShapeFormulas:
    """Shapes of a graph's tensors at all lengths from `LEAST` to the largest inferred ones.

    The template has symbols, and `own` is the graph at some lengths, for inputs of `shapes`; `fed`
    are all inputs with symbols, including those that the template does not read. Where programs
    notice themselves that tensors do not fit together (`are_checked`), all rests count as one.
    """

    def __init__(
        self,
        template: Graph,
        own: Graph,
        fed: Mapping[str, TensorSpec],
        shapes: Shapes,
        *,
        are_checked: bool = False,
    ) -> None:
        self._own = own
        self._fed = fed
        self._varying = {
            name: spec
            for name, spec in (*fed.items(), *template.tensors.items())
            if name in own.tensors and not spec.is_static
        }
        self._kinds = set(self._varying.values())  # many tensors are alike
        dims = chain.from_iterable(spec.shape or () for spec in self._kinds)
        self._dims = tuple(dict.fromkeys(dim for dim in dims if isinstance(dim, str)))
        kept = {node.name for node in own.nodes}
        self._readers = _extract(template, [one for one in template.nodes if one.name not in kept])
        self._read_names = [name for name in self._readers.outputs if name in own.constants]
        self._lists = _follow_lengths(self._readers)
        are_same = own.nodes == tuple(one for one in template.nodes if one.name in kept)
        self._symbols = {dim for spec in fed.values() for dim in spec.shape or ()}
        texts = [dim for dim in self._dims if dim not in self._symbols]
        divisors = () if are_checked else chain.from_iterable(map(_DIVISOR.findall, texts))
        self._divisor = lcm(*map(int, divisors))
        is_linear = self._divisor <= MOST_RESTS and not any(map(_CURVED.search, texts))
        self._agreed: dict[tuple[int, ...], set[tuple[int, ...]]] = defaultdict(set)
        self._largest = self._planned = self._find_lengths(shapes) or {}
        may_hold = are_same and (are_checked or is_linear) and bool(self._largest)
        self._hold = may_hold and self._say(self._largest, own)

    @property
    def have_agreed(self) -> bool:
        return self._hold and max(map(len, self._agreed.values()), default=0) >= TRIALS

    @property
    def have_constants(self) -> bool:
        """Whether constants follow from lengths, too."""
        return bool(self._readers.nodes)

    def at(self, shapes: Shapes) -> Graph | None:
        lengths, own = self._find_agreed(shapes), self._own
        constants = None if lengths is None else self._read(lengths)
        if lengths is None or constants is None:
            return None
        constants = {**own.constants, **constants} if constants else own.constants
        return replace(own, tensors=self._specs(lengths), constants=constants)

    def find(self, shapes: Shapes, names: Iterable[str]) -> Found | None:
        """Return the specs of tensors `names`, and changed constants, for `shapes` that agree.

        None of the tensors is larger than in the graph at known lengths.
        """
        lengths, own, varying = self._find_agreed(shapes), self._own.tensors, self._varying
        # Each alone may have been as long at some lengths, which says nothing of products.
        if lengths is None or any(most < lengths[dim] for dim, most in self._planned.items()):
            return None
        constants = self._read(lengths)
        if constants is None:
            return None
        return {
            n: _substitute(varying[n], lengths) if n in varying else own[n] for n in names
        }, constants

    def _find_agreed(self, shapes: Shapes) -> Mapping[str, int] | None:
        lengths = self._find_lengths(shapes) if self.have_agreed else None
        if lengths is None:
            return None
        fit = all(LEAST <= length <= self._largest[dim] for dim, length in lengths.items())
        are_known = len(self._agreed[self._find_rest(lengths)]) >= TRIALS
        return lengths if fit and are_known else None

    def _find_rest(self, lengths: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(lengths[dim] % self._divisor for dim in self._dims if dim in self._symbols)

    def compare(self, shapes: Shapes, inferred: Graph) -> None:
        lengths = self._find_lengths(shapes) if self._hold else None
        if lengths is not None and min(lengths.values(), default=0) >= LEAST:
            self._hold = self._say(lengths, inferred)
            self._agreed[self._find_rest(lengths)].add(tuple(lengths.values()))
            self._largest = {dim: max(most, lengths[dim]) for dim, most in self._largest.items()}

    def _find_lengths(self, shapes: Shapes) -> dict[str, int] | None:
        """Return all lengths that vary, for inputs of `shapes`; None if some do not follow."""
        fed = {
            dim: length
            for name, spec in self._fed.items()
            for dim, length in zip(spec.shape or (), shapes[name], strict=False)
            if isinstance(dim, str)
        }
        found = dict(fed)
        for dim in self._dims:
            if dim not in fed:
                length = evaluate_dim(dim, fed)
                if length is None:
                    return None
                found[dim] = length
        return found

    def _read(self, lengths: Mapping[str, int]) -> Mapping[str, Array] | None:
        """Return constants that follow from `lengths`; None if a value decides one."""
        readers = self._readers
        if not readers.nodes:
            return {}
        if (listed := self._evaluate_lists(lengths)) is not None:
            return listed
        read = {name: self._varying.get(name, readers.tensors[name]) for name in readers.inputs}
        if any(spec.shape is None for spec in read.values()):
            return None
        shapes = {name: _substitute(spec, lengths).static_shape for name, spec in read.items()}
        made = specialise(readers, shapes).constants
        names = self._read_names
        return {n: made[n] for n in names} if made.keys() >= set(names) else None

    def _evaluate_lists(self, lengths: Mapping[str, int]) -> dict[str, Array] | None:
        """Return the constants that list lengths; None if one of the constants does not."""
        fed = {dim: length for dim, length in lengths.items() if dim in self._symbols}
        found = {}
        for name in self._read_names:
            dims = [evaluate_dim(dim, fed) for dim in self._lists.get(name, ("",))]
            if None in dims:
                return None
            own = self._own.constants[name]
            found[name] = np.array(dims, own.dtype).reshape(own.shape)
        return found

    def _say(self, lengths: Mapping[str, int], inferred: Graph) -> bool:
        own, read = self._own, self._read(lengths)
        return (
            read is not None
            and inferred.nodes == own.nodes
            and inferred.constants.keys() == own.constants.keys()
            and all(
                array is own.constants[name]
                if name not in read
                else array.dtype == read[name].dtype and np.array_equal(array, read[name])
                for name, array in inferred.constants.items()
            )
            and inferred.tensors == self._specs(lengths)
        )

    def _specs(self, lengths: Mapping[str, int]) -> dict[str, TensorSpec]:
        made = {spec: _substitute(spec, lengths) for spec in self._kinds}
        return {**self._own.tensors, **{name: made[spec] for name, spec in self._varying.items()}}


def _follow_lengths(graph: Graph) -> Mapping[str, Shape]:
    """Return the elements of the lists of lengths in `graph`."""
    found: dict[str, Shape] = {}
    for node in graph.nodes:
        infer_node(node, make_call(node, graph.tensors, graph.constants, found), found)
    return found


def _extract(graph: Graph, nodes: Sequence[Node]) -> Graph:
    """Return the graph of `nodes` alone, with all their results as outputs."""
    made = {name for node in nodes for name in node.outputs if name}
    read = dict.fromkeys(name for node in nodes for name in node.inputs if name)
    known = {name: graph.constants[name] for name in read if name in graph.constants}
    inputs = tuple(name for name in read if name not in known and name not in made)
    tensors = {name: graph.tensors[name] for name in (*read, *made)}
    return Graph(graph.name, inputs, tuple(made), tuple(nodes), tensors, known)


def _substitute(spec: TensorSpec, lengths: Mapping[str, int]) -> TensorSpec:
    dims: list[Dim] = [lengths[d] if isinstance(d, str) else d for d in spec.shape or ()]
    return TensorSpec(spec.dtype, dims)
