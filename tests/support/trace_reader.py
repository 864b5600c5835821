"""A reader of traces, written from the Trace Event Format's description alone.

It takes the events one by one, in the order of their times, as a viewer does, and refuses what a
viewer would draw wrongly or not at all.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

KNOWN = {"X", "b", "e", "s", "f", "C", "M"}


@dataclass
class Slice:
    """A bar on a track."""

    name: str
    category: str
    start: float
    end: float
    args: dict[str, Any]


@dataclass
class Trace:
    """What a viewer would show.

    Attributes
    ----------
    tracks : dict of str to list of Slice
        Bars by the name of their thread.
    bars : dict of str to list of Slice
        Nested bars that belong to no thread, by category and id; outer ones first.
    arrows : list of (Slice, Slice)
    counters : dict of str to list of (float, dict)
    """

    tracks: dict[str, list[Slice]] = field(default_factory=dict)
    bars: dict[str, list[Slice]] = field(default_factory=dict)
    arrows: list[tuple[Slice, Slice]] = field(default_factory=list)
    counters: dict[str, list[tuple[float, dict[str, float]]]] = field(default_factory=dict)


def read(path: Path) -> Trace:
    """Read a trace; raise ValueError for what breaks the format."""
    document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    events = document["traceEvents"] if isinstance(document, dict) else document
    _require(isinstance(events, list), "no list of events")
    _require(document.get("displayTimeUnit", "ms") in ("ms", "ns"), "displayTimeUnit")
    for event in events:
        _check(event)
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == "thread_name"
    }
    trace = Trace()
    _read_slices(events, names, trace)
    _read_arrows(events, names, trace)
    _read_bars(events, trace)
    for event in _of(events, "C"):
        trace.counters.setdefault(event["name"], []).append((event["ts"], event["args"]))
    return trace


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _require(holds: bool, what: object) -> None:
    if not holds:
        raise ValueError(f"broken trace: {what}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check(event: dict[str, Any]) -> None:
    """Check what every event, or every one of its phase, must have."""
    phase = event.get("ph")
    _require(phase in KNOWN, event)
    _require(isinstance(event.get("name"), str), event)
    _require(isinstance(event.get("pid"), int), event)
    if phase == "M":
        return
    _require(_is_number(event.get("ts")) and event["ts"] >= 0, event)
    if phase != "C":
        _require(isinstance(event.get("tid"), int), event)
        _require(bool(event.get("cat")), event)
    if phase == "X":
        _require(_is_number(event.get("dur")) and event["dur"] >= 0, event)
    if phase in ("b", "e", "s", "f"):
        _require("id" in event, event)
    if phase == "C":
        values = event.get("args", {}).values()
        _require(bool(values) and all(map(_is_number, values)), event)


def _of(events: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    return sorted((e for e in events if e["ph"] == phase), key=lambda e: float(e["ts"]))


def _read_slices(
    events: list[dict[str, Any]], names: dict[tuple[int, int], str], trace: Trace
) -> None:
    for event in _of(events, "X"):
        thread = event["pid"], event["tid"]
        _require(thread in names, f"track without a name: {event}")
        end = event["ts"] + event["dur"]
        made = Slice(event["name"], event["cat"], event["ts"], end, event.get("args", {}))
        trace.tracks.setdefault(names[thread], []).append(made)
    for track in trace.tracks.values():
        for before, after in pairwise(track):
            # Slices of a thread nest or follow each other; 1 ns for rounding.
            nests = after.end <= before.end + 1e-3
            _require(nests or after.start >= before.end - 1e-3, (before, after))


def _read_arrows(
    events: list[dict[str, Any]], names: dict[tuple[int, int], str], trace: Trace
) -> None:
    starts = {(e["cat"], e["name"], e["id"]): e for e in _of(events, "s")}
    ends = {(e["cat"], e["name"], e["id"]): e for e in _of(events, "f")}
    _require(starts.keys() == ends.keys(), "an arrow without a beginning or an end")
    _require(len(starts) == len(_of(events, "s")), "two arrows of one id")
    for key, start in starts.items():
        end = ends[key]
        _require(end["ts"] >= start["ts"], f"an arrow into the past: {start}, {end}")
        _require(end.get("bp") == "e", "an arrow that does not end at the slice around it")
        source, target = (_around(event, names, trace) for event in (start, end))
        trace.arrows.append((source, target))


def _around(event: dict[str, Any], names: dict[tuple[int, int], str], trace: Trace) -> Slice:
    """Return the slice that an end of an arrow is bound to."""
    track = trace.tracks.get(names.get((event["pid"], event["tid"]), ""), [])
    found = [one for one in track if one.start - 1e-3 <= event["ts"] <= one.end + 1e-3]
    _require(bool(found), f"an arrow that ends in the void: {event}")
    nearest = lambda one: min(abs(one.start - event["ts"]), abs(one.end - event["ts"]))  # noqa: E731
    return min(found, key=nearest)


def _read_bars(events: list[dict[str, Any]], trace: Trace) -> None:
    open_bars: dict[str, list[Slice]] = {}
    mixed = [e for e in events if e["ph"] in ("b", "e")]
    for event in mixed:  # within one id in the order of the file, as viewers take equal times
        key = f"{event['cat']} {event['id']}"
        stack = open_bars.setdefault(key, [])
        if event["ph"] == "b":
            _require(not stack or event["ts"] >= stack[-1].start, event)
            bar = Slice(event["name"], event["cat"], event["ts"], -1, event.get("args", {}))
            stack.append(bar)
            trace.bars.setdefault(key, []).append(bar)
        else:
            _require(
                bool(stack) and stack[-1].name == event["name"], f"ends what is not open: {event}"
            )
            stack.pop().end = event["ts"]
    _require(not any(open_bars.values()), "a bar that does not end")
