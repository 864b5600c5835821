"""Constants in a device's memory: one copy of each array, while any program uses it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..graph.values.tensor import Array, spec_of
from .device import Device
from .memory import Arena, View


class ConstantBatch:
    """Constants that were uploaded together and live as long as this object."""

    def __init__(self, arena: Arena, views: Mapping[int, View], arrays: tuple[Array, ...]) -> None:
        self.views = views
        self.arrays = arrays  # kept alive, so that no other array gets one of their ids
        weakref.finalize(self, arena.close).atexit = False


@dataclass(slots=True, eq=False)
class ConstantStore:
    """Uploads constants into one memory, those of a call into one arena.

    The slots of a plan, and plans of one graph, share constants: all their programs hold the batch.
    """

    _device: Device
    _memory: str
    _alignment: int
    _upload: Callable[[View, Array], None]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _batches: weakref.WeakValueDictionary[int, ConstantBatch] = field(
        default_factory=weakref.WeakValueDictionary
    )

    def place(self, constants: Mapping[str, Array]) -> tuple[dict[str, Array], list[ConstantBatch]]:
        """Return `constants` on the device, by name, and the batches to hold while using them."""
        with self._lock:
            batches = {id(array): self._batches.get(id(array)) for array in constants.values()}
            missing = {
                id(array): array for array in constants.values() if batches[id(array)] is None
            }
            if missing:
                batch = self._new_batch(missing)
                batches.update(dict.fromkeys(missing, batch))
                self._batches.update(dict.fromkeys(missing, batch))
        held = {key: batch for key, batch in batches.items() if batch is not None}
        arrays = {n: held[id(array)].views[id(array)].array for n, array in constants.items()}
        return arrays, list(dict.fromkeys(held.values()))

    def _new_batch(self, missing: Mapping[int, Array]) -> ConstantBatch:
        offsets, end = {}, 0
        for key, array in missing.items():
            offsets[key] = end
            end += -(-array.nbytes // self._alignment) * self._alignment
        arena = self._device.arena(self._memory, end)
        views = {
            key: self._device.view(arena, offset, spec_of(missing[key]))
            for key, offset in offsets.items()
        }
        batch = ConstantBatch(arena, views, tuple(missing.values()))
        for key, array in missing.items():
            self._upload(views[key], array)
        return batch
