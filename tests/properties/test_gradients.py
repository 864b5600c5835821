"""The gradient of any node is what differences say, in float64.

The nodes are those of tests/support/node_strategies, with floats where an operator has its slopes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import plait as pl
import pytest
from finite_differences import Differences, differentiated
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from node_strategies.catalogue import STRATEGIES
from node_strategies.drawing import Draw, Shape
from plait.graph.core.operator import find_operator
from plait.graph.core.traits import FLAT
from plait.graph.gradients.registry import differentiable
from single_node import AnyArray

EXAMPLES = int(os.environ.get("PLAIT_GRADIENT_EXAMPLES", "4"))
UNHURRIED = (HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large)

Values = Callable[[np.random.Generator, Shape], AnyArray]


def normal(rng: np.random.Generator, of: Shape) -> AnyArray:
    return np.asarray(rng.standard_normal(of))


def between(low: float, high: float) -> Values:
    return lambda rng, of: np.asarray(rng.uniform(low, high, of))


def nonzero(rng: np.random.Generator, of: Shape) -> AnyArray:
    return np.asarray(rng.choice([-1.0, 1.0], of) * rng.uniform(0.5, 2, of))


positive = between(0.5, 2)

VALUES: dict[tuple[str, int], Values] = {
    ("Acos", 0): between(-0.9, 0.9),
    ("Acosh", 0): between(1.1, 3),
    ("Asin", 0): between(-0.9, 0.9),
    ("Atanh", 0): between(-0.9, 0.9),
    ("BatchNormalization", 4): positive,
    ("Clip", 1): between(-2, -0.3),
    ("Clip", 2): between(0.3, 2),
    ("CumProd", 0): nonzero,
    ("Div", 1): nonzero,
    ("Log", 0): positive,
    ("Mod", 1): nonzero,
    ("Pow", 0): positive,
    ("Reciprocal", 0): nonzero,
    ("ReduceLogSum", 0): positive,
    ("RoiAlign", 1): between(-1, 6),
    ("ScatterElements", 2): nonzero,
    ("ScatterND", 2): nonzero,
    ("Sqrt", 0): positive,
    ("Tan", 0): between(-1, 1),
}
"""Where an operator has slopes, if that is not everywhere."""

FIXED = {"OneHot": (0, 1), "Resize": (1, 2, 3), "Where": (0,)}
"""Inputs that are floats at times, but choose rather than compute."""

ELSEWHERE = (
    *("After", "Assign", "Compress", "If", "Loop", "Scan"),
    *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike"),
    *("RandomUniform", "RandomUniformLike", "Range"),
)
"""Operators of which a node alone tells little; they have tests of their own."""
RECURRENT = ("GRU", "LSTM", "RNN")
"""Operators whose steps have second gradients of their own."""
OURS = [
    op
    for op in differentiable()
    if find_operator(op).infer.__module__.startswith("plait.") and not find_operator(op).function
]
OPERATORS = [op for op in OURS if FLAT not in find_operator(op).traits and op not in ELSEWHERE]
LINEAR = {
    *("Add", "AveragePool", "Cast", "CastLike", "Concat", "CumSum", "DepthToSpace", "Dropout"),
    *("Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Mean", "Neg"),
    *(
        "MaxPoolGradient",
        "Pad",
        "ReduceMean",
        "ReduceSum",
        "Reshape",
        "Resize",
        "ReverseSequence",
        "Slice",
    ),
    *("SpaceToDepth", "Split", "Squeeze", "Sub", "Sum", "Tile", "Transpose", "Trilu", "Unsqueeze"),
}
"""Operators whose gradients do not depend on x."""


def floats_first(data: st.DataObject) -> Draw:
    """Return a way to draw in which what may be float64 is."""

    def draw(strategy: st.SearchStrategy[Any]) -> Any:
        drawn = data.draw(strategy)
        return "float64" if "float64" in getattr(strategy, "elements", ()) else drawn

    return draw


@pytest.fixture(scope="module")
def differences() -> Iterator[Differences]:
    opened = Differences()
    yield opened
    opened.close()


def test_all_rules_are_drawn_but_those_tested_elsewhere() -> None:
    assert {op for op in OURS if op not in STRATEGIES} <= set(ELSEWHERE)


@pytest.mark.parametrize("op", OPERATORS)
@settings(max_examples=EXAMPLES, suppress_health_check=UNHURRIED)
@given(data=st.data())
def test_gradients_are_what_differences_say(
    differences: Differences, op: str, data: st.DataObject
) -> None:
    check(differences, op, data, 1)


@pytest.mark.parametrize("op", [op for op in OPERATORS if op not in (*LINEAR, *RECURRENT)])
@settings(max_examples=max(EXAMPLES // 2, 1), suppress_health_check=UNHURRIED)
@given(data=st.data())
def test_gradients_of_gradients_are_what_differences_say(
    differences: Differences, op: str, data: st.DataObject
) -> None:
    check(differences, op, data, 2)


def check(differences: Differences, op: str, data: st.DataObject, order: int) -> None:
    case = STRATEGIES[op](floats_first(data))
    rng = np.random.default_rng(0)
    inputs = list(case.inputs)
    floats = [i for i, x in enumerate(inputs) if x is not None and x.dtype.kind == "f"]
    xs = [i for i in floats if i not in FIXED.get(op, ())]
    if op == "RoiAlign" and not case.attributes["sampling_ratio"]:
        assume(case.attributes["mode"] == "avg")
        xs = [0]  # how many samples there are jumps with the regions
    assume(xs and (op != "GridSample" or 0 in xs))
    for index in xs:
        draw = VALUES.get((op, index), normal)
        inputs[index] = draw(rng, np.asarray(inputs[index]).shape)
    outputs = 1 if op == "LayerNormalization" else case.n_outputs  # statistics are float32
    graph = differentiated(op, inputs, case.attributes, outputs, case.constant, xs, order)
    assume(all(spec.is_static and spec.size < 3000 for spec in graph.tensors.values()))
    fed = {f"x{i}": x for i, x in enumerate(inputs) if x is not None and f"x{i}" in graph.inputs}
    for name in graph.inputs:
        if name.startswith("weight/"):
            fed[name] = normal(rng, graph.tensors[name].static_shape)
    filled = all(np.asarray(inputs[index]).size for index in xs)
    if order == 1 and filled and data.draw(st.booleans()):
        try:  # a rule may refuse lengths that are no numbers; what is built must be right
            graph = differentiated(
                op, inputs, case.attributes, outputs, case.constant, xs, symbols=True
            )
        except pl.GraphError as error:
            assume(type(error) is not pl.GraphError)
            raise
    differences.check(graph, fed, [f"x{i}" for i in xs])
