"""The variables of a session: access by items, and by callers.

Assigned values are private to an item until all its steps have succeeded. Then they are committed
together, without concurrent readers: their arenas swap with the ones to read, or are copied to
them. Overlapping items hand variables on as they run (`pipeline`) and share a turn; their committed
values are stored after the last of them, or when a reader needs them.
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import numpy as np
import trio

from ....devices.device import Device
from ....devices.errors import DeviceLostError
from ....devices.evaluating import evaluate
from ....devices.memory import HOST_MEMORIES
from ....graph.core.infer import infer_node
from ....graph.core.ir import Graph, Node, make_call
from ....graph.core.state import find_assigned, find_variables
from ....graph.values.errors import GraphError, PlaitError, describe_error
from ....graph.values.tensor import Array, copy_read_only
from ...errors import FeedError, SessionError, session_closed_error
from ...shapes.specialise import specialise
from ..faults.watch import Watch
from ..items.item import ItemRun
from ..items.pipeline import KeyState, StatePipeline
from ..opened.open_plan import OpenPlan
from ..opened.slot import Slot
from ..opened.slots import Turn
from ..opened.versions import StateVersions
from ..virtual_time import VirtualTimeDriver
from .carried import Carried
from .keyed_states import Evict, KeyedStates, to_key
from .lock import VariableLock
from .store import VariableStore


class Values(Mapping[str, Array]):
    """The present values of variables, read on each access."""

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
    """The variables of a session; used on the trio thread only.

    `graph` is the whole one, with variables as nodes. `examine` is called when a device may have
    died; `values` are for callers.
    """

    def __init__(
        self,
        graph: Graph,
        devices: Mapping[str, Device],
        driver: VirtualTimeDriver,
        examine: Callable[[], object],
        watch: Watch,
    ) -> None:
        self._nodes = find_variables(graph)
        self._devices = devices
        self._driver = driver
        self._examine = examine
        self._watch = watch
        self._turns = VariableLock()
        self._pipeline = StatePipeline()
        self._handed_on = StateVersions()
        self.states = KeyedStates(driver)
        self._keyed = find_assigned(graph)
        self._bringing = trio.Lock()
        self._committing = False
        self.values = Values(self._nodes.keys(), self._read)
        self.held = VariableStore(self._nodes, devices, driver)
        self.refuse = self._turns.refuse

    async def open(self) -> None:
        """Compute the initial values.

        Raises GraphError or KernelError if the graph of an initial value fails.
        """
        if self._nodes:
            self.held.hold(
                await self._driver.on_thread(partial(compute_initial_values, self._nodes))
            )

    async def enter(self, item_run: ItemRun, open_plan: OpenPlan, turn: Turn) -> Turn:
        """Wait until `item_run` may read variables of `open_plan`, and copy them to memories.

        Returns `turn` with the slot bound to the arenas of the variables. Further plans of the
        same item start in its turn. Raises DeviceError if a value was on a device that was lost, or
        a device fails; SessionError if the session is being closed.
        """
        # An item keeps its turn over all of its plans.
        if not item_run.is_part:
            await self._enter(item_run, assigns=bool(open_plan.keeps))
        try:
            # Usually the previous item has left the values where this plan reads them.
            if open_plan.brought != self.held.changes:
                async with self._bringing:
                    # Read before copying: later changes have to be copied again.
                    changes = self.held.changes
                    await self.held.bring(self.held.missing(open_plan.reads))
                    open_plan.turn(self.held.turned)
                    open_plan.brought = changes
            # If arenas have swapped, another slot is bound to the present ones.
            index = turn.number % open_plan.period
            slot = open_plan.slots.get(index)
            if slot is None:
                slot = await self._watch.on_thread(partial(open_plan.make_slot, index))
            return turn._replace(slot=slot)
        except BaseException as error:
            self._refuse(item_run, error)
            raise

    async def enter_parts(self, item_run: ItemRun, graph: Graph) -> dict[str, Array]:
        """Wait until `item_run` may start in parts; return variables of `graph` by tensor name.

        The values do not change until the item leaves. Raises DeviceError or SessionError as
        `enter`.
        """
        if not graph.variables:
            return {}
        await self._enter(item_run, assigns=bool(graph.assigned))
        try:
            return {
                tensor: await self.held.fetch(node.name)
                for tensor, node in graph.variables.items()
                if tensor in graph.prepared or tensor in graph.late
            }
        except BaseException as error:
            self._refuse(item_run, error)
            raise

    async def _enter(self, item_run: ItemRun, *, assigns: bool) -> None:
        if assigns:
            await self._turns.take(item_run)
        else:
            if self._handed_on.names and not self._turns.has_joined(item_run):
                await self.hold(self._handed_on.copy_committed())
            await self._turns.share(item_run)

    async def join(self, item_run: ItemRun, names: frozenset[str]) -> None:
        """Wait until `item_run` may start, which hands the variables `names` on to others.

        From then on it has the state of its key, if it has one. Raises FeedError if its key cannot
        be used; DeviceError if a value was on a device that was lost, or a device fails;
        SessionError if the session is being closed.
        """
        if not self._turns.join_nowait(item_run, names):
            await self._turns.join(item_run, names)
        try:
            if item_run.marks.key is not None:
                key, known = item_run.marks.key, item_run.state
                item_run.state = (
                    known or self.states.find_nowait(key) or await self.states.find(key)
                )
                item_run.state.users.add(item_run)
            elif self._handed_on.names != names:
                async with self._bringing:
                    if self._handed_on.names != names:
                        values = {name: await self.held.fetch(name) for name in names}
                        self._handed_on.begin(values)
        except BaseException as error:
            self._refuse(item_run, error)
            raise

    def _refuse(self, item_run: ItemRun, error: BaseException) -> None:
        self.leave(item_run)
        if isinstance(error, DeviceLostError):
            self._examine()

    def leave(self, item_run: ItemRun) -> None:
        """End the turn of `item_run`, and forget values that it has not committed."""
        if item_run.state is not None:
            self.states.leave(item_run.state, item_run)
        if self._turns.leave(item_run):  # the last item that hands variables on
            if not self._handed_on.names:
                self._turns.pass_on()
            elif self._turns.is_read:
                self._driver.spawn(self._end_group)
            else:
                self.held.hold(self._handed_on.end())
                self._turns.pass_on()

    async def _end_group(self) -> None:
        async with self._turns.alone():
            if not self._turns.has_members:
                self.held.hold(self._handed_on.end())
        self._turns.pass_on()

    def get_versions(self, state: KeyState | None) -> StateVersions:
        return self._handed_on if state is None else state.versions

    def get_pipeline(self, state: KeyState | None, open_plan: OpenPlan) -> StatePipeline:
        # Functions that all keys share cannot be called out of order: all items commit in order.
        return self._pipeline if state is None or open_plan.ordered.shared else state.pipeline

    @property
    def are_free(self) -> bool:
        """True if no item reads or assigns, and no caller."""
        return not (self._turns.is_assigned or self._turns.is_read)

    def may_run_here(self, slot: Slot, open_plan: OpenPlan, *, has_key: bool = False) -> bool:
        """Return whether an item of `open_plan` can run on `slot` now, without a turn.

        If the item `has_key`, its plan must not assign to variables.
        """
        if self._turns.is_assigned:
            return False
        if open_plan.reads and open_plan.brought != self.held.changes:
            return False
        if has_key:
            return not open_plan.keeps and not self._turns.is_read
        if open_plan.hands_on:
            return not self._turns.is_read and self.held.are_here(open_plan.hands_on)
        return not open_plan.keeps or self.is_quick(slot)

    def read_here(self, slot: Slot, state: KeyState | None) -> None:
        if state is not None:
            state.versions.undo.item = 0
        for name, target in slot.state_in.items():
            if state is None:
                target[...] = self.held.read(name)
            else:
                state.versions.read(name, 0, target)

    def commit_here(self, slot: Slot, state: KeyState | None) -> None:
        if state is None:
            self.held.hold({name: copy_read_only(value) for name, value in slot.state_out.items()})
            return
        for name, value in slot.state_out.items():
            state.versions.write(name, 0, value)
        state.versions.commit(0)

    def is_quick(self, slot: Slot) -> bool:
        """Return whether the assignments in `slot` can be committed without waiting."""
        is_here = slot.commits.is_quick and all(one in HOST_MEMORIES for _, one in slot.swaps)
        return is_here and not self._turns.is_read

    def commit_now(self, slot: Slot, open_plan: OpenPlan) -> None:
        slot.commits.make_here()
        self._keep(slot, open_plan)

    async def commit(self, slot: Slot, open_plan: OpenPlan) -> None:
        """Commit the assignments of `open_plan` in `slot`, after all readers.

        It must not be cancelled. Raises DeviceError if a device fails.
        """
        async with self._turns.alone():
            self._committing = True
            try:
                if slot.commits:
                    await slot.commits.make(self._driver)
                self.held.check(slot.swaps.items())
            except BaseException:
                # Device memory may be half overwritten; copies on the host are whole.
                lost = {n: where - HOST_MEMORIES for n, where in open_plan.overwrites.items()}
                self.held.spoil(lost)
                self._examine()
                raise
            finally:
                self._committing = False
            self._keep(slot, open_plan)

    def lose(self, device: str) -> None:
        self.held.lose(self._devices[device].capabilities.memory)

    def _read(self, name: str) -> Array:
        """Return the value of variable `name`, read-only.

        Raises DeviceError if it was on a device that was lost; SessionError if a commit is in
        progress, or the session is being closed.
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

    @asynccontextmanager
    async def _between_items(self) -> AsyncIterator[None]:
        me = object()
        await self._turns.take(me)
        try:
            yield
        finally:
            self._turns.leave(me)

    async def fetch(self, key: Hashable = None) -> dict[str, Array]:
        """Return the values of all variables, or of `key`, after the assigning item.

        Raises FeedError for an unknown key, DeviceError and SessionError like `enter`.
        """
        async with self._between_items():
            values = {name: await self.held.fetch(name) for name in self._nodes}
            return values if key is None else values | await self.states.fetch(self._check_key(key))

    async def fetch_states(self) -> dict[Hashable, dict[str, Array]]:
        """Return the values of all keys, and of the session for None, as `fetch` does."""
        async with self._between_items():
            states = {None: {name: await self.held.fetch(name) for name in self._nodes}}
            return states | {key: await self.states.fetch(key) for key in [*self.states]}

    async def list_keys(self) -> tuple[Hashable, ...]:
        """Return all keys, the least recently used first, after the items in flight."""
        async with self._between_items():
            return tuple(self.states)

    async def drop_keys(self, keys: Iterable[Hashable] | None) -> None:
        """Forget `keys`, by default all, after the items in flight; FeedError if one is unknown."""
        async with self._between_items():
            for key in [*self.states] if keys is None else [*map(self._check_key, keys)]:
                await self.states.drop(key)

    async def assign(self, states: Mapping[Hashable, Mapping[str, Any]]) -> None:
        """Assign `states`, values by key, None for the session, all or none, between items.

        Raises FeedError for wrong keys, names, dtypes or shapes, SessionError if it closes.
        """
        checked = {
            None if key is None else to_key(key): self._check_values(values, key)
            for key, values in states.items()
        }
        if checked.keys() - {None}:
            await self._begin_keys()
        async with self._between_items():
            for key, arrays in checked.items():
                await (self.hold(arrays) if key is None else self.states.hold(key, arrays))

    def _check_values(self, values: Mapping[str, Any], key: Hashable) -> dict[str, Array]:
        _check_mapping(values)
        arrays = {name: self._checked(name, value) for name, value in values.items()}
        if key is not None and (shared := sorted(arrays.keys() - self._keyed)):
            raise FeedError(
                f"the variable {shared[0]!r} is one for all keys: the graph assigns nothing to it",
                fix="assign to it without key=",
            )
        return arrays

    def _check_key(self, key: Hashable) -> Hashable:
        found = to_key(key)
        if found not in self.states:
            raise FeedError(f"there is no key {key!r}", fix="see session.list_keys()")
        return found

    async def begin_keys(self, max_keys: int, evict: Evict) -> None:
        """Prepare `max_keys` states, and to `evict` more; GraphError if an initial value fails."""
        self.states.limit(max_keys, evict)
        await self._begin_keys()

    async def _begin_keys(self) -> None:
        if self.states.initial.names != self._keyed:
            nodes = {name: self._nodes[name] for name in self._keyed}
            values = await self._driver.on_thread(partial(compute_initial_values, nodes))
            self.states.initial.begin(
                {name: copy_read_only(value) for name, value in values.items()}
            )

    def closings(self) -> Iterator[Callable[[], None]]:
        """Yield functions that free all memory, to be called on a thread."""
        yield from self.states.closings()
        yield from self.held.closings()

    async def carry(self, values: Mapping[str, Any]) -> Carried:
        """Assign the `values` that fit dtype and shape of their variable; return a report on all.

        Raises FeedError if the values are not a mapping, or one is not an array; SessionError if
        the session is being closed.
        """
        _check_mapping(values)
        arrays: dict[str, Array] = {}
        unlike: dict[str, str] = {}
        # All are checked first: half of a checkpoint is worse than none.
        for name in values.keys() & self._nodes.keys():
            array = _copy_to_array(name, values[name])
            if (difference := self._difference(name, array)) is None:
                arrays[name] = array
            else:
                unlike[name] = difference
        await self.assign({None: arrays})
        return Carried(
            tuple(name for name in self._nodes if name in arrays),
            {name: unlike[name] for name in self._nodes if name in unlike},
            tuple(name for name in values if name not in self._nodes),
            tuple(name for name in self._nodes if name not in values),
        )

    async def reset(self, names: Iterable[str] | None) -> None:
        """Assign their initial values to the variables `names`, or to all for None.

        Raises FeedError if a variable is unknown; SessionError if the session is being closed.
        """
        if isinstance(names, str) or not isinstance(names, Iterable | None):
            raise FeedError(f"{names!r} is not a list of variables", fix="list their names")
        nodes = self._nodes if names is None else {name: self._node(name) for name in names}
        values = await self._driver.on_thread(partial(compute_initial_values, nodes))
        await self.assign({None: values})

    async def hold(self, arrays: Mapping[str, Array]) -> None:
        """Set variables to `arrays` that never change, after all readers; needs the turn to assign.

        Must not be cancelled while there are readers.
        """
        async with self._turns.alone():
            self.held.hold(arrays)

    def _keep(self, slot: Slot, open_plan: OpenPlan) -> None:
        is_up_to_date = open_plan.brought == self.held.changes
        self.held.keep(open_plan.keeps, slot.swaps, open_plan.turning)
        # The next item of this plan finds the values in place.
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
        array = _copy_to_array(name, value)
        difference = self._difference(name, array)
        if difference is not None:
            raise FeedError(f"the variable {name!r} {difference}", fix="convert it")
        # In native byte order.
        array = array.astype(self.held.spec(name).dtype, copy=False)
        array.flags.writeable = False
        return array

    def _difference(self, name: str, value: Array) -> str | None:
        spec = self.held.spec(name)
        if value.shape == spec.static_shape and value.dtype.newbyteorder("=") == spec.dtype:
            return None
        return f"is {spec}, the value {value.dtype.name}{list(value.shape)}"


def check_keyed(open_plan: OpenPlan) -> None:
    """Raise SessionError if items of `open_plan` run one at a time, and so cannot have keys."""
    if open_plan.keeps or open_plan.stages is not None:
        raise keyed_lengths_error()


def keyed_lengths_error() -> SessionError:
    return SessionError(
        "lengths in this graph depend on values, and so its items cannot have a state for each key",
        fix="hand such rows on as a Python object, TensorSpec('object', ()), or filled up to one "
        "length; or leave key= out",
    )


def _check_mapping(values: Any) -> None:
    if not isinstance(values, Mapping):
        raise FeedError(
            f"the values of variables are a {type(values).__name__}",
            fix="pass them by name, as a mapping: {'weights': array}",
        )


def _copy_to_array(name: str, value: Any) -> Array:
    try:
        return np.array(value)
    except Exception as error:  # rows of different lengths, objects of any class
        raise FeedError(
            f"the value for the variable {name!r} is not an array: {describe_error(error)}",
            fix="pass an array",
        ) from error


def compute_initial_values(variables: Mapping[str, Node]) -> dict[str, Array]:
    """Compute the initial values of `variables` by name; blocks.

    Raises GraphError if a graph cannot be computed on the host; `at` names the variable.
    """
    return {name: _get_initial_value(node) for name, node in variables.items()}


def _get_initial_value(variable: Node) -> Array:
    graph: Graph = variable.attributes["initial"]
    try:
        return _compute(graph, variable)
    except PlaitError as error:
        error.add_note(f"this computes the initial value of {variable}")
        raise


def _compute(graph: Graph, variable: Node) -> Array:
    graph = specialise(graph)
    values = dict(graph.constants)
    for node in graph.nodes:
        found = None
        if node.operator.function is None and not node.operator.effects:
            call = make_call(node, graph.tensors, values)
            found = evaluate(node, call, infer_node(node, call))
        if found is None:
            raise GraphError(
                f"{node} cannot be computed on the host when a session is opened",
                at=str(variable),
                fix="compute the value beforehand, and pass the array",
            )
        values.update(found)
    return np.asarray(values[graph.outputs[0]])
