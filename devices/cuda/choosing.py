"""The choice by measured time between cuDNN, cuBLAS and generated kernels.

It applies to convolutions, attention and products of bytes.

They are timed as they run later, as recordings, when a plan is first opened. The results are kept
with the compiled kernels, for this hardware and these versions. So choices, and the last bits of
results, are the same in later processes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeGuard

from ...graph.core.ir import Graph, Node
from ..cache_folder import FIGURES, is_off
from ..constants import ConstantStore
from ..errors import DeviceMemoryError
from ..memory import View
from .agreement import check_agreement
from .attention import StaticAttention
from .convolutions import StaticConvolution
from .cubins import load_or_make
from .cudnn import Cudnn
from .cudnn_graphs import Computable, is_attention_for_cudnn
from .libraries import RefusedError
from .lowering import BY_CUDNN, GENERATED, Choosable, Lowering, Way
from .trials import Trials

MOST_ENGINES = 3
"""Limit of cuDNN's engines to try: on an H200 its first guess was within 4 % of the best of six
(2026-11-26), which may differ elsewhere."""

WORTH_MEASURING = 200_000_000
"""Fewest operations of a convolution or product that is timed. With 5 million instead, PP-OCRv4
detection changed by less than 4 % in float32, TF32 and float16, and opening took 3 to 9 s longer
(H200, 2026-11-28)."""


@dataclass(slots=True, eq=False)
class Chooser:
    """Chooses for a lowering, once for equal nodes; times depend on `versions`."""

    _lowering: Lowering
    _cudnn: Cudnn | None
    _trials: Trials
    _versions: str
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Concurrent measurements would disturb each other."""

    def choose(self, graph: Graph, constants: ConstantStore, views: Mapping[str, View]) -> None:
        """Choose for the nodes of the static `graph`, unless measuring is off.

        `constants` and `views` have its tensors.
        """
        if is_off(FIGURES):
            return
        with self._lock:
            for node in graph.nodes:
                asked = node, graph.call(node), graph.output_specs(node)
                found = self._lowering.undecided(*asked)
                if found is None:
                    continue
                way, *others = *self._lowering.others(*asked), BY_CUDNN
                if _is_worth_measuring(found):
                    measure = partial(self._measure, found, node, graph, constants, views)
                    try:
                        stored = load_or_make(f"{self._versions}: {found}", measure).decode()
                        library, engine = stored.split()
                        way = Way(library, int(engine))
                    except DeviceMemoryError:  # the generated kernel needs the least
                        way = GENERATED if GENERATED in others else way
                self._lowering.choose(found, way)

    def _measure(
        self,
        found: Choosable,
        node: Node,
        graph: Graph,
        constants: ConstantStore,
        views: Mapping[str, View],
    ) -> bytes:
        alone = graph.extract([node], node.name)
        spent: dict[Way, float] = {}
        for way in self._ways(found, node, graph):
            with suppress(RefusedError):
                spent[way] = self._time(found, way, alone, constants, views)
        library, engine = min(spent, key=spent.__getitem__, default=GENERATED)
        return f"{library} {engine}".encode()

    def _time(
        self,
        found: Choosable,
        way: Way,
        graph: Graph,
        constants: ConstantStore,
        views: Mapping[str, View],
    ) -> float:
        """Return the time of `way` for `found`, the node of `graph`, or raise RefusedError.

        Its tensors are in `views`; those placed by `constants` are freed then.
        """
        lowering = self._lowering.choosing(found, way)
        arrays, _held = constants.place(lowering.constants(graph))
        with self._trials.of(graph, lowering, arrays, views) as trial, trial.refusals():
            parts = lowering.parts(graph, trial.views)
            if way.library == BY_CUDNN.library and isinstance(found, StaticAttention):
                ours = self._lowering.choosing(found, GENERATED).parts(graph, trial.views)
                check_agreement(trial, found, ours, parts)
            return trial.time(parts)

    def _ways(self, found: Choosable, node: Node, graph: Graph) -> tuple[Way, ...]:
        others = self._lowering.others(node, graph.call(node), graph.output_specs(node))
        if self._cudnn is None or not _is_for_cudnn(found):
            return others
        engines = min(self._cudnn.count(found), MOST_ENGINES)
        return (*others, *(Way("cudnn", engine) for engine in range(engines)))


def _is_worth_measuring(found: Choosable) -> bool:
    return isinstance(found, StaticAttention) or found.operations >= WORTH_MEASURING


def _is_for_cudnn(found: Choosable) -> TypeGuard[Computable]:
    if isinstance(found, StaticAttention):
        return is_attention_for_cudnn(found)
    return isinstance(found, StaticConvolution)
