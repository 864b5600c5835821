"""The node tests that come with ONNX: models, inputs, and what must come out.

Most are of one node. The others are operators that ONNX defines by simpler ones, written out.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import plait as pl
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case.node import collect_testcases
from plait.graph.core.infer import infer_shapes
from plait.graph.core.ir import Graph
from plait.graph.core.operator import is_operator
from plait.graph.formats.onnx.nodes import read_operator_name
from plait.graph.formats.onnx.upgrade import find_newest_name
from plait.graph.operators.control import CONTROL_FLOW
from plait.graph.values.dtypes import TEXT, is_extension
from plait.graph.values.tensor import Array
from plait.scheduler.shapes.specialise import specialise

RANDOM = ("test_bernoulli", "test_training_dropout")
"""Begin the names of tests that draw random numbers, of which plait draws its own."""

LIKE_ONNX = {"bfloat16": 1e-2, "float16": 2e-3, "float32": 1e-5, "float64": 1e-13}
"""Differences to ONNX's own results that are right, relative and absolute; others are exact."""

ROUNDED = {
    "test_averagepool_2d_ceil_last_window_starts_on_pad": 1e-3,
    "test_gridsample_bicubic": 1e-3,
    "test_roialign_aligned_false": 1e-3,
    "test_roialign_aligned_true": 1e-3,
}
"""The same for results that were written down with few digits."""


@dataclass(frozen=True, slots=True)
class Case:
    """A graph whose shapes are known, its inputs, and the outputs that others computed."""

    name: str
    graph: Graph
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Suite:
    """What there is to run.

    Attributes
    ----------
    nodes : dict of str to list of Case
        Those of one node, by operator.
    functions : list of Case
        Those of several.
    refused : dict of str to str
        Why tests of one node are not among them, although plait has the operator.
    """

    nodes: dict[str, list[Case]]
    functions: list[Case]
    refused: dict[str, str]


@cache
def suite() -> Suite:
    """Return the cases that plait can load; takes seconds, once."""
    made = Suite({}, [], {})
    with tempfile.TemporaryDirectory() as folder:
        for test in collect_tests():
            if not test.name.startswith(RANDOM):
                _add(made, test, Path(folder) / "model.onnx")
    return made


def collect_tests() -> Sequence[Any]:
    """Return ONNX's tests of nodes, which it makes when it is first asked."""
    with warnings.catch_warnings():  # numpy's, about numbers that make good tests
        warnings.simplefilter("ignore")
        with patch.object(np.random, "randn", _draw_smaller_volumes(np.random.randn)):
            tests: Sequence[Any] = collect_testcases(None)
    return tests


def _draw_smaller_volumes(randn: Callable[..., Any]) -> Callable[..., Any]:
    """Give the inputs of pools over volumes a length of 8 for 32: ONNX computes these in Python."""

    def draw(*shape: int) -> Any:
        is_volume = sys._getframe(1).f_code.co_name.endswith("pool_3d_default")
        return randn(*(shape[:2] + (8,) * 3 if is_volume else shape))

    return draw


def check_like_onnx(case: Case, found: Mapping[str, Array]) -> None:
    """Compare results with those that ONNX wrote down."""
    for name, wanted in case.outputs.items():
        got, dtype = found[name], wanted.dtype
        assert (got.dtype, got.shape) == (dtype, wanted.shape), case.name
        tolerance = ROUNDED.get(case.name, LIKE_ONNX.get(dtype.name, 0.0))
        if is_extension(dtype):
            got, wanted = got.astype("float32"), wanted.astype("float32")
        np.testing.assert_allclose(got, wanted, tolerance, tolerance, err_msg=case.name)


def _add(made: Suite, test: Any, path: Path) -> None:
    path.write_bytes(test.model.SerializeToString())
    nodes = test.model.graph.node
    try:
        graph = pl.load(path)
        if any(node.operator.bounded or node.op in CONTROL_FLOW for node in graph.nodes):
            return  # what a session runs, in several plans
        if any(spec.dtype == TEXT for spec in graph.tensors.values()):
            return  # of ONNX Runtime's alone, as text is
        case = _case(test, graph)
    except pl.PlaitError as error:
        if len(nodes) == 1 and is_operator(find_newest_name(read_operator_name(nodes[0]))):
            made.refused[test.name] = error.what
        return
    if len(case.graph.nodes) == 1:
        made.nodes.setdefault(case.graph.nodes[0].op, []).append(case)
    elif case.graph.nodes:
        made.functions.append(case)


def _case(test: Any, graph: Graph) -> Case:
    given, wanted = test.data_sets[0]
    inputs = dict(zip(graph.inputs, map(_array, given), strict=True))
    outputs = dict(zip(graph.outputs, map(_array, wanted), strict=True))
    static = _static(graph, inputs)
    return Case(test.name, static, {name: inputs[name] for name in static.inputs}, outputs)


def _static(graph: Graph, inputs: Mapping[str, Array]) -> Graph:
    """Make inputs constants, the last ones first, until all shapes are known."""
    single = len(graph.nodes) == 1
    while not (fixed := graph if single else specialise(graph)).is_static:
        *fed, name = graph.inputs
        value = np.ascontiguousarray(inputs[name]).reshape(inputs[name].shape)
        value.flags.writeable = False
        constants = {**graph.constants, name: value}
        graph = infer_shapes(replace(graph, inputs=tuple(fed), constants=constants))
    return fixed


def _array(value: Any) -> Array:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)
