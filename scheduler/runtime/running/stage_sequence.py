"""An item's way through the stages of a graph whose shapes depend on values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import trio

from ....graph.core.ir import Graph, Node
from ....graph.core.nested import infer_results
from ....graph.values.dims import normalize_axis
from ....graph.values.errors import ShapeError
from ....graph.values.tensor import Array, spec_of
from ...planner.staged_plans import Stage, StagedGraph
from ...plans.plan import Plan

Known: TypeAlias = dict[str, Array]
RunPart: TypeAlias = Callable[[Plan, Mapping[str, Array]], Awaitable[Mapping[str, Array]]]
"""Runs a static plan once; raises the error of a step, and if the item is cancelled."""

OnThread: TypeAlias = Callable[[Callable[[], Stage]], Awaitable[Stage]]
"""Calls a function that makes a stage outside of the loop, because it is slow."""


@dataclass(slots=True, eq=False)
class StageSequence:
    """Takes one item through the stages, one part after the other.

    `lock_of` returns a lock that is held while the stage after an entry is made; `check` raises
    when the item is cancelled.
    """

    _run_part: RunPart
    _on_thread: OnThread
    _lock_of: Callable[[StagedGraph], trio.Lock]
    _check: Callable[[], None]

    async def run(self, entry: StagedGraph, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Run the graph of `entry` on `inputs`, and return its outputs.

        Raises ShapeError or PlanError if values met on the way do not fit together.
        """
        known: Known = dict(inputs)
        results: Known = {}
        following: StagedGraph | None = entry
        while following is not None:
            self._check()
            stage = following.find(known) or await self._make(following, known)
            if stage.plan is not None:
                fed = {name: known[name] for name in stage.plan.graph.inputs}
                known.update(await self._run_part(stage.plan, fed))
            # Before checks and loops, which may read any of this.
            known.update(stage.constants)
            known.update(stage.at_boundary(known))
            stage.check(known)
            for node, body in stage.loops:
                known.update(await self._iterate(node, body, known))
            # Tensors without later readers are dropped; stages name their tensors independently.
            needed, later = _get_interface(stage.rest)
            ready = (name for name in following.graph.outputs if name not in later)
            results.update({name: known[name] for name in ready})
            known = {name: known[name] for name in needed}
            following = stage.rest
        return {name: results[name] for name in entry.graph.outputs}

    async def _make(self, entry: StagedGraph, known: Known) -> Stage:
        async with self._lock_of(entry):
            # Another item may have made it while this one waited for the lock.
            stage = entry.find(known)
            if stage is None:
                stage = await self._on_thread(partial(entry.make, known))
                entry.keep(known, stage)
            return stage

    async def _iterate(self, node: Node, body: StagedGraph, known: Known) -> Known:
        run = self._loop if node.op == "Loop" else self._scan
        values = [known[name] if name else None for name in node.inputs]
        try:
            results = await run(node, body, values)
        except ShapeError as error:
            error.at = error.at or str(node)
            raise
        asked = zip(node.outputs, results, strict=False)  # the last ones may be left out
        return {name: value for name, value in asked if name}

    async def _loop(
        self, node: Node, body: StagedGraph, values: Sequence[Array | None]
    ) -> Sequence[Array]:
        trips, condition = [*values, None, None][:2]  # those at the end may be left out
        end = len(values) - node.attributes["captured"]
        states, captured = list(values[2:end]), values[end:]
        rows: list[Sequence[Array]] = []
        goes_on = condition is None or bool(_get_only(condition))
        while goes_on and (trips is None or len(rows) < _get_only(trips)):
            fed = [np.asarray(len(rows), np.int64), np.asarray(True), *states, *captured]
            going, *results = await self._body(body, fed)
            goes_on = bool(_get_only(going))
            states, stacked = results[: len(states)], results[len(states) :]
            rows.append(stacked)
        head = (np.asarray(0), np.asarray(True))
        columns = _collect_columns(rows, body.graph, [*head, *states, *captured], 1 + len(states))
        return [*map(_require, states), *(_stack(column, 0) for column in columns)]

    async def _scan(
        self, node: Node, body: StagedGraph, values: Sequence[Array | None]
    ) -> Sequence[Array]:
        given, attributes = list(map(_require, values)), node.attributes
        end = len(given) - attributes["captured"]
        captured, n_scanned = given[end:], attributes["num_scan_inputs"]
        states, scanned = given[: end - n_scanned], given[end - n_scanned : end]
        moved = [
            np.moveaxis(array, axis, 0)[:: -1 if backward else 1]
            for array, axis, backward in zip(
                scanned,
                _pad(attributes["scan_input_axes"], n_scanned),
                _pad(attributes["scan_input_directions"], n_scanned),
                strict=True,
            )
        ]
        _check_lengths(moved)
        rows: list[Sequence[Array]] = []
        for slices in zip(*moved, strict=True):
            results = await self._body(body, [*states, *slices, *captured])
            states, stacked = results[: len(states)], results[len(states) :]
            rows.append(stacked)
        empty = [np.empty(array.shape[1:], array.dtype) for array in moved]
        columns = _collect_columns(rows, body.graph, [*states, *empty, *captured], len(states))
        axes = _pad(attributes["scan_output_axes"], len(columns))
        backwards = _pad(attributes["scan_output_directions"], len(columns))
        return [*states, *map(_stack, columns, axes, backwards)]

    async def _body(self, body: StagedGraph, values: Sequence[Any]) -> list[Array]:
        await trio.lowlevel.checkpoint()  # a body that is all constants runs nothing
        names = body.graph.inputs
        fed = {name: np.asarray(value) for name, value in zip(names, values, strict=True)}
        results = await self.run(body, fed)
        return [results[name] for name in body.graph.outputs]


def own_results(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return `arrays` without other owners; constants, views and repetitions are copied."""
    found: dict[int, Array] = {}
    results = {}
    for name, array in arrays.items():
        shared = id(array) in found or array.base is not None or not array.flags.writeable
        results[name] = np.array(array, order="C") if shared else array
        found[id(array)] = array
    return results


def _get_interface(entry: StagedGraph | None) -> tuple[Sequence[str], Sequence[str]]:
    return ((), ()) if entry is None else (entry.graph.inputs, entry.graph.outputs)


def _collect_columns(
    rows: Sequence[Sequence[Array]], body: Graph, given: Sequence[Array], first: int
) -> list[list[Array] | Array]:
    """Return the columns of `rows`; without rows, empty arrays of the right dtypes.

    These are of the outputs of `body` from `first` on, if it is run on `given`.
    """
    if rows:
        return [list(column) for column in zip(*rows, strict=True)]
    specs = infer_results(body, [spec_of(array) for array in given])[first:]
    return [
        np.empty((0, *(d if isinstance(d, int) else 0 for d in spec.shape or ())), spec.dtype)
        for spec in specs
    ]


def _stack(column: list[Array] | Array, axis: int, backward: int = 0) -> Array:
    if isinstance(column, list):
        _check_stackable(column)
        return np.stack(column[::-1] if backward else column, axis)
    return np.moveaxis(column, 0, normalize_axis(axis, column.ndim))


def _check_lengths(scanned: Sequence[Array]) -> None:
    lengths = dict.fromkeys(map(len, scanned))
    if len(lengths) > 1:
        raise ShapeError(
            f"scanned inputs have lengths {' and '.join(map(str, lengths))}",
            fix="scan tensors of one length",
        )


def _check_stackable(rows: Sequence[Array]) -> None:
    shapes = dict.fromkeys(row.shape for row in rows)
    if len(shapes) > 1:
        first, other, *_ = shapes
        raise ShapeError(
            f"iterations put out shapes {list(first)} and {list(other)}, which do not stack",
            fix="let each iteration put out the same shape; only states may change theirs",
        )


def _pad(values: Sequence[int] | None, count: int) -> Sequence[int]:
    return (*(values or ()), *(0,) * (count - len(values or ())))


def _get_only(array: Array) -> Any:
    if array.size != 1:
        raise ShapeError(
            f"a condition or trip count has shape {list(array.shape)}, not one value",
            fix="reduce it to one",
        )
    return array.item()


def _require(value: Array | None) -> Array:
    assert value is not None, "a state has a value"
    return value
