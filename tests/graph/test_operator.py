from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.graph.core.attribute import Attribute, Kind
from plait.graph.core.operator import (
    Call,
    Operator,
    define,
    elements,
    find_operator,
    free,
    is_operator,
    list_operators,
    register_operator,
    unregister_operator,
)
from plait.graph.values.errors import GraphError, OperatorError
from plait.graph.values.tensor import TensorSpec

pytestmark = pytest.mark.usefixtures("forget_operators")

SPEC = TensorSpec("float32", (2, 3))


def operator(
    inputs: str = "x", outputs: str = "y", attributes: Mapping[str, Attribute] | None = None
) -> Operator:
    return Operator("Op", inputs, outputs, attributes or {}, lambda call: (SPEC,), elements)


def check_arity(made: Operator, present: list[bool], n_outputs: int = 1) -> None:
    made.check_arity(len(present), present, n_outputs, "node 'n'")


@pytest.mark.parametrize(
    ("inputs", "present"),
    [
        ("x", [True]),
        ("x w b?", [True, True]),
        ("x w b?", [True, True, False]),
        ("x w b?", [True, True, True]),
        ("x?", []),
        ("xs*", []),
        ("xs+", [True]),
        ("x ys*", [True, True, True]),
        ("", []),
    ],
)
def test_inputs_that_fit_the_formals_pass(inputs: str, present: list[bool]) -> None:
    check_arity(operator(inputs), present)


@pytest.mark.parametrize(
    ("inputs", "count", "wanted"),
    [
        ("x", 0, "1"),
        ("x", 2, "1"),
        ("x w b?", 1, "2 to 3"),
        ("x w b?", 4, "2 to 3"),
        ("xs+", 0, "1 or more"),
        ("", 1, "0"),
    ],
)
def test_a_wrong_number_of_inputs_is_refused(inputs: str, count: int, wanted: str) -> None:
    with pytest.raises(OperatorError) as caught:
        check_arity(operator(inputs), [True] * count)
    assert str(caught.value) == (
        f"Op takes {wanted} inputs ({inputs}), got {count}\n  at:  node 'n'\n  fix: pass {inputs}"
    )


@pytest.mark.parametrize(
    ("inputs", "present", "missing"),
    [
        ("x w b?", [False, True], "x"),
        ("x w b?", [False, False, True], "x, w"),
        ("xs+", [True, False], "xs"),
        ("xs*", [False], "xs"),
        ("x y? zs*", [True, False, False], "zs"),
    ],
)
def test_only_optional_inputs_may_be_absent(inputs: str, present: list[bool], missing: str) -> None:
    with pytest.raises(OperatorError) as caught:
        check_arity(operator(inputs), present)
    assert str(caught.value) == (
        f"Op needs its input {missing}\n  at:  node 'n'\n  fix: pass {missing}"
    )


@given(st.integers(0, 3), st.integers(0, 2), st.sampled_from(["", "*", "+"]), st.integers(0, 7))
def test_arity_is_what_the_formals_say(
    required: int, optional: int, variadic: str, count: int
) -> None:
    formals = [f"r{i}" for i in range(required)] + [f"o{i}?" for i in range(optional)]
    low, high = required, required + optional
    if variadic:
        formals.append(f"v{variadic}")
        low, high = low + (variadic == "+"), 100
    made = operator(" ".join(formals))
    if low <= count <= high:
        check_arity(made, [True] * count)
    else:
        with pytest.raises(OperatorError):
            check_arity(made, [True] * count)


@pytest.mark.parametrize(("outputs", "count"), [("y", 1), ("y mask?", 2), ("ys+", 5), ("ys*", 0)])
def test_outputs_that_fit_the_formals_pass(outputs: str, count: int) -> None:
    check_arity(operator(outputs=outputs), [True], count)


def test_a_wrong_number_of_outputs_is_refused() -> None:
    with pytest.raises(OperatorError) as caught:
        check_arity(operator(outputs="y mask?"), [True], 3)
    assert str(caught.value) == (
        "Op has 1 to 2 outputs (y mask?), asked for 3\n  at:  node 'n'\n  fix: ask for y mask?"
    )


def test_attributes_are_completed_with_defaults() -> None:
    made = operator(attributes={"axis": Attribute(Kind.INT, -1), "keep": Attribute(Kind.BOOL)})
    assert made.complete({"keep": 1}, "node 'n'") == {"axis": -1, "keep": True}


def test_completed_attributes_are_frozen() -> None:
    complete = operator(attributes={"axis": Attribute(Kind.INT, -1)}).complete({}, "node 'n'")
    with pytest.raises(TypeError):
        complete["axis"] = 0  # type: ignore[index]


@pytest.mark.parametrize(
    ("attributes", "known"),
    [({}, "none"), ({"axis": Attribute(Kind.INT), "keep": Attribute(Kind.BOOL)}, "axis, keep")],
)
def test_an_unknown_attribute_is_refused(attributes: dict[str, Attribute], known: str) -> None:
    with pytest.raises(OperatorError) as caught:
        operator(attributes=attributes).complete({"axes": 1}, "node 'n'")
    assert str(caught.value) == (
        f"Op has no attribute 'axes'\n  at:  node 'n'\n  fix: it has: {known}"
    )


def test_a_defined_operator_is_found_by_name() -> None:
    @define("test.Twin", inputs="x", outputs="a b")
    def infer(call: Call) -> tuple[TensorSpec, ...]:
        return call.spec(0), call.spec(0)

    found = find_operator("test.Twin")
    assert (found.infer, found.inputs, found.outputs) == (infer, "x", "a b")
    assert is_operator("test.Twin")
    assert "test.Twin" in list_operators()


def test_operators_are_listed_sorted() -> None:
    assert list(list_operators()) == sorted(list_operators())


def test_an_operator_is_defined_once() -> None:
    with pytest.raises(GraphError) as caught:
        define("Relu", inputs="x")(lambda call: (SPEC,))
    assert str(caught.value) == (
        "operator 'Relu' is defined twice\n  fix: choose another name for one"
    )


def test_an_unregistered_operator_is_gone() -> None:
    register_operator(operator())
    unregister_operator("Op")
    assert not is_operator("Op")


def test_an_operator_that_is_not_there_cannot_be_unregistered() -> None:
    with pytest.raises(OperatorError):
        unregister_operator("test.Nothing")


def test_a_misspelt_operator_brings_up_the_closest_ones() -> None:
    with pytest.raises(OperatorError) as caught:
        find_operator("Rellu", at="node 'n'")
    assert caught.value.what == "there is no operator 'Rellu'"
    assert caught.value.at == "node 'n'"
    assert (caught.value.fix or "").startswith("did you mean 'Relu'")


def test_an_operator_like_no_other_brings_up_the_list() -> None:
    with pytest.raises(OperatorError) as caught:
        find_operator("zzzzzzzzzz")
    fix = "list them: import plait; plait.operators.list_operators()"
    assert str(caught.value) == f"there is no operator 'zzzzzzzzzz'\n  fix: {fix}"
    _, code = str(caught.value.fix).split(": ", 1)
    exec(code, {})  # as it is printed, it works


def test_a_call_knows_which_optional_inputs_it_has() -> None:
    call = Call((SPEC, None), (None, None), {})
    assert [call.has(0), call.has(1), call.has(2)] == [True, False, False]


def test_a_call_gives_the_values_of_constants_only() -> None:
    value = np.zeros((2, 3), np.float32)
    call = Call((SPEC, SPEC), (None, value), {})
    assert call.value(0) is None
    assert call.value(1) is value
    assert call.value(2) is None


def test_a_call_asks_for_one_output_unless_told_otherwise() -> None:
    assert Call((SPEC,), (None,), {}).n_outputs == 1


def test_the_cost_rule_elements_counts_output_elements() -> None:
    assert elements(Call((SPEC,), (None,), {}), (SPEC, TensorSpec("int8", (4,)))) == 10


def test_the_cost_rule_free_is_zero() -> None:
    assert free(Call((SPEC,), (None,), {}), (SPEC,)) == 0
