"""The inside of a session: open devices, open plans by input shapes, items under way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING, Any

import trio

from ...devices.forking import register_for_forks
from ...devices.host import HostDevice
from ...graph.operators.each import row_server
from ...graph.values.errors import combine_errors
from ...graph.values.tensor import Array
from ..dispatch.hand_over import measure_hand_over
from ..dispatch.way_choice import WayMemory
from ..errors import forked_session_error
from ..planner.known_values import evaluate_known
from ..plans.plan import Plan
from ..profile.timestamps import Timestamps
from .async_calls import Await, await_here
from .breakdown import Admissions, Breakdown
from .completion_poller import CompletionPoller
from .dispatcher import Dispatcher
from .events import Announcer, FunctionsOverlap, ItemDone
from .faults.open_devices import OpenDevices
from .faults.policy import FaultPolicy
from .faults.recovery import Recovery
from .faults.watch import Watch
from .items.input_staging import InputStagingPool
from .items.item import ItemRun, ItemsUnderWay
from .opened.device_io import borrow_inputs
from .opened.feeds import Keys, own_feeds
from .opened.fetch_plan_cache import ALL, FetchPlanCache
from .opened.open_plans import OpenPlans
from .opened.results import Results
from .opened.shape_plan_cache import ShapePlanCache
from .recorder import Recorder
from .running.completion import ItemCompletion
from .running.inline_runner import InlineRunner, InlineTerms
from .running.launcher import ItemLauncher
from .running.staged_run import StagedRunner
from .status import Status, count_subgraph_runs, describe_devices, describe_memory
from .streaming.options import StreamOptions
from .streaming.row_batches import RowBatches
from .variables.variables import Variables, keyed_lengths_error
from .virtual_time import VirtualTimeDriver

if TYPE_CHECKING:
    from .streaming.keyed_batch import KeyedBatching

logger = logging.getLogger(__name__)

_logged = set[str]()
"""Functions that several items may call, named once in a process; pipelines number theirs."""


class Runtime:
    """Runs items, as a `Starter`; used on the trio thread only.

    Parameters
    ----------
    measure : bool
        Time every node.
    trace : bool
        Keep the times of items.
    has_loop_alone : bool, default False
        True if no other tasks use the loop.
    awaits : callable, optional
        Awaits async functions; on this loop when left out.

    Attributes
    ----------
    now_ns : callable
        The clock of the times of items.
    is_inherited : bool
        True in a forked child: lanes and workers are the parent's.
    needs_its_loop : bool
        True when events or changes of variables happen on the loop alone.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        measure: bool,
        trace: bool,
        announcer: Announcer,
        faults: FaultPolicy,
        seed: int = 0,
        has_loop_alone: bool = False,
        awaits: Await = await_here,
    ) -> None:
        self.plan = plan
        self._inputs_on = plan.ends.inputs
        self.keys = Keys(plan, seed)
        self._announcer = announcer
        self.recorder = Recorder(keeps=trace, measures=measure)
        self._devices = OpenDevices(plan)
        self._breakdown = Breakdown()
        self._driver = VirtualTimeDriver(
            has_loop_alone=has_loop_alone and plan.is_static, awaits=awaits
        )
        self._driver.on_break = self._break
        self.now_ns = self._driver.now_ns
        self.checkpoint = self._driver.checkpoint
        self._poller = CompletionPoller()
        recovery = self._recovery = Recovery(self._devices, self._driver, faults, announcer)
        watch = self._watch = Watch(recovery, self._driver)
        self.variables = Variables(
            plan.fed, self._devices.by_name, self._driver, recovery.examine, watch
        )
        self._open_plans = OpenPlans(
            self._devices.by_name,
            self._driver,
            recovery,
            self.recorder,
            self.variables.held.lend,
            watch,
            variants=plan.variants,
            measure=measure,
        )
        self._fetch_plans = FetchPlanCache(plan, self._open_plans, self._driver)
        self._dispatcher = Dispatcher(plan.replicas, recovery.lost, self._driver.call)
        recovery.on_loss, recovery.on_return = self._lose, self._open_plans.restore
        self._item_runs = ItemsUnderWay()
        self._completion = ItemCompletion(
            self.recorder, self._driver, self._item_runs, self.variables
        )
        self._launcher = ItemLauncher(
            self._driver,
            self._open_plans,
            recovery,
            self._completion,
            self._item_runs,
            announcer,
            self._dispatcher,
            self.variables,
            watch,
        )
        self._staged_runner = StagedRunner(
            self._driver,
            self._open_plans,
            self._launcher,
            self._completion,
            self._item_runs,
            self.variables,
        )
        self.copying = self._launcher.copying
        self.spares = InputStagingPool(plan)
        inline_lock = Lock()
        self._row_batches = RowBatches(
            plan, self._open_plans, self, self._driver, self.recorder, inline_lock
        )
        self._admissions = Admissions(self._breakdown)
        self.way_memory = WayMemory()
        self._inline = InlineRunner(
            self._open_plans,
            self.variables,
            self.recorder,
            recovery,
            self._driver,
            self._row_batches.inline,
            inline_lock,
        )
        self.is_inherited = False
        self.needs_its_loop = True

    def status(self) -> Status:
        done, failed = self.recorder.done, self.recorder.failed
        devices = describe_devices(self.plan.every_device, self._item_runs)
        memory = describe_memory(self._open_plans.plans, self._open_plans.grown)
        plans = self._open_plans.status()
        in_flight = sum(not item_run.is_part for item_run in self._item_runs)
        subgraphs = count_subgraph_runs(self.plan, self._item_runs)
        dropped = self.recorder.dropped
        return Status(done, failed, in_flight, devices, memory, plans, dropped, subgraphs)

    @property
    def item_ns(self) -> int:
        estimates = self._inline.estimates
        return 0 if estimates is None else estimates.total_ns

    def announce(self, marks: Timestamps, error: BaseException | None) -> None:
        if self.plan.replicas:
            self._dispatcher.look_again()
        self.recorder.count(error is not None)
        if self._announcer.is_heard:
            latency_ns = max(0, marks.landed_ns - marks.admitted_ns)  # not every item gets that far
            self._announcer.tell(ItemDone(latency_ns / 1e9, error))

    async def await_recovery(self) -> None:
        await self._recovery.await_change()

    def count_dropped(self) -> None:
        self.recorder.dropped += 1

    def borrowed(self, inputs: Any) -> Any:
        return borrow_inputs(self._inputs_on, self._devices.by_name, inputs)

    def is_caller(self) -> bool:
        """Return whether the caller is a function of an item, on the thread of a device."""
        devices = tuple(self._devices.by_name.values())  # the loop may open one
        return any(isinstance(one, HostDevice) and one.is_caller() for one in devices)

    async def open(self) -> None:
        """Open the devices and, if the shapes are known, allocate and bind everything.

        Raises DeviceError if a device refuses; the others are closed again.
        """
        self._driver.start()
        register_for_forks(self)
        try:
            for name in self.plan.every_device:
                device = await self._driver.aside(partial(self._devices.open, name))
                self._driver.add(device)
                self._poller.add(device)
                self._recovery.add(name)
                if self._driver.is_virtual or self._recovery.watches:  # which the loop sees to
                    self._driver.has_loop_alone = False
            self._driver.tell_time_of(self._devices.used)
            self.now_ns = self._driver.now_ns
            is_watched = self._announcer.is_heard or self._recovery.watches
            # Else any thread may run an item while the loop has nothing to do.
            self.needs_its_loop = is_watched or self._driver.is_virtual or self.keys.are_read
            await self.variables.open()
            if not self._driver.has_loop_alone:  # for one item it is not worth its while
                await self._driver.on_thread(measure_hand_over)
            await self._open_plan()
            self._announce_overlap()
            self._driver.context.run(row_server.set, self._row_batches)
            for slots in await self._row_batches.open():
                await self._watch.on_thread(slots.fill)
        except BaseException as error:
            try:
                await self.close()
            except Exception as other:
                error.add_note(f"and then: {other}")
            raise

    def _announce_overlap(self) -> None:
        """Name the functions that replicas may run for several items at once, and the others."""
        plan, items = self.plan, self.plan.variants
        if functions := plan.overlapping_functions:
            self._announcer.tell(FunctionsOverlap(functions, items))
            level = logging.WARNING if plan.has_automatic_replicas else logging.INFO
            text = "%d items at once may call %s; ordered=True has each called for one at a time, "
            text += "and so has device='cpu:0', in jobs too"
            names = (name.partition("#")[0] for name in functions)
            plain = dict.fromkeys(name.removesuffix(" of each row ") for name in names)
            if news := [name for name in plain if name not in _logged]:
                _logged.update(news)
                logger.log(level, text, items, ", ".join(news))
        for name, why in plan.ordered_functions.items():
            logger.info("%s is called for one item after the other: %s", name, why)

    async def _open_plan(self) -> None:
        whole, count = self._fetch_plans.whole, self.plan.max_in_flight
        if self.plan.is_static:
            opened = await whole.open_own(count)
        elif (entry := whole.entry(count)) is not None:
            opened = await whole.open_joined(count)
            if not opened:
                await self._staged_runner.prepare(entry, self.plan.variants)
        else:
            await self._driver.on_thread(partial(evaluate_known, self.plan))
            return
        for slots in opened:
            await self._watch.on_thread(slots.fill)

    async def close(self) -> None:
        """Cancel work in flight, wait for its end, and free everything.

        Raises the error of the first device that failed to close, with others in its notes; all are
        closed.
        """
        errors: list[BaseException] = []
        closed = trio.Event()
        # A task of its own: Ctrl-C strikes the main task, at any await, shielded or not.
        trio.lowlevel.spawn_system_task(self._close, errors, closed)
        with trio.CancelScope(shield=True):
            while not closed.is_set():
                try:
                    await closed.wait()
                except KeyboardInterrupt as error:
                    errors.append(error)
        if errors:
            raise combine_errors(errors)

    async def _close(self, errors: list[BaseException], closed: trio.Event) -> None:
        try:
            # First stop starting work, then wait for running work, then close its devices.
            self._refuse()
            self._watch.close()
            # An item that is being admitted may still get a slot.
            await self._admissions.wait_ended()
            await self.drain(self._item_runs)
            await self._breakdown.settle(self._driver)
            await self._row_batches.close()
            await self._launcher.replays.settle()
            await self._recovery.wait_stopped()
            await self._poller.close()
            await self._driver.end()
            closings = (
                self._open_plans.closings(),
                self.variables.closings(),
                self._devices.closings(),
            )
            errors += await self._driver.aside(partial(_close_all, chain(*closings)))
        except Exception as error:
            errors.append(error)
        finally:
            closed.set()  # or `close` would wait for ever

    def _refuse(self) -> None:
        self._launcher.refuse()
        self._dispatcher.refuse()
        self._staged_runner.refuse()
        self._open_plans.refuse()
        self.variables.refuse()
        self._recovery.stop()

    def _break(self, cause: BaseException) -> None:
        if self._breakdown.begin(cause):
            self._refuse()
            self._watch.abandon()
            self._launcher.replays.abandon_all()
            item_runs = list(self._item_runs)
            self._item_runs.clear()
            self._breakdown.fail(item_runs)

    def give_up(self) -> None:
        """Leave everything to the parent of this process, which was forked."""
        self.is_inherited = True

    def _lose(self, device: str) -> None:
        self._open_plans.retire(device)
        self.variables.lose(device)

    async def drain(self, item_runs: set[ItemRun]) -> None:
        with trio.CancelScope(shield=True):
            for item_run in list(item_runs):
                item_run.cancel()
            for item_run in list(item_runs):
                await item_run.done.wait()

    @trio.lowlevel.enable_ki_protection
    def run_at_once(
        self, inputs: Mapping[str, Any], marks: Timestamps, terms: InlineTerms
    ) -> Results | None:
        if self.is_inherited or self._item_runs or self._admissions.count or self.keys.are_read:
            return None
        if self._breakdown.error is not None:
            raise self._breakdown.error.again()
        plans = self._fetch_plans
        shape_plans = terms.shape_plans or (plans.find(terms.names) if terms.names else plans.whole)
        if shape_plans is None or not shape_plans.may_run_at_once:
            return None
        if shape_plans.acts and not terms.limit.may_act:
            return None
        return self._inline.run(shape_plans, inputs, marks, terms)

    @trio.lowlevel.enable_ki_protection  # Ctrl-C is taken before or after, never in between
    async def admit(
        self,
        inputs: Mapping[str, Any],
        max_in_flight: int,
        item_run: ItemRun,
        fetched: frozenset[str] = ALL,
    ) -> None:
        with self._admission:
            shape_plans = self._fetch_plans.find(fetched) or await self._fetch_plans.open(fetched)
            inputs = self.borrowed(inputs)
            await self._dispatcher.wait_for_room()
            await self._start(shape_plans, shape_plans.check(inputs), max_in_flight, item_run)

    @trio.lowlevel.enable_ki_protection
    async def admit_on(
        self,
        shape_plans: ShapePlanCache,
        inputs: Mapping[str, Array],
        max_in_flight: int,
        item_run: ItemRun,
    ) -> None:
        with self._admission:
            await self._start(shape_plans, inputs, max_in_flight, item_run)

    async def _start(
        self,
        shape_plans: ShapePlanCache,
        arrays: Mapping[str, Array],
        max_in_flight: int,
        item_run: ItemRun,
    ) -> None:
        # Items that start again were admitted before this one, and go first.
        if self._launcher.replays.is_busy:
            await self._launcher.replays.settle()
        item_run.variant = self._dispatcher.choose(item_run)
        count = shape_plans.count(max_in_flight)
        slots, arrays = shape_plans.find(count, arrays, item_run.variant)
        if slots is None:
            slots = await shape_plans.open(count, arrays, item_run.variant, item_run.marks)
        if slots is None:
            if item_run.marks.key is not None:
                raise keyed_lengths_error()
            # Stages are planned while it runs: by then callers may have written to their arrays.
            own = partial(own_feeds, shape_plans.plan.graph, arrays)
            arrays = await self._launcher.copying(arrays.values(), own)
            entry = shape_plans.entries[count]
            await self._staged_runner.start(item_run, arrays, entry, shape_plans.plan.graph)
            self._dispatcher.start(item_run, None)
        else:
            await self._launcher.start(item_run, slots, arrays)

    @trio.lowlevel.enable_ki_protection
    async def admit_at_once(
        self,
        inputs: Mapping[str, Any],
        max_in_flight: int,
        item_run: ItemRun,
        fetched: frozenset[str] = ALL,
        *,
        may_run_here: bool = True,
    ) -> bool:
        # A caller that reads results in place needs a slot of its own.
        if may_run_here and not item_run.holds:
            terms = InlineTerms(fetched, slots=max_in_flight)
            results = self.run_at_once(inputs, item_run.marks, terms)
            if results is not None:
                item_run.finish(results)
                return True
        with self._admission:
            shape_plans = self._fetch_plans.find(fetched) or await self._fetch_plans.open(fetched)
            arrays = shape_plans.check(inputs)
            if not self._dispatcher.has_room or item_run.marks.key is not None:
                return False
            item_run.variant = self._dispatcher.choose(item_run)
            count = shape_plans.count(max_in_flight)
            slots, arrays = shape_plans.find(count, arrays, item_run.variant)
            turn = self._launcher.turn_nowait(slots)
            if slots is None or turn is None:
                return False
            # A stream asks how long an item takes, to choose where the next ones run.
            if turn.slot.calls is not None and shape_plans.may_run_at_once:
                self._inline.estimates = slots.open_plan.estimates
            await self._launcher.begin(item_run, slots, turn, arrays)
            return True

    @trio.lowlevel.enable_ki_protection
    async def plan_for(self, fetched: frozenset[str]) -> Plan:
        with self._admission:
            return (await self._of(fetched)).plan

    @trio.lowlevel.enable_ki_protection
    async def prepare(self, max_in_flight: int, fetched: frozenset[str] = ALL) -> None:
        with self._admission:
            shape_plans = await self._of(fetched)
            if shape_plans.plan.is_static:
                for slots in await shape_plans.open_own(shape_plans.count(max_in_flight)):
                    if shape_plans.plan.ordered_functions:  # items may be parked
                        await self._watch.on_thread(slots.fill)
                    elif (first := slots.following) not in slots.open_plan.slots:
                        await self._watch.on_thread(partial(slots.open_plan.make_slot, first))

    @trio.lowlevel.enable_ki_protection
    async def begin_keys(self, options: StreamOptions) -> KeyedBatching | None:
        with self._admission:
            await self.variables.begin_keys(options.max_keys, options.evict)
            names, size, slots = options.names, options.batch, options.slots
            if size is None:
                return None
            from .streaming.keyed_batch import KeyedBatching

            own = (await self._of(names)).plan
            shape_plans, lifted = await self._fetch_plans.open_rows(names, size, slots)
            if shape_plans.plan.is_static:
                await shape_plans.open_own(shape_plans.count(slots))
            common = own.fed, size, 1, None, own.unneeded, options.copy, None
            return KeyedBatching(*common, lifted, shape_plans, self.variables, self)

    async def _of(self, fetched: frozenset[str]) -> ShapePlanCache:
        return self._fetch_plans.find(fetched) or await self._fetch_plans.open(fetched)

    @property
    def _admission(self) -> Admissions:
        if self.is_inherited:
            raise forked_session_error()
        return self._admissions


def _close_all(closings: Iterable[Callable[[], None]]) -> list[Exception]:
    errors = []
    for close in closings:
        try:
            close()
        except Exception as error:
            errors.append(error)
    return errors
