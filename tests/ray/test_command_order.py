"""The order of commands from a driver's queue to a host's devices, whatever happens on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.errors import KernelError
from plait.devices.event import CancelledWorkError, Event
from plait.devices.worker.remote_errors import rebuild
from plait.scheduler.ray.remote.command_queues import CommandQueues
from plait.scheduler.ray.remote.commands import Command, CommandOutcome, Kind, RemoteEvent
from plait.scheduler.ray.remote.outbox import Outbox

GPUS = 0, 1
"""Devices that keep the order themselves, also behind each other; further ones do not."""
KINDS: tuple[Kind, ...] = ("write", "run", "read")


@dataclass
class Launched:
    """A command that was launched, and the events behind which it was."""

    command: Command
    waits: tuple[Event, ...]
    event: Event


class Rig:
    """A driver's queue and a host, between which a test carries calls and answers."""

    def __init__(self) -> None:
        self.outbox = Outbox()
        self.queues = CommandQueues(self, lambda _, outcome: self.outcomes.append(outcome))
        self.outcomes: list[CommandOutcome] = []
        self.running: list[Launched] = []
        self.launched: list[Command] = []
        self.works: list[RemoteEvent] = []

    def follows(self, command: Command, other: Command, event: Event) -> bool:
        return command.device in GPUS and other.device in GPUS

    def launch(
        self, command: Command, waits: tuple[Event, ...], done: Callable[[Event], None]
    ) -> Event:
        event = Event(done)
        under_way = {id(one.event): one.command.number for one in self.running}
        assert {under_way.get(id(wait)) for wait in waits} == {
            number for number in command.waits if number in under_way.values()
        }
        self.running.append(Launched(command, waits, event))
        self.launched.append(command)
        return event

    def put(self, device: int, kind: Kind, waits: list[int]) -> None:
        events = tuple(self.works[index % len(self.works)] for index in waits if self.works)
        self.works.append(RemoteEvent(Command(0, device, kind), events))
        self.outbox.put(self.works[-1])

    def send(self) -> None:
        if self.outbox.has_to_send:
            refused, call = self.outbox.next_call()
            for work, error in refused:
                work.complete(error)
            self.queues.add(call.commands)
            self.queues.cancel(call.cancelled)
            self.queues.note(call.noted)

    def end_one(self, which: int, *, fails: bool) -> None:
        ready = [one for one in self.running if all(wait.done for wait in one.waits)]
        if ready:
            one = ready[which % len(ready)]
            self.running.remove(one)
            error = next((wait.error for wait in one.waits if wait.error is not None), None)
            if error is None and one.event.cancelled:
                error = CancelledWorkError("stopped")
            elif error is None and fails:
                error = KernelError("injected")
            one.event.complete(error)

    def answer(self) -> None:
        outcomes, self.outcomes = self.outcomes, []
        self.outbox.outstanding = 1
        for outcome in outcomes:
            work = self.outbox.work(outcome)
            assert work is not None
            waits = {one.command.number: one for one in work.waits if isinstance(one, RemoteEvent)}
            error: BaseException | None = None
            if outcome.cause:
                error = waits[outcome.cause].error
            elif outcome.error is not None:
                error = rebuild(outcome.error, "there")
            work.complete(error)
        self.outbox.answered(outcomes)

    def cancel(self, index: int) -> None:
        if self.works:
            work = self.works[index % len(self.works)]
            work.cancelled = True
            self.outbox.cancel(work)


numbers = st.integers(0, 50)
steps = st.one_of(
    st.builds(lambda device, kind, waits: partial(Rig.put, device=device, kind=kind, waits=waits),
              st.integers(0, 3), st.sampled_from(KINDS), st.lists(numbers, max_size=2)),
    st.just(Rig.send),
    st.builds(lambda which, fails: partial(Rig.end_one, which=which, fails=fails),
              numbers, st.booleans()),
    st.just(Rig.answer),
    st.builds(lambda index: partial(Rig.cancel, index=index), numbers),
)  # fmt: skip


@settings(max_examples=100)
@given(st.lists(steps, min_size=5, max_size=60))
def test_commands_keep_their_order_and_none_outlives_what_it_waits_for(
    taken: list[Callable[[Rig], None]],
) -> None:
    rig = Rig()
    needs: dict[int, tuple[RemoteEvent, ...]] = {}

    def check() -> None:
        for index, work in enumerate(rig.works):
            needs.setdefault(
                index, tuple(one for one in work.waits if isinstance(one, RemoteEvent))
            )
        under_way = {one.command.number for one in rig.running}
        for one in rig.running:
            ahead = under_way.intersection(one.command.waits)
            assert one.command.device in GPUS or not ahead, "it began too early"

    for step in taken:
        step(rig)
        check()
    for _ in range(4 * len(taken) + 4):
        rig.send()
        rig.end_one(0, fails=False)
        rig.answer()
        check()
    assert all(work.done for work in rig.works)
    for device, kind in product(range(4), KINDS):
        launched = [one.number for one in rig.launched if (one.device, one.kind) == (device, kind)]
        assert launched == sorted(launched)
    numbers_launched = {one.number for one in rig.launched}
    for index, work in enumerate(rig.works):
        failures = [one.error for one in needs[index] if one.error is not None]
        if failures:
            assert work.error in failures or work.cancelled
            if work.command.number in numbers_launched:
                assert work.command.device in GPUS


def test_what_a_device_keeps_in_order_begins_before_what_it_waits_for_ends() -> None:
    rig = Rig()
    rig.put(0, "write", [])
    rig.put(0, "run", [0])
    rig.put(0, "read", [1])
    rig.put(0, "write", [])
    rig.put(2, "run", [2])  # of a device that takes no events
    rig.send()
    assert {one.command.number for one in rig.running} == {1, 2, 3, 4}


def test_what_failed_is_told_before_what_has_followed_it() -> None:
    """Whichever thread is first: here that of the second command."""
    rig = Rig()
    rig.put(0, "write", [])
    rig.put(0, "run", [0])
    rig.send()
    first, second = (one.event for one in rig.running)
    error = KernelError("injected")
    first.on_done(lambda _: second.complete(error))  # runs before the callback that was there first
    first.complete(error)
    assert [(one.number, one.cause) for one in rig.outcomes] == [(1, 0), (2, 1)]
