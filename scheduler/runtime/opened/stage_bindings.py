"""Steps bound to lengths that are known only when an item is under way.

The plan is for the largest lengths. Where a stage of it begins, its steps are bound to views of the
same memory for the item's own, by the thread that the item is on: nothing crosses the event loop,
nothing is copied. Bindings are kept by stage, lengths and slot.

A function may decide the number of boxes, and with that all shapes after it. A new plan for each
number takes milliseconds; one plan with room for the most, and views that are as long as the item
needs, takes some 0.2 ms at a new length and a lookup later. The price is the memory for the largest
lengths, and that each length needs a bound.

Two ways to bind, the cheap one first. The programs of other lengths are asked for their like on
shorter views (`rebound`), which works where kernels read lengths from their arrays. Otherwise
shapes are inferred for these lengths and the steps are compiled. Shapes serve all slots
(`KEPT_FITS`), bindings serve one (`KEPT_BOUND`); the least recently used are dropped, since lengths
of text or sound hardly repeat.

A few of the largest lengths are bound when the plan opens: there loading takes longest, and the
first items would pay for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from ....graph.functions.python import FIX_SYMBOL
from ....graph.values.errors import PlaitError, ShapeError
from ....graph.values.recent import RecentItems
from ....graph.values.tensor import Array, Shape, shorten_array
from ...errors import PlanError
from ...planner.bounded_shapes import KEPT_FITS, BoundedShapes
from ...plans.plan import ComputedLengths, PlanStage, Shapes
from ...profile.timestamps import Timestamps
from ...shapes.bounds import count_error
from ..virtual_time import Launch
from .arenas import Arenas
from .binding import Bindings, BoundStep
from .copying import Feeds
from .slot import InlineRun, Slot

if TYPE_CHECKING:
    from .open_plan import OpenPlan

KEPT_BOUND = 256
"""Limit of kept bindings of a stage, by lengths and slots: the most recently used."""

BOUND_AHEAD = 4
"""Limit of lengths: one more than are inferred before symbols alone decide shapes."""

Lengths: TypeAlias = dict[str, int]
"""The known lengths of an item's symbols."""


class BoundStage(NamedTuple):
    """The steps of a stage at some lengths, bound to a slot, and the shapes of fetched tensors."""

    steps: Mapping[int, BoundStep]
    shapes: Shapes


class _Rebinding(NamedTuple):
    """The steps of a stage at some lengths, and which of their tensors vary."""

    bindings: Bindings
    varying: Sequence[str]


class OnSlot(NamedTuple):
    """The memory of a slot, and steps as they were bound there first."""

    arenas: Arenas
    steps: Mapping[int, BoundStep]


class OpenStage(Protocol):
    symbols: tuple[str, ...]
    """Those of the lengths that it reads."""

    def find(self, lengths: tuple[int, ...], slot: int) -> BoundStage | None:
        """Return the stage bound to `lengths` of its symbols on `slot`, or None."""

    def bind(self, lengths: tuple[int, ...], slot: int) -> BoundStage:
        """Bind the stage to `lengths` of its symbols on `slot`, and return it.

        Raises ShapeError or PlanError or DeviceError or KernelError if that cannot be done.
        """

    def bind_ahead(self) -> None:
        """Bind the stage to some lengths that items may have."""

    def clear(self) -> None:
        """Release all programs."""


class KeptStage:
    """A stage that is kept bound, for the lengths that were met last.

    Attributes
    ----------
    symbols : tuple of str
        Those of the lengths that it reads.
    """

    def __init__(self, open_plan: OpenPlan, stage: PlanStage) -> None:
        self._open_plan = open_plan
        self._bounds = stage.bounds
        self._fits = None if stage.template is None else BoundedShapes(open_plan.plan, stage)
        template = stage.template
        self._tensors = stage.graph.tensors.keys()
        self._specs = {} if template is None else template.tensors
        read = () if template is None else template.inputs
        self._dims = {} if template is None else {n: template.tensors[n].shape or () for n in read}
        dims = chain.from_iterable(self._dims.values())
        self.symbols = tuple(dict.fromkeys(dim for dim in dims if isinstance(dim, str)))
        fetched = set(open_plan.plan.graph.outputs).intersection(stage.graph.tensors)
        told = ((*one.tensors, one.shapes) for one in stage.computes)
        self._fetched = fetched.difference(*told)
        # By slot and lengths: views are of a slot's memory. A check of some lengths holds
        # for all slots.
        self._kept: RecentItems[tuple[int, tuple[int, ...]], BoundStage] = RecentItems(KEPT_BOUND)
        self._at: RecentItems[tuple[int, ...], tuple[Bindings, Shapes]] = RecentItems(KEPT_FITS)
        self._again: _Rebinding | None = None
        self._slots: dict[int, OnSlot] = {}

    def find(self, lengths: tuple[int, ...], slot: int) -> BoundStage | None:
        return self._kept.get((slot, lengths))

    def bind(self, lengths: tuple[int, ...], slot: int) -> BoundStage:
        """Bind the stage to `lengths` of its symbols on `slot`, and return it.

        Raises ShapeError if they do not fit together inside the graph; PlanError if the plan has no
        room for them; DeviceError or KernelError if a device refuses.
        """
        known = dict(zip(self.symbols, lengths, strict=True))
        shapes = {
            name: [known[dim] if isinstance(dim, str) else dim for dim in dims]
            for name, dims in self._dims.items()
        }
        # Cheap first: the programs of other lengths, on shorter views of the same memory.
        bound = self._bind_again(slot, shapes)
        if bound is None:
            with self._open_plan.arenas.of(slot) as arenas:
                bound = self._bind(arenas, lengths, shapes)
                self._slots.setdefault(slot, OnSlot(arenas, bound.steps))
        self._kept[slot, lengths] = bound
        return bound

    def bind_ahead(self) -> None:
        """Bind the stage to its largest lengths but a few, if there are such."""
        for less in range(1, BOUND_AHEAD + 1) if self.symbols else ():
            bounds = [self._bounds[symbol] for symbol in self.symbols]
            # Near the largest: those are the lengths for which loading and compiling takes longest.
            lengths = tuple([high - less for _, high in bounds])
            if all(max(low, 1) <= n for n, (low, _) in zip(lengths, bounds, strict=True)):
                with suppress(PlaitError):  # items of such lengths report the error
                    self.bind(lengths, 0)

    def _bind_again(self, slot: int, shapes: Shapes) -> BoundStage | None:
        """Bind the stage on `slot` to shorter `shapes`; None if that is not enough."""
        again, before = self._again, self._slots.get(slot)
        if again is None or before is None:
            return None
        assert self._fits is not None, "it has symbols"
        found = self._fits.find(shapes, again.varying)
        if found is None:
            return None
        specs, constants = found
        steps = again.bindings.rebound(before.arenas, before.steps, specs, constants)
        if steps is None:
            return None
        return BoundStage(steps, {n: specs[n].static_shape for n in self._fetched & specs.keys()})

    def _bind(self, arenas: Arenas, lengths: tuple[int, ...], shapes: Shapes) -> BoundStage:
        bindings, fetched = self._at.get(lengths) or self._fit(lengths, shapes)
        steps = bindings.own_of(arenas)
        # Only full inference shows which programs can be bound again, and which tensors change.
        if self._again is None or bindings is not self._again.bindings:
            # Tensors alone: of rebound nodes only fixed ones have scratch, which stays.
            told, specs = self._tensors & (bindings.touched | self._fetched), self._specs
            varying = [n for n in told if not (n in specs and specs[n].is_static)]
            self._again = _Rebinding(bindings, varying)
        return BoundStage(steps, fetched)

    def _fit(self, lengths: tuple[int, ...], shapes: Shapes) -> tuple[Bindings, Shapes]:
        assert self._fits is not None, "it has symbols"
        plan = self._fits.fit(shapes)
        if plan is None:
            named = zip(self.symbols, lengths, strict=True)
            raise PlanError(
                f"the graph has other nodes for {', '.join(f'{s} = {n}' for s, n in named)} than "
                "for the largest lengths",
                at=f"graph {self._open_plan.plan.graph.name!r}",
                fix="plan without bounds: shapes are planned as they come up then",
            )
        fetched = {name: plan.graph.tensors[name].static_shape for name in self._fetched}
        found = self._at[lengths] = self._open_plan.bindings_of(plan), fetched
        return found

    def clear(self) -> None:
        self._kept.clear()
        self._at.clear()
        self._slots.clear()
        self._again = None


class StageBindings:
    """Binds the stages of an open plan; on any thread.

    `computes` says for steps that compute lengths in which stage, and where they are, and `counts`
    how many of them each stage has. `shapes` are the outputs that say how long others are: no
    results. `lock` is held while steps are bound, and while items add lengths.
    """

    def __init__(
        self, open_plan: OpenPlan, stages: Sequence[PlanStage], open_stages: Sequence[OpenStage]
    ) -> None:
        plan = open_plan.plan
        self.open_plan = open_plan
        self._stages = open_stages
        self._limits = {
            (tensor, axis): (symbol, bound)
            for stage in stages
            for tensor, axis, symbol, bound in stage.limits
        }
        assert plan.placement is not None, "shapes are known"
        step_of = plan.placement.step_of
        self.computes: dict[int, list[tuple[int, ComputedLengths]]] = {}
        for index, stage in enumerate(stages):
            for one in stage.computes:
                self.computes.setdefault(step_of[one.node].index, []).append((index, one))
        self.counts = tuple(len(stage.computes) for stage in stages)
        self.shapes = {one.shapes for stage in stages for one in stage.computes}
        self._inputs = {
            name: stage.template.tensors[name].shape or ()
            for stage in stages
            if stage.template is not None
            for name in stage.template.inputs
            if name in plan.graph.inputs
        }
        self.lock = threading.Lock()

    def of_item(self, slot: Slot, index: int, marks: Timestamps) -> ItemStages:
        return ItemStages(self, slot, index, marks, self.open_plan.item_clock)

    def of_inputs(self, arrays: Mapping[str, Array]) -> Lengths:
        return read_lengths(self._inputs, {name: arrays[name].shape for name in self._inputs})

    def shapes_told(
        self, one: ComputedLengths, told: Sequence[int], lengths: Lengths
    ) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Split `told` into the shapes of the results in `one`; yield each name with its shape.

        The lengths of symbols are added to `lengths`. Raises ShapeError if one is out of
        its bounds, or contradicts a known one.
        """
        start = 0
        for tensor, rank in zip(one.tensors, one.ranks, strict=True):
            shape = tuple(told[start : start + rank])
            start += rank
            for axis, length in enumerate(shape):
                symbol, bound = self._limits.get((tensor, axis), ("", (0, 0)))
                if not symbol:
                    continue
                if not bound[0] <= length <= bound[1]:
                    raise count_error(tensor, symbol, length, bound)
                if lengths.setdefault(symbol, length) != length:
                    raise contradiction_error(tensor, symbol, length, lengths[symbol])
            yield tensor, shape

    def bind(self, stage: int, lengths: Lengths, slot: int) -> tuple[BoundStage, bool]:
        """Return `stage` bound to `lengths` in `slot`, and if it had been before; the lock is held.

        Raises ShapeError or PlanError or DeviceError or KernelError as `OpenStage.bind`.
        """
        open_stage = self._stages[stage]
        known = tuple([lengths[symbol] for symbol in open_stage.symbols])
        found = open_stage.find(known, slot)
        return (open_stage.bind(known, slot), False) if found is None else (found, True)

    def bind_ahead(self) -> None:
        """Bind each stage to a few lengths, so that items find models loaded and shapes agreed."""
        with self.lock:
            for stage in self._stages:
                stage.bind_ahead()

    def has_symbols(self, stage: int) -> bool:
        """Return whether stage number `stage` depends on an item's lengths."""
        return bool(self._stages[stage].symbols)

    def clear(self) -> None:
        for stage in self._stages:
            stage.clear()


def read_lengths(dims: Mapping[str, Shape], shapes: Shapes) -> Lengths:
    return {
        dim: length
        for name, own in dims.items()
        for dim, length in zip(own, shapes[name], strict=True)
        if isinstance(dim, str)
    }


class ItemStages:
    """The steps of one item on a slot, bound to lengths as these become known.

    `slot`, of number `index`, is for the largest lengths; `marks`, the item's, record when steps
    were bound. `launches`, `inline`, `calls` and `results` are those of a slot, as far as lengths
    are known. `computes` has the steps after which `take_lengths` is to be called; `was_bound` is
    true while nothing had to be bound for the item.
    """

    def __init__(
        self,
        bindings: StageBindings,
        slot: Slot,
        index: int,
        marks: Timestamps,
        now_ns: Callable[[], int],
    ) -> None:
        self._bindings, self._slot, self._index = bindings, slot, index
        self._marks, self._now_ns = marks, now_ns
        self._lengths: Lengths = {}
        self._left = list(bindings.counts)
        self._next = 0
        self.computes = bindings.computes
        self.launches: Sequence[Launch] = slot.launches
        self.inline: Sequence[InlineRun | None] = slot.inline
        self.calls = None if slot.calls is None else [*slot.calls]
        self.results = {n: a for n, a in slot.results.items() if n not in bindings.shapes}
        self.was_bound = True

    def feeds_of(self, arrays: Mapping[str, Array]) -> Feeds:
        """Take in the lengths of an item's `arrays`, and return the feeds to write them to.

        Raises ShapeError or PlanError or DeviceError or KernelError if the first stage cannot be
        bound to them.
        """
        with self._bindings.lock:
            self._lengths = self._bindings.of_inputs(arrays)
            self._bind_ready()
        return self._slot.feeds.shortened(arrays)

    def take_lengths(self, step: int) -> None:
        """Add the lengths that `step` has computed, and bind the stages that only waited for these.

        To be called before the step's memory may be used for something else. Raises ShapeError or
        PlanError or DeviceError or KernelError if lengths are out of bounds, or a stage cannot be
        bound to them.
        """
        with self._bindings.lock:
            for stage, one in self.computes[step]:
                told = self._slot.results[one.shapes].tolist()
                for tensor, shape in self._bindings.shapes_told(one, told, self._lengths):
                    if tensor in self.results:
                        self.results[tensor] = shorten_array(self._slot.results[tensor], shape)
                self._left[stage] -= 1
            self._bind_ready()

    def _bind_ready(self) -> None:
        # In order: a stage reads results of earlier ones, so their lengths come first.
        while self._next < len(self._left) and not any(self._left[: self._next]):
            if self._bindings.has_symbols(self._next):
                self._bind(self._next)
            self._next += 1

    def _bind(self, stage: int) -> None:
        begin_ns = self._now_ns()
        (steps, shapes), was_bound = self._bindings.bind(stage, self._lengths, self._index)
        # Copies, exchanged as a whole: other threads may be reading existing bindings.
        launches, inline = [*self.launches], [*self.inline]
        for step, bound in steps.items():
            launches[step], inline[step] = bound.launch, bound.inline
            if self.calls is not None and bound.call is not None:
                self.calls[step] = bound.call
        self.launches, self.inline = launches, inline
        for name, shape in shapes.items():
            self.results[name] = shorten_array(self._slot.results[name], shape)
        if not was_bound:
            self.was_bound = False
            self._marks.prepare("binding", begin_ns, self._now_ns())


def contradiction_error(tensor: str, symbol: str, length: int, known: int) -> ShapeError:
    return ShapeError(
        f"{symbol!r} is {length} here, and was {known} before",
        at=f"tensor {tensor!r}",
        fix=FIX_SYMBOL,
    )
