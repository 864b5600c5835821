"""A slot: the buffers of one item in flight, and the launchers of its steps on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ....devices.donation import Donation
from ....devices.event import Event
from ....devices.exchange import Loan
from ....devices.memory import Arena
from ....devices.operator_instances import ItemInstances
from ....graph.values.tensor import Array
from ..row_feed import RowFeed
from ..virtual_time import Launch
from .copying import Feeds, OutputCopies, sum_nbytes
from .device_io import DeviceInput, DeviceOutput
from .inline import Call
from .results import Results, Take

InlineRun: TypeAlias = Callable[[Event], bool]
"""Runs a step on the calling thread, if its lane is idle; says whether that was so."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Buffers for one item, and the steps bound to them."""

    feeds: Feeds
    """Where inputs are written to."""
    results: Mapping[str, Array]
    """Where outputs are read from, by name."""
    launches: tuple[Launch, ...]
    """One per step of the plan."""
    inline: tuple[InlineRun | None, ...]
    """Likewise for those that may run on any thread of this process."""
    calls: tuple[Call, ...] | None = None
    """Runs the steps on the calling thread while all lanes are idle; None if that is impossible."""
    copy_ns: int = 0
    """How long it takes about to copy inputs in and results out there."""
    arrivals: Mapping[str, DeviceInput] = field(default_factory=dict)
    """The steps that bring inputs which are handed over on devices: different for each item."""
    departures: Mapping[str, DeviceOutput] = field(default_factory=dict)
    """Those that bring outputs which are taken on devices; these are not among `results`."""
    commits: OutputCopies = field(default_factory=OutputCopies)
    """The values of variables after a successful item."""
    swaps: Mapping[tuple[str, str], Arena] = field(default_factory=dict)
    """For variables in memories: where such values are written, and stay."""
    row_feeds: tuple[RowFeed, ...] = ()
    """Pass rows on as they are yielded."""
    state_in: Mapping[str, Array] = field(default_factory=dict)
    state_out: Mapping[str, Array] = field(default_factory=dict)
    """For variables that items hand on: where the item reads them, and where it writes them."""
    instances: Mapping[int, ItemInstances] = field(default_factory=dict)
    """For steps with instances for each key: those that the item is to use."""
    gifts: Mapping[str, Donation] = field(default_factory=dict)
    """For results that are arrays of functions, unless they had to be copied to the slot."""
    own: Mapping[str, Array] = field(default_factory=dict)
    """The values of a key that an item writes in place, by variable."""

    @property
    def copied_bytes(self) -> int:
        given = {name for name, gift in self.gifts.items() if gift.is_given}
        return sum_nbytes(one for name, one in self.results.items() if name not in given)

    def take_results(self, take: Take, results: Results | None = None) -> Results:
        results = self.results if results is None else results
        given = {
            name: gift.claim(results[name]) for name, gift in self.gifts.items() if gift.is_given
        }
        return take(results, given)

    def handed(self, inputs: Mapping[str, Array | Loan]) -> Slot:
        launches = list(self.launches)
        for name, arrival in self.arrivals.items():
            launches[arrival.step] = arrival.launch_of(inputs[name])
        return replace(self, launches=tuple(launches))

    def left(self, *, copy: bool) -> tuple[Slot, Mapping[str, Array]]:
        """Return the slot for one item, and its results on devices by name, copied if `copy`.

        On the thread of the caller. Raises DeviceError if memory for copies is missing.
        """
        launches, results = list(self.launches), {}
        for name, one in self.departures.items():
            room = one.device.room(one.source.spec) if copy and one.step is not None else None
            results[name] = (room or one.source).array
            if one.step is not None:
                launches[one.step] = one.launch_to(room)
        return replace(self, launches=tuple(launches)), results
