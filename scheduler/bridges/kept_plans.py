"""Plans that are kept from one call of `run` to the next."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from ...devices.device import Device
from ...graph.ir import Graph
from ...graph.registrations import registrations
from ..planner.api import plan
from ..plans.plan import Plan
from ..plans.request import Pins

MOST_PLANS = 4
MOST_NBYTES = 64 << 20
"""Graphs with more bytes of constants are planned each time: nothing of them is held on to."""

_Key: TypeAlias = tuple[Any, ...]


class _Kept(NamedTuple):
    graph: Graph  # so that nothing else has its id
    plan: Plan
    registrations: int


class KeptPlans:
    """The plans that were asked for last, by the identity of their graphs; for any thread."""

    def __init__(self) -> None:
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._lock = threading.Lock()

    def find(
        self,
        graph: Graph,
        devices: str | Device | Iterable[str | Device],
        pin: Pins | None,
        bounds: Mapping[str, int | tuple[int, int]] | None = None,
    ) -> Plan:
        """Return the plan of a graph, made anew if something was registered since.

        Raises
        ------
        PlaitError
            Whatever planning raises.
        """
        if isinstance(devices, Iterable) and not isinstance(devices, str):
            devices = tuple(devices)
        try:
            decided = (None if one is None else tuple(one.items()) for one in (pin, bounds))
            key: _Key = id(graph), devices, *decided
            hash(key)
            keeps = _nbytes(graph) <= MOST_NBYTES
        except (AttributeError, TypeError):  # planning tells what is wrong with them
            keeps = False
        if not keeps:
            return plan(graph, devices, pin=pin, bounds=bounds)
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and kept.registrations == registrations():
                self._kept.move_to_end(key)
                return kept.plan
        made = plan(graph, devices, pin=pin, bounds=bounds)
        with self._lock:
            self._kept[key] = _Kept(graph, made, registrations())
            self._kept.move_to_end(key)
            if len(self._kept) > MOST_PLANS:
                self._kept.popitem(last=False)
        return made


def _nbytes(graph: Graph) -> int:
    return sum(constant.nbytes for constant in graph.constants.values())
