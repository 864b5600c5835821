"""The fastest device of a subgraph, as measured on real items, kept for later plans and processes.

An answer is for a subgraph with its shapes, the number of cores, the versions of the runtimes, and
the code of plait. A plan takes all answers when it is requested: its sessions never change devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from typing import NamedTuple

from ...devices.automatic import RUNTIMES
from ...devices.cache_folder import FIGURES, hash_sources, is_off, keep_text, read_texts
from ...devices.device import Device
from ...devices.host import count_cores
from ...graph.core.ir import Graph
from .signature import make_digest


class DeviceChoices(NamedTuple):
    """Competing kinds of devices with their software; the first is the one by built-in figures."""

    software: Mapping[str, str]
    answers: Mapping[str, str]
    """The fastest kind for each key of a subgraph."""
    measures: bool
    """True if sessions measure subgraphs without an answer."""

    def key(self, graph: Graph) -> str:
        here = make_digest(graph), sorted(self.software.items()), count_cores()
        return sha256(repr((here, hash_sources(*RUNTIMES))).encode()).hexdigest()


def find_choices(
    devices: Mapping[str, Device], *, uses_answers: bool, measures: bool
) -> DeviceChoices | None:
    """Return the choice among the `devices` that compete, or None if only one does.

    `uses_answers` includes earlier answers; `measures` says whether figures may be measured.
    """
    software = {name: devices[name].capabilities.software for name in RUNTIMES if name in devices}
    answers = {**read_answers()} if uses_answers else {}
    found = DeviceChoices(software, answers, measures and not is_off(FIGURES))
    return found if len(software) > 1 else None


def note_answer(key: str, kind: str) -> None:
    read_answers()[key] = kind
    keep_text("choices", key, kind)


@cache
def read_answers() -> dict[str, str]:
    """Return all answers, with those of earlier processes; damaged ones name no device."""
    return read_texts("choices")
