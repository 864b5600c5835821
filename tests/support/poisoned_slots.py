"""Memory of items that is poisoned as soon as they have given it back."""

from __future__ import annotations

import pytest
from fake_devices import POISON
from plait.scheduler.runtime.opened.slots import Slots, Turn


def poison_released_slots(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have whoever reads an item's memory after its end find poison; return a list that grows.

    It holds the bytes poisoned at each end. Regions that items take in turn are left alone: the
    next one may have them already.
    """
    release, poisoned = Slots.release, list[int]()

    def poison_and_release(slots: Slots, turn: Turn) -> None:
        plan = slots.open_plan.plan
        assert plan.memory is not None
        nbytes = 0
        for region in plan.memory.regions:
            key = region.memory, region.name, turn.number % region.copies
            arena = slots.open_plan.arenas.made.get(key)
            if arena is not None and region.copies >= plan.max_in_flight:
                arena.buffer.fill(POISON)
                nbytes += region.nbytes
        poisoned.append(nbytes)
        release(slots, turn)

    monkeypatch.setattr(Slots, "release", poison_and_release)
    return poisoned
