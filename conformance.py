"""Count which of ONNX's own backend tests pass, by group: ``python -m plait.conformance``.

::

    python -m plait.conformance                         # print the table
    python -m plait.conformance --alternate             # nodes alternate: cpu, worker:0, cpu ...
    python -m plait.conformance --write docs/operators.md

Needs the extra ``[onnx]``. Tests of models that plait refuses to load count as refused.
"""

from __future__ import annotations

import argparse
import unittest
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from . import devices
from .devices.device import Device
from .graph.core.nested import walk_nodes
from .graph.core.operator import find_operator, is_operator
from .graph.core.traits import RUNTIME
from .graph.formats.onnx.nodes import read_operator_name
from .graph.formats.onnx.upgrade import find_newest_name
from .graph.values.extras import get_install_command
from .scheduler.runtime.faults.open_devices import close_shared, open_shared
from .testing import OnnxBackend, UnsupportedError

BEGIN = "<!-- conformance: begin -->"
END = "<!-- conformance: end -->"

MODELS = {
    "RealModel": "whole models, weightless",
    "SimpleModel": "small models",
    "PyTorchConvertedModel": "PyTorch modules",
    "PyTorchOperatorModel": "PyTorch operators",
}
BY_ROUNDING = {
    # Two elements of 192 are one float16 away: the tolerance is below its spacing.
    "NodeModel/test_attention_4d_causal_fp16",
    "NodeModel/test_attention_4d_causal_fp16_expanded",
    # Its thousand logits, all near 1e10, must be equal to the last bit; some BLAS kernels do that.
    "RealModel/test_squeezenet",
}
"""Tests that rounding decides. They count as failed wherever they run, so that numbers compare."""

BY_CHANCE = {
    f"NodeModel/test_{name}"
    for name in (
        *("bernoulli", "bernoulli_double", "bernoulli_seed"),
        *("bernoulli_expanded", "bernoulli_double_expanded", "bernoulli_seed_expanded"),
        *("training_dropout", "training_dropout_default"),
        *("training_dropout_mask", "training_dropout_default_mask"),
    )
}
"""Tests of numbers that another generator drew; they do not count."""

WRITTEN_OUT = "several operators, or one written out as several"
OTHERS = "operators that plait lacks"
PASSED_OVER = "passed over"


@dataclass
class Outcomes:
    """The names of the tests that passed, that were refused on load, and that failed."""

    passed: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)


def run_suite(*, alternate: bool = False, one_in: int = 1) -> Outcomes:
    """Run all tests on cpu, or each other node on a worker; the devices are opened once.

    `one_in` runs a part of them, and if nodes alternate, no test of a single node.
    """
    from onnx.backend.test import BackendTest

    names = ("cpu", "worker:0") if alternate else ("cpu",)
    found = Outcomes()
    with ExitStack() as stack, warnings.catch_warnings():
        opened = tuple(map(devices.find, names))
        for device in opened:
            open_shared(device, 1)  # sessions leave it open then
            stack.callback(close_shared, device)
        warnings.simplefilter("ignore")  # numpy's, about numbers that make good tests
        backend: Any = _backend(opened, alternate, one_in)
        suite = BackendTest(backend, __name__).test_suite
        suite.run(_Collector(found))
    return found


def _backend(opened: Sequence[Device], alternating: bool, one_in: int) -> type[OnnxBackend]:
    number = count()

    class Backend(OnnxBackend):
        devices = tuple(opened)
        alternate = alternating

        @classmethod
        def prepare(cls, model: Any, device: str = "CPU", **_: Any) -> Any:
            if next(number) % one_in:
                raise unittest.SkipTest(PASSED_OVER)
            try:
                prepared = super().prepare(model, device)
            except UnsupportedError as error:
                raise unittest.SkipTest(str(error)) from error
            if one_in > 1 and alternating and len(list(walk_nodes(prepared.graph))) < 2:
                raise unittest.SkipTest(PASSED_OVER)
            return prepared

        @classmethod
        def is_compatible(cls, model: Any, device: str = "CPU", **_: Any) -> bool:
            return True  # whether it is shows in `prepare`

    return Backend


class _Collector(unittest.TestResult):
    """Sorts the tests for the cpu by their outcome."""

    def __init__(self, outcomes: Outcomes) -> None:
        super().__init__()
        self._outcomes = outcomes

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        self._outcomes.passed.add(_name(test))

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        if not test.id().endswith("_cuda") and reason != PASSED_OVER:
            self._outcomes.refused.add(_name(test))

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        if _name(test) not in BY_CHANCE:
            self._outcomes.failed[_name(test)] = str(err[1])

    addError = addFailure  # noqa: N815


def _name(test: unittest.TestCase) -> str:
    """Return ``"NodeModel/test_abs"``: names repeat between the kinds of test."""
    kind, method = test.id().split(".")[-2:]
    kind = kind.removeprefix("OnnxBackend").removesuffix("Test")
    return f"{kind}/{method.removesuffix('_cpu')}"


def groups() -> Mapping[str, str]:
    """Return the group of each test of one node by its name: its operator's family."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = load_model_tests(kind="node")
    return {f"NodeModel/{test.name}": _family(test.model) for test in tests}


def _family(model: Any) -> str:
    nodes = model.graph.node
    op = find_newest_name(read_operator_name(nodes[0])) if len(nodes) == 1 else ""
    if not is_operator(op) or RUNTIME in find_operator(op).traits:
        return WRITTEN_OUT
    return find_operator(op).module.rpartition(".")[2].replace("_", " ")


def table(outcomes: Outcomes) -> str:
    """Return the numbers by group, as a table in Markdown, and the names of failed tests."""
    outcomes = _settled(outcomes)
    known = groups()
    counts: dict[str, Counter[str]] = {}
    for column in ("passed", "refused", "failed"):
        for name in getattr(outcomes, column):
            group = known.get(name) or MODELS[name.partition("/")[0]]
            if group == WRITTEN_OUT and column == "refused":
                group = OTHERS
            counts.setdefault(group, Counter())[column] += 1
    return "\n".join([*_rows(counts), "", *_failures(outcomes)])


def _settled(outcomes: Outcomes) -> Outcomes:
    """Return the outcomes with those failed that rounding decides."""
    ran = BY_ROUNDING & (outcomes.passed | set(outcomes.failed))
    failed = {**outcomes.failed, **dict.fromkeys(ran, "")}
    return Outcomes(outcomes.passed - ran, outcomes.refused, failed)


def _rows(counts: Mapping[str, Counter[str]]) -> Iterator[str]:
    yield "| group | tests | passed | refused on load | failed |"
    yield "|---|---|---|---|---|"
    total: Counter[str] = Counter()
    for group in sorted(counts):
        yield _row(group, counts[group])
        total.update(counts[group])
    yield _row("**all**", total)


def _row(group: str, count: Counter[str]) -> str:
    columns = (count.total(), count["passed"], count["refused"], count["failed"])
    return f"| {group} | " + " | ".join(map(str, columns)) + " |"


def _failures(outcomes: Outcomes) -> Iterator[str]:
    names = ", ".join(f"`{name}`" for name in sorted(outcomes.failed))
    yield f"Failing: {names or 'none'}."


def written(text: str, made: str) -> str:
    """Return a document with the table between its marks replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{made}\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m plait.conformance", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--alternate", action="store_true", help="give nodes to devices in turn")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into a document")
    options = parser.parse_args(arguments)
    if find_spec("onnx") is None:
        parser.error(f"the tests come with the package 'onnx': {get_install_command('onnx')}")
    outcomes = run_suite(alternate=options.alternate)
    made = table(outcomes)
    print(made)
    for name, why in sorted(outcomes.failed.items()):
        print(f"\n{name}: {why.strip()[:400]}")
    if options.write:
        options.write.write_text(written(options.write.read_text(), made))


if __name__ == "__main__":
    main()
