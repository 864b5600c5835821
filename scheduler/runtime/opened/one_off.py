"""Steps bound to lengths of inputs for one item: calls of functions, or few nodes.

The item runs on an open plan for lengths that are nowhere shorter, by programs that are bound again
to the beginnings of tensors. Files are of such lengths: hardly two have the same, and to open a
plan for each of them takes longer than most runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ....graph.core.ir import Graph
from ....graph.values.recent import RecentItems
from ....graph.values.tensor import Array, TensorSpec, shorten_array
from ...plans.plan import PlanStage
from .binding import BoundStep
from .inline import Call
from .slot import Slot
from .stage_bindings import KEPT_BOUND, BoundStage, Lengths, OnSlot, StageBindings, read_lengths

if TYPE_CHECKING:
    from .open_plan import OpenPlan


MOST_ITEMS = 8
"""Items of equal lengths before these get a plan: opening one takes about eight times as long."""


class OneOffLengths(StageBindings):
    """Binds an open plan to lengths that few items had lately, and keeps nothing of it.

    `made` has the same steps, some of which are its own: those that see lengths. `template` is
    their graph with symbols, each of which is the length of an input, `least` the smallest length;
    there is room up to `longest`, by symbol. It `compiles` where kernels see lengths, not functions
    alone.
    """

    def __init__(
        self,
        open_plan: OpenPlan,
        made: OpenPlan,
        template: Graph,
        *,
        least: int = 0,
        compiles: bool = False,
    ) -> None:
        self.longest = _read_lengths(template, open_plan)
        self._least = least
        self._whole = _OneOffStage(
            open_plan, made, template, tuple(self.longest), compiles=compiles
        )
        stage = PlanStage(open_plan.plan.graph, template, (), (), {})
        super().__init__(open_plan, [stage], [self._whole])
        self._counts: RecentItems[tuple[int, ...], int] = RecentItems(KEPT_BOUND)

    def may_bind(self, arrays: Mapping[str, Array]) -> bool:
        """Return whether `arrays` fit in, and few items had their lengths lately.

        Lengths that come again and again are worth a plan of their own.
        """
        lengths = self.of_inputs(arrays)
        count = self._counts.get(tuple(lengths.values())) or 0
        is_long_enough = min(lengths.values(), default=0) >= self._least
        return count < MOST_ITEMS and is_long_enough and _is_within(lengths, self.longest)

    def can_bind(self, slot: int) -> bool:
        shorter = {symbol: max(length - 1, 0) for symbol, length in self.longest.items()}
        return self._whole.can_bind(shorter, slot)

    @property
    def may_run_at_once(self) -> bool:
        """True where items may run on the thread that asks for them."""
        return self._whole.may_run_at_once

    def shorten(self, slot: Slot, index: int, arrays: Mapping[str, Array]) -> Slot:
        """Return a copy of `slot`, number `index`, with feeds and calls for lengths of `arrays`.

        Raises DeviceError or KernelError if a device refuses.
        """
        with self.lock:
            bound, _ = self.bind(0, self.of_inputs(arrays), index)
            calls = self._whole.calls_of(bound, index)
        results = {
            name: shorten_array(array, bound.shapes[name]) if name in bound.shapes else array
            for name, array in slot.results.items()
        }
        return replace(slot, feeds=slot.feeds.shortened(arrays), results=results, calls=calls)

    def bind(self, stage: int, lengths: Lengths, slot: int) -> tuple[BoundStage, bool]:
        """Bind `stage`, the only one, in `slot` to the `lengths` of one item; the lock is held.

        Raises DeviceError or KernelError if a device refuses.
        """
        key = tuple(lengths.values())
        self._counts[key] = (self._counts.get(key) or 0) + 1
        return super().bind(stage, lengths, slot)


class _OneOffStage:
    """All steps of an open plan, of which those that see lengths are bound for each item.

    Attributes
    ----------
    symbols : tuple of str
        Of the lengths of inputs.
    """

    def __init__(
        self,
        open_plan: OpenPlan,
        made: OpenPlan,
        template: Graph,
        symbols: tuple[str, ...],
        *,
        compiles: bool,
    ) -> None:
        self._open_plan, self._made = open_plan, made
        self._compiles = compiles
        self.symbols = symbols
        self._fetched = set(template.outputs)
        seen = made.touched | self._fetched
        self._varying = {
            name: spec
            for name, spec in template.tensors.items()
            if name in seen and not spec.is_static
        }
        self._slots: dict[int, OnSlot] = {}
        self.may_run_at_once = False

    def find(self, lengths: tuple[int, ...], slot: int) -> BoundStage | None:
        """Return None for any `lengths` and `slot`: nothing is kept."""

    def can_bind(self, lengths: Lengths, slot: int) -> bool:
        steps = self._steps(self._specs(lengths), slot, compiles=self._compiles)
        if steps is None:
            return False
        of_slot = {**self._slots[slot].steps, **steps}
        self.may_run_at_once = self._open_plan.calls_of(of_slot.values()) is not None
        return True

    def bind(self, lengths: tuple[int, ...], slot: int) -> BoundStage:
        specs = self._specs(dict(zip(self.symbols, lengths, strict=True)))
        steps = self._steps(specs, slot)
        assert steps is not None, "there are no atomic programs"
        fetched = self._fetched & specs.keys()
        return BoundStage(steps, {name: specs[name].static_shape for name in fetched})

    def calls_of(self, bound: BoundStage, slot: int) -> tuple[Call, ...]:
        steps = {**self._slots[slot].steps, **bound.steps}
        calls = self._open_plan.calls_of(steps.values())
        assert calls is not None, "they may be called"
        return calls

    def _specs(self, lengths: Lengths) -> dict[str, TensorSpec]:
        return {name: _specialize(spec, lengths) for name, spec in self._varying.items()}

    def _steps(
        self, specs: Mapping[str, TensorSpec], slot: int, *, compiles: bool = True
    ) -> dict[int, BoundStep] | None:
        on_slot = self._slots.get(slot)
        if on_slot is None:
            on_slot = self._open_plan.on_slot(slot)
            if self._compiles:  # `made` has models that serve many lengths
                on_slot = OnSlot(on_slot.arenas, self._made.on_slot(slot).steps)
            self._slots[slot] = on_slot
        return self._made.rebound(on_slot, specs, compiles=compiles)

    def bind_ahead(self) -> None:
        """Do nothing: to bind calls of functions takes no time that could be saved."""

    def clear(self) -> None:
        self._slots.clear()


def _specialize(spec: TensorSpec, lengths: Lengths) -> TensorSpec:
    dims = spec.shape or ()
    return TensorSpec(spec.dtype, [lengths[dim] if isinstance(dim, str) else dim for dim in dims])


def bind_one_off_lengths(
    known: OneOffLengths | None,
    base: OpenPlan,
    made: OpenPlan,
    slot: int,
    *,
    least: int = 0,
    compiles: bool = False,
) -> OneOffLengths | None:
    """Return bindings for items of any lengths up to the longest so far; None if impossible.

    `known` are the bindings so far, `base` a plan for the largest lengths, or for the first ones,
    and `made` one in its arenas; both have `slot`. `least` and `compiles` are as for
    `OneOffLengths`.
    """
    template = base.plan.template
    assert template is not None, "others run in its arenas"
    longest = _read_lengths(template, base) if known is None else known.longest
    # Each tensor fits in if the lengths of inputs do, and is as long as they say: it is of no
    # other lengths.
    if any(
        spec.shape is None or not all(isinstance(dim, int) or dim in longest for dim in spec.shape)
        for spec in template.tensors.values()
    ):
        return None
    if not _is_within(_read_lengths(template, made), longest):
        found = OneOffLengths(made, made, template, least=least, compiles=compiles)
    elif known is None:
        found = OneOffLengths(base, made, template, least=least, compiles=compiles)
    else:
        return known
    return found if found.can_bind(slot) else None


def _read_lengths(template: Graph, open_plan: OpenPlan) -> Lengths:
    tensors = open_plan.plan.graph.tensors
    dims = {name: template.tensors[name].shape or () for name in template.inputs}
    return read_lengths(dims, {name: tensors[name].static_shape for name in dims})


def _is_within(lengths: Lengths, longest: Lengths) -> bool:
    return all(length <= longest[symbol] for symbol, length in lengths.items())
