"""Sources joined by time or key into one with the inputs of all."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import nullcontext
from typing import Any, TypeAlias

import trio

from ...errors import SourceError
from .as_of_join import AsOfJoin, By, JoinStatus, Missing
from .stamped import AsyncClosableSource, ClosableSource, Stamped, is_stamp

Pair: TypeAlias = tuple[float, Any]
"""A stamp and a value: a `Stamped`, or a plain tuple."""

StampedSource: TypeAlias = Iterable[Pair] | AsyncIterable[Pair]


def join(
    sources: Mapping[str, StampedSource],
    *,
    by: By = "time",
    tolerance_s: float | None = None,
    lateness_s: float | None = None,
    lateness: int | None = None,
    missing: Missing = "drop",
    max_waiting: int = 1024,
) -> Join:
    """Join several sources into one for a stream: each item of the first with its partners.

    Partners are the items of the other sources that are nearest in time, or have the same key. An
    item may be the partner of several items if its source has the lower rate. The matches depend on
    the order within each source alone, not on which source is faster.

    Parameters
    ----------
    sources : Mapping of str to iterable or async iterable of Stamped
        For each input its source of stamped values; the others are matched to the first source. A
        value that is itself a Mapping feeds the inputs that it names.
    by : {"time", "key"}, default "time"
        Whether stamps are seconds on a common clock, or increasing whole numbers, such as frame
        numbers.
    tolerance_s : float, optional
        For times, where it is required: the largest distance between partners.
    lateness_s, lateness : float or int, optional
        How many seconds, or how many key values, an item may be after the furthest earlier item of
        its source; None is 0. Later items are dropped.
    missing : {"drop", "previous", "raise"}
        How to handle an item without a partner: drop it, use the latest earlier partner if there is
        one, or raise an error.
    max_waiting : int, default 1024
        The largest number of items of a source that are held; more raise an error.

    Returns
    -------
    Join
        An async iterator, and also a plain one if all sources are plain iterables. It yields a
        `Stamped` mapping of input name to value, with the stamp of the first source's item, in the
        order of stamps.

    Raises
    ------
    SourceError
        If the arguments do not fit together; while iterating, if an item has no stamp, too many
        items wait, or a partner is missing with ``missing="raise"``.

    Examples
    --------
    >>> import plait as pl
    >>> left = [pl.Stamped(0.00, "l0"), pl.Stamped(0.04, "l1"), pl.Stamped(0.08, "l2")]
    >>> right = [pl.Stamped(0.01, "r0"), pl.Stamped(0.09, "r2")]
    >>> joined = pl.join({"left": left, "right": right}, tolerance_s=0.02)
    >>> [pair.value for pair in joined]
    [{'left': 'l0', 'right': 'r0'}, {'left': 'l2', 'right': 'r2'}]
    >>> joined.status().missing
    {'right': 1}
    """
    _check_sources(sources)
    _check_choice("by", by, ("time", "key"))
    _check_choice("missing", missing, ("drop", "previous", "raise"))
    foreign: dict[str, object] = {"lateness": lateness}
    if by == "key":
        foreign = {"tolerance_s": tolerance_s, "lateness_s": lateness_s}
    for name, given in foreign.items():
        if given is not None:
            raise SourceError(f"{name} is {given!r} in a join by {by}", fix=f"leave {name}= out")
    if by == "time" and tolerance_s is None:
        raise SourceError(
            "it is not said how far from each other partners may be",
            fix="tolerance_s=, half the time between two items for instance; or by='key'",
        )
    tolerance, behind = tolerance_s or 0, (lateness_s if by == "time" else lateness) or 0
    for value in (tolerance, behind):
        if not is_stamp(value, by) or value < 0:
            number = "seconds" if by == "time" else "a whole number"
            raise SourceError(
                f"{value!r} is not a tolerance or lateness", fix=f"use {number}, 0 or more"
            )
    if type(max_waiting) is not int or max_waiting < 1:
        raise SourceError(f"max_waiting is {max_waiting!r}", fix="use a whole number from 1 on")
    matching = AsOfJoin([*sources], by, tolerance, behind, missing, max_waiting)
    return Join(sources, matching)


class Join(ClosableSource, AsyncClosableSource):
    """Joined sources, made by `join`: iterate once; closed like a generator.

    Under trio and asyncio it is an async iterator, which concurrently reads the sources that are
    needed to match the next item, and no others. If no source is async, it is also a plain
    iterator. Closing it closes those of its sources that are generators.

    Examples
    --------
    >>> import plait as pl
    >>> frames = [pl.Stamped(0.00, "f0"), pl.Stamped(0.04, "f1")]
    >>> sounds = [pl.Stamped(0.01, "s0"), pl.Stamped(0.05, "s1")]
    >>> joined = pl.join({"frame": frames, "sound": sounds}, tolerance_s=0.02)
    >>> for one in joined:
    ...     print(one.stamp, one.value)
    0.0 {'frame': 'f0', 'sound': 's0'}
    0.04 {'frame': 'f1', 'sound': 's1'}
    """

    def __init__(self, sources: Mapping[str, StampedSource], matching: AsOfJoin) -> None:
        self._sources = sources
        self._matching = matching
        self._iterators: dict[str, Iterator[Pair] | AsyncIterator[Pair]] = {}
        self._is_over = False

    def status(self) -> JoinStatus:
        """Return the counts of matched, missing, late and unused items so far."""
        return self._matching.status()

    def send(self, value: None, /) -> Stamped:
        """Return the next item, as `next` does; `value` is None."""
        try:
            while not self._is_over and (found := self._matching.pop()) is None:
                lacking = self._matching.lacking()
                # Each is needed: none is asked for an item that could have waited.
                for name in lacking:
                    self._pull_now(name, self._plain(name))
                self._is_over = not lacking
        except BaseException:
            self.close()
            raise
        if self._is_over:
            self.close()
            raise StopIteration
        assert found is not None
        return found

    def close(self) -> None:
        """Stop, and close the sources that are not async generators."""
        self._is_over = True
        _close_all([*self._sources.values(), *self._iterators.values()])

    async def asend(self, value: None, /) -> Stamped:
        """Return the next item, as `anext` does; `value` is None."""
        try:
            while not self._is_over and (found := self._matching.pop()) is None:
                lacking = self._matching.lacking()
                await self._pull_all(lacking)
                self._is_over = not lacking
        except BaseException:
            is_trio = trio.lowlevel.in_trio_run()
            # Cancelled or not, sources are closed: they may hold files.
            with trio.CancelScope(shield=True) if is_trio else nullcontext():
                await self.aclose()
            raise
        if self._is_over:
            await self.aclose()
            raise StopAsyncIteration
        assert found is not None
        return found

    async def aclose(self) -> None:
        self._is_over = True
        try:
            # Both: an iterable may have a generator as its iterator.
            for source in (*self._sources.values(), *self._iterators.values()):
                if isinstance(source, AsyncGenerator | trio.abc.AsyncResource):
                    await source.aclose()
        finally:
            self.close()

    def _plain(self, name: str) -> Iterator[Pair]:
        source = self._sources[name]
        if not isinstance(source, Iterable):
            raise SourceError(
                f"source {name!r} is async, and the join is iterated over by code that is not",
                fix="iterate over it with async for; or pass an iterable",
            )
        if name not in self._iterators:
            self._iterators[name] = iter(source)
        iterator = self._iterators[name]
        assert isinstance(iterator, Iterator)
        return iterator

    def _pull_now(self, name: str, iterator: Iterator[Pair]) -> None:
        try:
            item = next(iterator)
        except StopIteration:
            self._matching.end(name)
        else:
            self._matching.put(name, item)

    async def _pull_all(self, names: list[str]) -> None:
        # The usual case: a task less.
        if len(names) == 1:
            await self._pull(names[0])
            return
        failure: BaseException
        try:
            if trio.lowlevel.in_trio_run():
                async with trio.open_nursery() as nursery:
                    for name in names:
                        nursery.start_soon(self._pull, name)
            else:
                async with asyncio.TaskGroup() as group:
                    for name in names:
                        group.create_task(self._pull(name))
            return
        except BaseExceptionGroup as errors:
            failure = errors.exceptions[0] if len(errors.exceptions) == 1 else errors
        raise failure  # outside of the handler: it keeps its own cause

    async def _pull(self, name: str) -> None:
        source = self._sources[name]
        if not isinstance(source, AsyncIterable):
            self._pull_now(name, self._plain(name))
            return
        if name not in self._iterators:
            self._iterators[name] = aiter(source)
        iterator = self._iterators[name]
        assert isinstance(iterator, AsyncIterator)
        try:
            item = await anext(iterator)
        except StopAsyncIteration:
            self._matching.end(name)
        else:
            self._matching.put(name, item)


def _close_all(sources: list[StampedSource | Iterator[Pair] | AsyncIterator[Pair]]) -> None:
    """Close the sync generators in `sources` and empty that list, even if one fails to close.

    Async generators stay open.
    """
    while sources:
        source = sources.pop()
        if isinstance(source, Generator):
            try:
                source.close()
            finally:
                _close_all(sources)


def _check_sources(sources: object) -> None:
    if not isinstance(sources, Mapping) or len(sources) < 2:
        raise SourceError(
            "a join is of two sources or more, by the names of inputs",
            fix='join({"left": left, "right": right}, tolerance_s=0.01)',
        )
    for name, source in sources.items():
        if not isinstance(source, Iterable | AsyncIterable):
            raise SourceError(
                f"{name!r} is a {type(source).__name__}, from which nothing can be pulled",
                fix="pass an iterable or async iterable of pl.Stamped",
            )


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SourceError(f"{name} is {value!r}", fix=f"use one of {', '.join(choices)}")
