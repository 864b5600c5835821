"""Runs items through a graph, for its outputs or for the ranges of inner tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from ...devices.device import Device
from ...graph.core.ir import Graph
from ...graph.values.tensor import Array
from ..bridges.blocking_session import BlockingSession
from ..planner.api import plan
from .ranges import METHODS, Method, Range

Devices: TypeAlias = str | Device | Iterable[str | Device]
Items: TypeAlias = Sequence[Mapping[str, Any]]


def iterate_results(graph: Graph, items: Items, devices: Devices) -> Iterator[Mapping[str, Array]]:
    with BlockingSession(plan(graph, devices)) as session:
        for item in items:
            yield session.run(item)


def observe(
    graph: Graph, tensors: Sequence[str], items: Items, devices: Devices, method: Method
) -> dict[str, Range]:
    observers = {name: METHODS[method]() for name in tensors}
    fed = [name for name in tensors if name in graph.inputs]
    computed = [name for name in tensors if name not in fed and name not in graph.outputs]
    tapped = replace(graph, outputs=(*graph.outputs, *computed))
    for item, outputs in zip(items, iterate_results(tapped, items, devices), strict=True):
        for name, observer in observers.items():
            observer.see(np.asarray(item[name]) if name in fed else outputs[name])
    return {name: observer.range() for name, observer in observers.items()}
