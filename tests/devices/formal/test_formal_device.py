from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from bound import Bound
from patience import WAIT_S
from plait.devices import formal
from plait.devices.formal import registry
from plait.devices.formal.device import FormalDevice
from plait.devices.formal.program import PATTERN
from plait.devices.formal.registry import Definition, definition, find_definition, list_definitions
from plait.devices.memory import HOST, SHARED
from plait.graph.core.ir import Graph
from plait.graph.core.operator import define
from plait.graph.values.tensor import TensorSpec, spec_of
from python_functions import fail
from small_graphs import FLOATS, IN_PLACE, X, counting, doubling, flattened, unary

pytestmark = pytest.mark.usefixtures("forget_operators")


@pytest.fixture
def device() -> Iterator[FormalDevice]:
    made = FormalDevice()
    made.open()
    yield made
    made.close()


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], str]:
    """Return what makes a definition an operator y = f(x) for as long as the test runs."""

    def make(function: Any) -> str:
        define("test.Defined", inputs="x")(lambda call: (call.spec(0),))
        wants_outputs = "outputs" in function.__code__.co_varnames
        made = Definition("test.Defined", function, wants_outputs)
        monkeypatch.setitem(registry._definitions, "test.Defined", made)
        return "test.Defined"

    return make


def chain(dtype: str = "float32") -> Graph:
    """Return y = -middle, middle = -x."""
    b = pl.GraphBuilder("chain")
    (middle,) = b.op("Neg", b.input("x", dtype, (4,)), outputs=["middle"])
    b.output("y", b.op("Neg", middle))
    return b.build()


def viewed() -> Graph:
    """Return y = -flat, flat = reshape(middle), middle = -x."""
    b = pl.GraphBuilder("viewed")
    (middle,) = b.op("Neg", b.input("x", "float32", (2, 2)), outputs=["middle"])
    (flat,) = b.op("Reshape", middle, np.array([4]), outputs=["flat"])
    b.output("y", b.op("Neg", flat))
    return b.build()


def test_it_is_found_by_its_name() -> None:
    assert isinstance(pl.devices.find("formal"), FormalDevice)
    assert pl.devices.probe("formal").found


def test_it_works_in_host_and_shared_memory_and_runs_python_functions() -> None:
    capabilities = FormalDevice().capabilities
    assert capabilities.memory == HOST
    assert capabilities.accesses == {HOST, SHARED}
    assert capabilities.runs_python


def test_it_supports_what_has_a_definition() -> None:
    graph = unary("Relu")
    support = FormalDevice().supports(graph.nodes[0], graph.call(graph.nodes[0]))
    assert support == (True, "has a definition")


def test_it_says_that_it_lacks_a_definition() -> None:
    define("test.Lacking", inputs="x")(lambda call: (call.spec(0),))
    graph = unary("test.Lacking")
    support = FormalDevice().supports(graph.nodes[0], graph.call(graph.nodes[0]))
    assert support == (False, "no definition of 'test.Lacking' for 'formal'")


def test_an_operator_is_defined_once() -> None:
    with pytest.raises(pl.GraphError, match="two definitions of 'Relu'"):
        definition("Relu")(lambda x: x)


def test_definitions_are_found_by_the_operators_name() -> None:
    found = find_definition("Cast")
    assert found is not None
    assert found.wants_outputs
    assert "Cast" in list_definitions()
    assert find_definition("test.Lacking") is None


def test_definitions_share_nothing_with_kernels() -> None:
    assert formal.__file__ is not None
    files = list(Path(formal.__file__).parent.glob("*.py"))
    assert [file.name for file in files if "kernels" in file.read_text().split('"""', 2)[2]] == []


def test_a_session_runs_on_it_alone() -> None:
    b = pl.GraphBuilder("g")
    x = b.input("x", "float32", ("n",))
    b.output("y", b.op("Softplus", b.op("Mul", x, 2.0)))
    plan = pl.plan(b.build(), devices=["formal"])
    found = pl.run(plan, {"x": X})["y"]
    np.testing.assert_allclose(found, np.log1p(np.exp(2.0 * X)), rtol=1e-6)


def test_a_plan_for_it_alone_says_what_it_has_no_definition_of() -> None:
    define("test.Lacking", inputs="x")(lambda call: (call.spec(0),))
    b = pl.GraphBuilder("g")
    lacking = b.op("test.Lacking", b.input("x", "float32", (4,)), name="lacking")
    b.output("y", b.op("Relu", lacking, name="relu"))
    with pytest.raises(pl.PlanError, match=r"no definition of 'test\.Lacking'"):
        pl.plan(b.build(), devices=["formal"])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_float_that_nobody_reads_any_more_is_nan(device: FormalDevice, dtype: str) -> None:
    with Bound(device, chain(dtype)) as bound:
        np.testing.assert_array_equal(bound.run(x=X.astype(dtype))["y"], X)
        assert np.isnan(bound.views["middle"].array).all()


def test_an_integer_that_nobody_reads_any_more_is_a_pattern(device: FormalDevice) -> None:
    with Bound(device, chain("int64")) as bound:
        bound.run(x=np.arange(4))
        assert bound.views["middle"].array.tobytes() == bytes([PATTERN]) * 32


def test_inputs_and_outputs_stay(device: FormalDevice) -> None:
    with Bound(device, chain()) as bound:
        for _ in range(2):
            bound.run(x=X)
            np.testing.assert_array_equal(bound.views["x"].array, X)
            np.testing.assert_array_equal(bound.views["y"].array, X)


def test_a_tensor_stays_while_a_view_of_it_is_read(device: FormalDevice) -> None:
    with Bound(device, viewed(), onto={"flat": "middle"}) as bound:
        assert bound.run(x=X.reshape(2, 2))["y"].tolist() == X.tolist()
        assert np.isnan(bound.views["middle"].array).all()


def test_a_view_of_an_input_is_not_poisoned(device: FormalDevice) -> None:
    """Other devices may read the input at the same time."""
    x = X[:3].repeat(2).reshape(2, 3)
    with Bound(device, flattened(), onto={"flat": "x"}) as bound:
        bound.run(x=x)
        np.testing.assert_array_equal(bound.views["x"].array, x)


def test_a_view_on_bytes_of_its_own_is_written(device: FormalDevice) -> None:
    with Bound(device, viewed()) as bound:
        assert bound.run(x=X.reshape(2, 2))["y"].tolist() == X.tolist()
        assert np.isnan(bound.views["flat"].array).all()


def test_an_output_on_its_inputs_bytes_is_computed_before_they_go(device: FormalDevice) -> None:
    with Bound(device, doubling(), onto=IN_PLACE) as bound:
        np.testing.assert_array_equal(bound.run(x=X)["y"], X + X)
    with Bound(device, chain(), onto={"middle": "y"}) as bound:
        np.testing.assert_array_equal(bound.run(x=X)["y"], X)


def test_constants_are_inputs(device: FormalDevice) -> None:
    with Bound(device, counting()) as bound:
        np.testing.assert_array_equal(bound.run(x=X)["y"], X + 1)


def test_an_output_is_poison_until_it_is_computed(
    device: FormalDevice, operator: Callable[[Any], str]
) -> None:
    def broken(x: Any) -> Any:
        raise LookupError("no such thing")

    with Bound(device, unary(operator(broken))) as bound:
        bound.views["y"].array[...] = 1
        bound.put({"x": X})
        with pytest.raises(pl.KernelError, match="no such thing"):
            bound.submit().wait(WAIT_S)
        assert np.isnan(bound.views["y"].array).all()


def test_a_failure_names_the_node_and_the_device(
    device: FormalDevice, operator: Callable[[Any], str]
) -> None:
    with Bound(device, unary(operator(lambda x: [1, 2]))) as bound:
        bound.put({"x": X})
        with pytest.raises(pl.KernelError) as raised:
            bound.submit().wait(WAIT_S)
        assert raised.value.what == "a definition returned the shape [2] for float32[4]"
        assert raised.value.at == "node 'test.defined': test.Defined(x) -> y, on device 'formal'"


def test_a_definition_that_leaves_out_an_output_fails(
    device: FormalDevice, operator: Callable[[Any], str]
) -> None:
    with Bound(device, unary(operator(lambda x: ()))) as bound:
        bound.put({"x": X})
        with pytest.raises(pl.KernelError, match="returned 0 of 1 outputs"):
            bound.submit().wait(WAIT_S)


def test_a_definition_cannot_write_to_its_inputs(
    device: FormalDevice, operator: Callable[[Any], str]
) -> None:
    def overwriting(x: Any) -> Any:
        x[0] = 0
        return x

    with Bound(device, unary(operator(overwriting))) as bound:
        bound.put({"x": X})
        with pytest.raises(pl.KernelError, match="read-only"):
            bound.submit().wait(WAIT_S)


def test_a_definition_that_asks_gets_the_outputs_specs(
    device: FormalDevice, operator: Callable[[Any], str]
) -> None:
    asked: list[tuple[TensorSpec, ...]] = []

    def curious(x: Any, *, outputs: tuple[TensorSpec, ...]) -> Any:
        asked.append(outputs)
        return x

    with Bound(device, unary(operator(curious))) as bound:
        np.testing.assert_array_equal(bound.run(x=X)["y"], X)
    assert asked == [(FLOATS,)]


def test_an_output_that_nobody_asks_for_is_dropped(device: FormalDevice) -> None:
    with Bound(device, unary("Dropout")) as bound:
        np.testing.assert_array_equal(bound.run(x=X)["y"], X)


def test_an_optional_input_may_be_absent(device: FormalDevice) -> None:
    b = pl.GraphBuilder("g")
    b.output("y", b.op("Clip", b.input("x", "float32", (4,)), None, np.float32(1)))
    with Bound(device, b.build()) as bound:
        np.testing.assert_array_equal(bound.run(x=X)["y"], np.minimum(X, 1))


def test_python_functions_run_and_fail_as_on_the_cpu(device: FormalDevice) -> None:
    b = pl.GraphBuilder()
    b.output("y", b.call(fail, b.input("x", "float32", (4,)), name="bad"))
    with Bound(device, b.build()) as bound:
        bound.put({"x": X})
        with pytest.raises(pl.KernelError, match="injected") as raised:
            bound.submit().wait(WAIT_S)
        assert "'bad'" in str(raised.value.at)


def test_an_operator_of_unknown_lengths_fills_the_leading_box_and_says_how_much(
    device: FormalDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    @define("test.Positive", inputs="x", bound=lambda call: (call.spec(0),))
    def infer(call: Any) -> tuple[TensorSpec]:
        return (TensorSpec(call.spec(0).dtype, ("found",)),)

    made = Definition("test.Positive", lambda x: x[x > 0], False)
    monkeypatch.setitem(registry._definitions, "test.Positive", made)
    b = pl.GraphBuilder("g")
    y, shapes = b.op("Bounded.test.Positive", b.input("x", "float32", (4,)), outputs=["y", "n"])
    b.output("y", y)
    b.output("n", shapes)
    with Bound(device, b.build()) as bound:
        found = bound.run(x=X)
    assert found["n"].tolist() == [2]
    np.testing.assert_array_equal(found["y"], [1, 3.5, np.nan, np.nan])
    assert spec_of(found["n"]) == TensorSpec("int64", (1,))
