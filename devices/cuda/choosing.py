"""The choice by measured time between cuDNN, cuBLAS and generated kernels.

It applies to convolutions, attention and products of bytes.

They are timed as they run later, as recordings, when a plan is first opened. The results are kept
with the compiled kernels, for this hardware and these versions. So choices, and the last bits of
results, are the same in later processes.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeGuard

import numpy as np

from ...graph.core.ir import Graph, Node
from ...graph.operators.attention import MASK
from ...graph.values.tensor import Array
from ..cache_folder import FIGURES, is_off
from ..constants import ConstantStore
from ..errors import DeviceMemoryError
from ..memory import View
from .attention import StaticAttention
from .convolutions import StaticConvolution
from .cubins import load_or_make
from .cudnn import Cudnn
from .cudnn_graphs import Computable, is_attention_for_cudnn
from .libraries import RefusedError
from .lowering import BY_CUDNN, GENERATED, Choosable, Lowering, Way
from .parts import Part
from .trials import TrialRun, Trials

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


ROUNDED = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-11}
"""Greatest relative change by rounding to the dtype, or to tensor cores' float32."""
ROUNDINGS = 16
"""Roundings that may add up, of either sign: in scores, powers, weights and results."""
SPREAD = 4.0
"""Standard deviation of scores: few keys have most of the weight. So results are as large as
values, and results of other keys or another scale differ by as much."""
PERIOD = 65_521
"""Count of random numbers, which repeat. A prime: rows and heads begin at different ones."""
QUERY, MOST = 0, 1000.0
"""The input that scales scores, and the limit of its factor."""
KINDS_OF_ROWS = 4
"""Kinds of masks: all keys visible, the first hidden, the last hidden, or all hidden."""


def check_agreement(
    trial: TrialRun, attention: StaticAttention, ours: Sequence[Part], theirs: Sequence[Part]
) -> None:
    """Compare two ways to compute `attention`, the only node of `trial`: `ours` and `theirs`.

    A choice by time alone would accept a wrong library: on untested hardware or versions, or with
    masks that it reads differently.

    Raises RefusedError if their results differ by more than rounding, or a library refuses its
    part.
    """
    (node,) = trial.graph.nodes
    (y,) = node.outputs
    for turn in range(1 if attention.mask is None else KINDS_OF_ROWS):
        for index, name in enumerate(node.inputs):
            if name in trial.views:  # constants keep their values
                trial.write(name, _generate_input(attention, index, trial.views[name], turn))
        results = []
        for parts in (ours, theirs):
            trial.write(y, np.full_like(trial.read(y), np.nan))
            trial.run(parts)
            results.append(trial.read(y).astype(np.float32))
        expected, found = results
        near = ROUNDINGS * ROUNDED[attention.dtype] * np.abs(expected).max()
        if not (np.abs(expected - found) <= near).all():  # False for NaN
            raise RefusedError(f"results of {attention} are not those of the generated kernel")


def _generate_input(attention: StaticAttention, index: int, view: View, turn: int) -> Array:
    """Return random numbers, like `view`, for input `index` of `attention`.

    A mask hides other keys in each `turn`.
    """
    numbers = np.random.default_rng(index).standard_normal(PERIOD).astype(np.float32)
    if index == QUERY:
        strength = abs(attention.scale) * math.sqrt(attention.shape.depth)
        numbers *= min(SPREAD / max(strength, 1 / MOST), MOST)
    made = np.resize(numbers, view.spec.static_shape)
    if index == MASK:
        rows = made.reshape(-1, made.shape[-1])
        few, kinds = rows.shape[1] // 4, (np.arange(len(rows)) + turn) % KINDS_OF_ROWS
        rows[kinds == 1, :-few] = rows[kinds == 2, few:] = rows[kinds == 3] = -np.inf
    return made.astype(view.spec.dtype)
