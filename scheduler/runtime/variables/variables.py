"""The variables of a session: what items read and assign, and what callers see of it.

What an item assigns is its own until all its steps have ended well. Then it is committed, all of it
or nothing, while nobody reads: where it lies changes places with what is read, or it is copied.
Where items overlap, they hand variables on as they run (`pipeline`), and have their turn together;
the committed values are held when the last of them has ended, or a reader asks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import trio

from ....devices.device import Device
from ....devices.errors import DeviceLostError
from ....devices.memory import HOST_MEMORIES
from ....graph.errors import named_text
from ....graph.ir import Graph, Node
from ....graph.state import variables_of
from ....graph.tensor import Array, frozen_copy
from ...errors import FeedError, SessionError
from ..faults.watch import Watch
from ..items.item import ItemRun
from ..opened.open_plan import OpenPlan
from ..opened.slot import Slot
from ..opened.slots import Turn, session_closed_error
from ..virtual_time import VirtualTimeDriver
from .carried import Carried
from .initial import initial_values
from .lock import VariableLock
from .pipeline import StatePipeline
from .store import VariableStore


class Values(Mapping[str, Array]):
    """What variables hold when they are looked up."""

    def __init__(self, names: Collection[str], read: Callable[[str], Array]) -> None:
        self._names = names
        self._read = read

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"variables: {', '.join(self._names) or 'none'}"


class Variables:
    """Used on the trio thread only.

    Parameters
    ----------
    graph : Graph
        All of it, variables as nodes.
    devices : Mapping of str to Device
        Those that are open.
    driver : VirtualTimeDriver
    examine : callable
        Called when a device may have died.
    watch : Watch

    Attributes
    ----------
    held : VariableStore
    values : Mapping of str to array
        For callers.
    pipeline : StatePipeline
        Of items that hand variables on.
    """

    def __init__(
        self,
        graph: Graph,
        devices: Mapping[str, Device],
        driver: VirtualTimeDriver,
        examine: Callable[[], object],
        watch: Watch,
    ) -> None:
        self._nodes = variables_of(graph)
        self._devices = devices
        self._driver = driver
        self._examine = examine
        self._watch = watch
        self._turns = VariableLock()
        self.pipeline = StatePipeline()
        self._handed_on = self.pipeline.versions
        self._bringing = trio.Lock()
        self._committing = False
        self.values = Values(self._nodes.keys(), self._read)
        self.held = VariableStore(self._nodes, devices, driver)
        self.refuse = self._turns.refuse
        self.closings = self.held.closings

    async def open(self) -> None:
        """Compute the values to begin with.

        Raises
        ------
        GraphError, KernelError
            If a graph that is to compute one cannot.
        """
        if self._nodes:
            self.held.hold(await self._driver.on_thread(partial(initial_values, self._nodes)))

    async def enter(self, item_run: ItemRun, open_plan: OpenPlan, turn: Turn) -> Turn:
        """Wait until an item that reads variables may start, and bring them to where it does.

        Return its turn with the slot bound to where variables are then.

        What is only one of the plans that an item goes through starts in the turn of that item.

        Raises
        ------
        DeviceError
            If a value was on a device that was lost, or a device fails.
        SessionError
            If the session is being closed.
        """
        # The whole item holds the turn, over all plans that it goes through.
        if not item_run.is_part:
            await self._enter(item_run, assigns=bool(open_plan.keeps))
        try:
            # Nothing to do for most items: what their plan reads is where the item before has left
            # it.
            if open_plan.brought != self.held.changes:
                async with self._bringing:
                    # As of before: what changes while values are brought has to be brought again.
                    changes = self.held.changes
                    await self.held.bring(self.held.missing(open_plan.reads))
                    open_plan.turn(self.held.turned)
                    open_plan.brought = changes
            # Where variables have changed places, the slot is another one, bound to the places of
            # now.
            index = turn.number % open_plan.period
            slot = open_plan.slots.get(index)
            if slot is None:
                slot = await self._watch.on_thread(partial(open_plan.make_slot, index))
            return turn._replace(slot=slot)
        except BaseException as error:
            self._refused(item_run, error)
            raise

    async def enter_parts(self, item_run: ItemRun, graph: Graph) -> dict[str, Array]:
        """Wait until an item that goes through several plans may start; return what it reads.

        By the names of tensors. It stays as it is until the item leaves.

        Raises
        ------
        DeviceError, SessionError
            As `enter`.
        """
        if not graph.variables:
            return {}
        await self._enter(item_run, assigns=bool(graph.assigned))
        try:
            return {
                tensor: await self.held.fetch(node.name)
                for tensor, node in graph.variables.items()
                if tensor in graph.prepared
            }
        except BaseException as error:
            self._refused(item_run, error)
            raise

    async def _enter(self, item_run: ItemRun, *, assigns: bool) -> None:
        if assigns:
            await self._turns.take(item_run)
        else:
            if self._handed_on.names and not self._turns.has_joined(item_run):
                await self.hold(self._handed_on.copy_committed())
            await self._turns.share(item_run)

    async def join(self, item_run: ItemRun, names: frozenset[str]) -> None:
        """Wait until an item may start that hands variables on to others in flight.

        Raises
        ------
        DeviceError
            If a value was on a device that was lost, or a device fails.
        SessionError
            If the session is being closed.
        """
        if not self._turns.join_nowait(item_run, names):
            await self._turns.join(item_run, names)
        try:
            if self._handed_on.names != names:
                async with self._bringing:
                    if self._handed_on.names != names:
                        values = {name: await self.held.fetch(name) for name in names}
                        self._handed_on.begin(values)
        except BaseException as error:
            self._refused(item_run, error)
            raise

    def _refused(self, item_run: ItemRun, error: BaseException) -> None:
        """Take note that an item cannot start, whose turn it is."""
        self.leave(item_run)
        if isinstance(error, DeviceLostError):
            self._examine()

    def leave(self, item_run: ItemRun) -> None:
        """Let others have the turn of an item that is over; what it assigned is forgotten."""
        if self._turns.leave(item_run):  # the last of those that hand variables on
            if self._turns.is_read:
                self._driver.spawn(self._end_group)
            else:
                self.held.hold(self._handed_on.end())
                self._turns.pass_on()

    async def _end_group(self) -> None:
        async with self._turns.alone():
            if not self._turns.has_members:
                self.held.hold(self._handed_on.end())
        self._turns.pass_on()

    def may_run_here(self, slot: Slot, open_plan: OpenPlan) -> bool:
        """Return whether an item needs no turn: it is over, and committed, before others begin."""
        if self._turns.is_assigned:
            return False
        if open_plan.reads and open_plan.brought != self.held.changes:
            return False
        if open_plan.hands_on:
            return not self._turns.is_read and self.held.are_here(open_plan.hands_on)
        return not open_plan.keeps or self.is_quick(slot)

    def read_here(self, slot: Slot) -> None:
        """Copy variables that items hand on to where an item reads them that `may_run_here`."""
        for name, target in slot.state_in.items():
            target[...] = self.held.read(name)

    def commit_here(self, slot: Slot) -> None:
        """Hold the values of variables that such an item has handed on."""
        self.held.hold({name: frozen_copy(value) for name, value in slot.state_out.items()})

    def is_quick(self, slot: Slot) -> bool:
        """True when what an item on a slot assigns can be committed at once."""
        is_here = slot.commits.is_quick and all(one in HOST_MEMORIES for _, one in slot.swaps)
        return is_here and not self._turns.is_read

    def commit_now(self, slot: Slot, open_plan: OpenPlan) -> None:
        """Have variables hold what an item assigned, which `is_quick`."""
        slot.commits.make_here()
        self._keep(slot, open_plan)

    async def commit(self, slot: Slot, open_plan: OpenPlan) -> None:
        """Have variables hold what an item assigned, once nobody reads them; not to be cancelled.

        Raises
        ------
        DeviceError
            If a device fails.
        """
        async with self._turns.alone():
            self._committing = True
            try:
                if slot.commits:
                    await slot.commits.make(self._driver)
                self.held.check(slot.swaps.items())
            except BaseException:
                # Half overwritten, a value in a device's memory is no value; on the host copies are
                # whole.
                lost = {n: where - HOST_MEMORIES for n, where in open_plan.overwrites.items()}
                self.held.spoil(lost)
                self._examine()
                raise
            finally:
                self._committing = False
            self._keep(slot, open_plan)

    def lose(self, device: str) -> None:
        """Take note that what was in a device's own memory is gone."""
        self.held.lose(self._devices[device].capabilities.memory)

    def _read(self, name: str) -> Array:
        """Return what a variable holds, read-only.

        Raises
        ------
        DeviceError
            If it was on a device that was lost.
        SessionError
            If it changes just now, or the session is being closed.
        """
        if self._turns.is_closing:
            raise session_closed_error()
        if self._committing:
            raise SessionError(
                f"the variable {name!r} changes at this moment",
                fix="read it when the item under way is done, or await session.fetch_variables()",
            )
        if name in self._handed_on.names:
            return self._handed_on.copy_committed()[name]
        return self.held.read(name)

    async def fetch(self) -> dict[str, Array]:
        """Return what all variables hold, after the item that assigns just now.

        Raises
        ------
        DeviceError, SessionError
            As `enter`.
        """
        me = object()
        await self._turns.take(me)
        try:
            return {name: await self.held.fetch(name) for name in self._nodes}
        finally:
            self._turns.leave(me)

    async def assign(self, values: Mapping[str, Any]) -> None:
        """Have variables hold other values, all or none, after the items under way.

        Raises
        ------
        FeedError
            If the values are not given by name, there is no such variable, or one is not like it.
        SessionError
            If the session is being closed.
        """
        _check_mapping(values)
        arrays = {name: self._checked(name, value) for name, value in values.items()}
        me = object()
        await self._turns.take(me)
        try:
            await self.hold(arrays)
        finally:
            self._turns.leave(me)

    async def carry(self, values: Mapping[str, Any]) -> Carried:
        """Have variables hold those values that are like them, as `assign`; say what became of all.

        Raises
        ------
        FeedError
            If the values are not given by name, or one is no array.
        SessionError
            If the session is being closed.
        """
        _check_mapping(values)
        arrays: dict[str, Array] = {}
        unlike: dict[str, str] = {}
        # All are looked at before any is held: half of a checkpoint is worse than none.
        for name in values.keys() & self._nodes.keys():
            array = _array(name, values[name])
            if (difference := self._difference(name, array)) is None:
                arrays[name] = array
            else:
                unlike[name] = difference
        await self.assign(arrays)
        return Carried(
            tuple(name for name in self._nodes if name in arrays),
            {name: unlike[name] for name in self._nodes if name in unlike},
            tuple(name for name in values if name not in self._nodes),
            tuple(name for name in self._nodes if name not in values),
        )

    async def reset(self, names: Iterable[str] | None) -> None:
        """Have variables hold again what they began with: all of them, or some.

        Raises
        ------
        FeedError
            If there is no such variable.
        SessionError
            If the session is being closed.
        """
        if isinstance(names, str) or not isinstance(names, Iterable | None):
            raise FeedError(f"{names!r} is not a list of variables", fix="list their names")
        nodes = self._nodes if names is None else {name: self._node(name) for name in names}
        await self.assign(await self._driver.on_thread(partial(initial_values, nodes)))

    async def hold(self, arrays: Mapping[str, Array]) -> None:
        """Have variables hold arrays that nobody changes, once nobody reads; for who has the turn.

        Not to be cancelled, unless nobody reads.
        """
        async with self._turns.alone():
            self.held.hold(arrays)

    def _keep(self, slot: Slot, open_plan: OpenPlan) -> None:
        """Take note of what was committed, which is where the plan itself reads variables."""
        is_up_to_date = open_plan.brought == self.held.changes
        self.held.keep(open_plan.keeps, slot.swaps, open_plan.turning)
        # What the item wrote lies where its own plan reads: the next one has nothing to bring.
        if is_up_to_date:
            open_plan.turn(self.held.turned)
            open_plan.brought = self.held.changes

    def _node(self, name: str) -> Node:
        if name not in self._nodes:
            raise FeedError(
                f"there is no variable {name!r}",
                fix=f"there are: {', '.join(self._nodes) or 'none'}",
            )
        return self._nodes[name]

    def _checked(self, name: str, value: Any) -> Array:
        self._node(name)
        array = _array(name, value)
        difference = self._difference(name, array)
        if difference is not None:
            raise FeedError(f"the variable {name!r} {difference}", fix="convert it")
        # In this machine's order of bytes.
        array = array.astype(self.held.spec(name).dtype, copy=False)
        array.flags.writeable = False
        return array

    def _difference(self, name: str, value: Array) -> str | None:
        """Return what a variable is and a value for it, None where they are alike."""
        spec = self.held.spec(name)
        if value.shape == spec.static_shape and value.dtype.newbyteorder("=") == spec.dtype:
            return None
        return f"is {spec}, the value {value.dtype.name}{list(value.shape)}"


def _check_mapping(values: Any) -> None:
    if not isinstance(values, Mapping):
        raise FeedError(
            f"the values of variables are a {type(values).__name__}",
            fix="pass them by name, as a mapping: {'weights': array}",
        )


def _array(name: str, value: Any) -> Array:
    """Return a copy of a variable's value."""
    try:
        return np.array(value)
    except Exception as error:  # rows of different lengths, objects of any class
        raise FeedError(
            f"the value for the variable {name!r} is not an array: {named_text(error)}",
            fix="pass an array",
        ) from error
