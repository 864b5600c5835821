"""The fastest device of a subgraph, as measured on real items, kept for later plans and processes.

An answer is for a subgraph with its shapes, the number of cores, the versions of the runtimes, and
the code of plait. A plan takes all answers when it is requested: its sessions never change devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from typing import NamedTuple

from ...devices.automatic import FROZEN, RUNTIMES
from ...devices.cache_folder import FIGURES, hash_sources, is_off, keep_text, read_texts
from ...devices.device import Device
from ...devices.host import count_cores
from ...graph.core.ir import Graph
from .signature import make_digest

KEPT = "choices"


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


def find_choices(word: str, devices: Mapping[str, Device]) -> DeviceChoices | None:
    """Return the answers for a plan of ``"auto"`` or ``"frozen"``; None without competitors."""
    software = {name: devices[name].capabilities.software for name in RUNTIMES if name in devices}
    measures = word != FROZEN and not is_off(FIGURES)
    return DeviceChoices(software, {**read_answers()}, measures) if len(software) > 1 else None


def note_answer(key: str, kind: str) -> None:
    read_answers()[key] = kind
    keep_text(KEPT, key, kind)


@cache
def read_answers() -> dict[str, str]:
    """Return all answers, with those of earlier processes; damaged ones name no device."""
    return read_texts(KEPT)
