"""Files of costs: JSON, read strictly.

{"format": "plait costs", "version": 1,
 "devices": {"cpu": {"flops_per_s": 3e10, "launch_s": 3e-6, ...}},
 "memories": {"worker:0": "shared"},
 "links": {"host": {"cuda:0": {"latency_s": 2e-5, "bytes_per_s": 1e10}}},
 "nodes": {"cpu": [{"op": "Relu", "attributes": {}, "inputs": ["float32[8]"],
                    "outputs": ["float32[8]"], "flops": 8, "nbytes": 64, "seconds": 4e-6,
                    "least_s": 3.8e-6, "mad_s": 1e-7, "runs": 50, "is_share": false}]},
 "programs": {"ort": {"<digest>": {"seconds": 0.0031, "least_s": 0.003, "mad_s": 4e-5,
                                  "runs": 50}}},
 "hops": {"loop": {"cpu": 3e-5}, "cpu": {"loop": 4e-5, "worker:0": 1.1e-4}},
 "loop": {"feed_s": 2e-5, "land_s": 8e-5, "contention": 0.05}}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from ...devices.errors import DeviceError
from ...devices.model import DeviceModel
from ...graph.core.operator import Cost
from ...graph.formats.files import open_file, replace_file
from ...graph.formats.sources import decode_json
from ...graph.values.errors import ParseError
from ..errors import PlanError
from .figures import Figures, Link, Loop, Measured, Timing
from .signature import Signature, to_text

FORMAT, VERSION = "plait costs", 1

MOST_BYTES = 1 << 28
MOST_ENTRIES = 1_000_000
MOST_SPECS = 10_000
LONGEST_NAME = 4096

_FIX = "write it with `plait profile --costs` or `plait devices --measure`"
_SECTIONS = ("devices", "memories", "links", "nodes", "programs", "hops", "loop")
_NODE = frozenset(
    {"op", "attributes", "inputs", "outputs", *Cost._fields, *Timing._fields, "is_share"}
)


def read(path: Path) -> Figures:
    with open_file(path) as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ParseError(
            f"the file has more than {MOST_BYTES} bytes", at=str(path), fix="keep it smaller"
        )
    return decode(data, str(path))


def decode(data: bytes, at: str) -> Figures:
    return _Reader(at).figures(decode_json(lambda: data, at, ParseError, _FIX))


def write(figures: Figures, path: Path) -> None:
    text = json.dumps(encode(figures), indent=1)
    replace_file(path, [f"{text}\n".encode()], PlanError)


def encode(figures: Figures) -> dict[str, Any]:
    links: dict[str, dict[str, Any]] = {}
    for (source, target), link in figures.links.items():
        links.setdefault(source, {})[target] = link._asdict()
    hops: dict[str, dict[str, float]] = {}
    for (source, target), seconds in figures.hops.items():
        hops.setdefault(source, {})[target] = seconds
    return {
        "format": FORMAT,
        "version": VERSION,
        "devices": {name: model.to_dict() for name, model in figures.models.items()},
        "memories": dict(figures.memories),
        "links": links,
        "nodes": {
            name: [_encode_entry(key, measured) for key, measured in nodes.items()]
            for name, nodes in figures.nodes.items()
        },
        "programs": {
            name: {digest: timing._asdict() for digest, timing in programs.items()}
            for name, programs in figures.programs.items()
        },
        "hops": hops,
        "loop": {} if figures.loop is None else figures.loop._asdict(),
    }


def _encode_entry(key: Signature, measured: Measured) -> dict[str, Any]:
    return {
        **key._asdict(),
        # An object rather than a string of JSON: people read these files.
        "attributes": json.loads(key.attributes),
        **measured.cost._asdict(),
        **measured.timing._asdict(),
        "is_share": measured.is_share,
    }


V = TypeVar("V")
Read: TypeAlias = Callable[[object, str], V]
"""Reads a value at a place in the file."""


class _Reader:
    """Checks values; errors name the file and the place in it."""

    def __init__(self, at: str) -> None:
        self._file = at

    def figures(self, value: object) -> Figures:
        top = self._object(value, "the file")
        if top.get("format") != FORMAT:
            raise self._error("", f"this is not in the format {FORMAT!r}")
        if top.get("version") != VERSION:
            raise self._error("", f"this has version {top.get('version')!r}, not {VERSION}")
        self._only(top, {"format", "version", *_SECTIONS}, "the file")
        parts = {name: self._object(top.get(name, {}), name) for name in _SECTIONS}
        return Figures(
            self._mapping(parts["devices"], "devices", self._model),
            self._mapping(parts["memories"], "memories", self._text),
            self._pairs(parts["links"], "links", self._link),
            self._mapping(parts["nodes"], "nodes", self._nodes),
            self._mapping(parts["programs"], "programs", self._programs),
            self._pairs(parts["hops"], "hops", self._number),
            self._loop(parts["loop"]) if parts["loop"] else None,
        )

    def _mapping(self, value: object, where: str, read: Read[V]) -> dict[str, V]:
        named = self._object(value, where).items()
        return {name: read(one, f"{where}, {name!r}") for name, one in named}

    def _pairs(self, value: object, where: str, read: Read[V]) -> dict[tuple[str, str], V]:
        return {
            (source, target): read(one, f"{where}, {source!r} to {target!r}")
            for source, targets in self._object(value, where).items()
            for target, one in self._object(targets, f"{where}, {source!r}").items()
        }

    def _loop(self, loop: dict[str, Any]) -> Loop:
        self._only(loop, set(Loop._fields), "loop")
        return Loop(*(self._number(loop.get(key), f"loop, {key}") for key in Loop._fields))

    def _model(self, value: object, where: str) -> DeviceModel:
        try:
            return DeviceModel.from_dict(value)
        except DeviceError as error:
            raise self._error(where, error.what, error.fix) from None

    def _link(self, value: object, where: str) -> Link:
        link = self._object(value, where)
        self._only(link, set(Link._fields), where)
        latency, speed = (self._number(link.get(key), f"{where}, {key}") for key in Link._fields)
        if not speed > 0:
            raise self._error(where, "has no speed above 0")
        return Link(latency, speed)

    def _nodes(self, value: object, where: str) -> dict[Signature, Measured]:
        found: dict[Signature, Measured] = {}
        for index, entry in enumerate(self._list(value, where, MOST_ENTRIES)):
            here = f"{where}, number {index}"
            key, measured = self._node(self._object(entry, here), here)
            # Otherwise the order would decide between two times.
            if key in found:
                raise self._error(here, "repeats an earlier entry")
            found[key] = measured
        return found

    def _node(self, entry: Mapping[str, Any], where: str) -> tuple[Signature, Measured]:
        self._only(entry, _NODE, where)
        attributes = self._object(entry.get("attributes"), f"{where}, attributes")
        inputs, outputs = (
            tuple(
                self._text(spec, f"{where}, {name}")
                for spec in self._list(entry.get(name), f"{where}, {name}", MOST_SPECS)
            )
            for name in ("inputs", "outputs")
        )
        op = self._text(entry.get("op"), f"{where}, op")
        flops, nbytes = (self._whole(entry.get(key), f"{where}, {key}") for key in Cost._fields)
        is_share = entry.get("is_share", False)
        if not isinstance(is_share, bool):
            raise self._error(f"{where}, is_share", f"should be true or false, not {is_share!r}")
        # In canonical form, for look-ups.
        key = Signature(op, to_text(attributes), inputs, outputs)
        return key, Measured(self._timing(entry, where), Cost(flops, nbytes), is_share)

    def _programs(self, value: object, where: str) -> dict[str, Timing]:
        return self._mapping(value, where, self._program)

    def _program(self, value: object, where: str) -> Timing:
        if not isinstance(value, dict):  # older files have no deviation
            return Timing(self._number(value, f"{where}, seconds"))
        self._only(value, Timing._fields, where)
        return self._timing(value, where)

    def _timing(self, entry: Mapping[str, Any], where: str) -> Timing:
        seconds = self._number(entry.get("seconds"), f"{where}, seconds")
        least_s = entry.get("least_s")
        return Timing(
            seconds,
            None if least_s is None else self._number(least_s, f"{where}, least_s"),
            self._number(entry.get("mad_s", 0.0), f"{where}, mad_s"),
            self._whole(entry.get("runs", 1), f"{where}, runs"),
        )

    def _object(self, value: object, where: str) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > MOST_ENTRIES:
            raise self._error(where, f"should be an object, not {_shorten(value)}")
        return value

    def _list(self, value: object, where: str, most: int) -> list[Any]:
        if not isinstance(value, list) or len(value) > most:
            raise self._error(where, f"should be a list of at most {most}, not {_shorten(value)}")
        return value

    def _text(self, value: object, where: str) -> str:
        if not isinstance(value, str) or len(value) > LONGEST_NAME:
            raise self._error(where, f"should be text, not {_shorten(value)}")
        return value

    def _number(self, value: object, where: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_sane(value):
            raise self._error(where, f"should be a number, 0 or more, not {_shorten(value)}")
        return float(value)

    def _whole(self, value: object, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not _is_sane(value):
            raise self._error(where, f"should be a whole number, 0 or more, not {_shorten(value)}")
        return value

    def _only(self, value: Mapping[str, object], names: Iterable[str], where: str) -> None:
        for name in value:
            if name not in names:
                raise self._error(where, f"has {name!r}, which is unknown")

    def _error(self, where: str, what: str, fix: str | None = None) -> ParseError:
        what = f"{where}: {what}" if where else what
        return ParseError(what, at=self._file, fix=fix or _FIX)


def _is_sane(value: int | float) -> bool:
    return 0 <= value < 1 << 80


def _shorten(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
