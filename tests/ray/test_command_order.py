"""The order of commands from a driver's queue to a host's devices, whatever happens on the way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.errors import KernelError
from plait.devices.event import CancelledWorkError, Event
from plait.devices.worker.remote_errors import rebuild
from plait.scheduler.ray.remote.command_queues import CommandQueues
from plait.scheduler.ray.remote.commands import Command, CommandOutcome
from plait.scheduler.ray.remote.outbox import Outbox
from plait.scheduler.ray.remote.work import RemoteEvent


class Rig:
    """A driver's queue and a host, between which a test carries calls and answers."""

    def __init__(self) -> None:
        self.outbox = Outbox()
        self.courses = CommandQueues(self._launch, lambda _, outcome: self.outcomes.append(outcome))
        self.outcomes: list[CommandOutcome] = []
        self.running: list[tuple[Command, Event]] = []
        self.launched: list[int] = []
        self.works: list[RemoteEvent] = []

    def _launch(self, command: Command, done: Callable[[Event], None]) -> Event:
        event = Event(done)
        self.running.append((command, event))
        self.launched.append(command.number)
        return event

    def put(self, device: int, waits: list[int]) -> None:
        events = tuple(self.works[index % len(self.works)] for index in waits if self.works)
        self.works.append(RemoteEvent(Command(0, device, "run"), events))
        self.outbox.put(self.works[-1])

    def send(self) -> None:
        if self.outbox.has_to_send:
            refused, call = self.outbox.next_call()
            for work, error in refused:
                work.complete(error)
            self.courses.add(call.commands)
            self.courses.cancel(call.cancelled)
            self.courses.note(call.noted)

    def end_one(self, which: int, *, fails: bool) -> None:
        if self.running:
            _, event = self.running.pop(which % len(self.running))
            if event.cancelled:
                event.complete(CancelledWorkError("stopped"))
            else:
                event.complete(KernelError("injected") if fails else None)

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
    st.builds(lambda device, waits: partial(Rig.put, device=device, waits=waits),
              st.integers(0, 2), st.lists(numbers, max_size=2)),
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
        busy = [command.device for command, _ in rig.running]
        assert len(busy) == len(set(busy)), "a device does one thing at a time"
        running = {command.number for command, _ in rig.running}
        assert all(running.isdisjoint(command.waits) for command, _ in rig.running)

    for step in taken:
        step(rig)
        check()
    for _ in range(4 * len(taken) + 4):
        rig.send()
        rig.end_one(0, fails=False)
        rig.answer()
        check()
    assert all(work.done for work in rig.works)
    for device in range(3):
        on_device = [work.command.number for work in rig.works if work.command.device == device]
        launched = [number for number in rig.launched if number in on_device]
        assert launched == sorted(launched)
    for index, work in enumerate(rig.works):
        failures = [one.error for one in needs[index] if one.error is not None]
        if failures:
            assert work.error in failures or work.cancelled
            assert work.command.number not in rig.launched
