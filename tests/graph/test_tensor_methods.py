"""Operators as methods of tensors, as type checkers, editors and `help` know them."""

from __future__ import annotations

import ast
import inspect

import plait as pl
import pytest
import tensor_methods
import typed_tensors
from plait.graph.building.operator_methods import list_methods


@pytest.fixture
def x() -> pl.Tensor:
    return pl.GraphBuilder("g").input("x", "float32", ("n", 4))


def stubs() -> dict[str, ast.FunctionDef]:
    """Return the methods in the file, parsed."""
    (kind,) = (
        node for node in ast.parse(tensor_methods.STUB.read_text()).body
        if isinstance(node, ast.ClassDef)
    )  # fmt: skip
    return {node.name: node for node in kind.body if isinstance(node, ast.FunctionDef)}


def test_the_file_for_type_checkers_is_what_the_operators_say() -> None:
    """If not: `make methods`."""
    assert tensor_methods.STUB.read_text() == tensor_methods.stub()


def test_every_operator_of_plait_that_is_a_method_is_in_it() -> None:
    own = {name for name, method in list_methods().items() if tensor_methods.is_own(method)}
    assert stubs().keys() == own - vars(pl.Tensor).keys()
    assert {"relu", "conv", "sum", "reduce_sum", "not_", "lstm"} <= stubs().keys()


def test_its_arguments_and_help_are_those_of_the_methods(x: pl.Tensor) -> None:
    for name, stub in stubs().items():
        method = getattr(x, name)
        parameters = inspect.signature(method).parameters.values()
        positional = [one.arg for one in stub.args.args]
        named = [one.arg for one in stub.args.kwonlyargs]
        assert positional[0] == "self"
        assert positional[1:] == [
            one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD
        ]
        assert named == [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
        assert ast.get_docstring(stub) == method.__doc__


def test_what_a_user_calls_is_what_there_is(x: pl.Tensor) -> None:
    """Types of this module are checked with all others, and against the installed wheel."""
    made = typed_tensors.compute(x)
    assert {type(one) for one in made.values()} == {pl.Tensor}
    assert made["reduction"].shape == ("n", 1)
    assert made["others"].shape == ("n", 10)


def test_what_a_type_checker_refuses_fails(x: pl.Tensor) -> None:
    for mistake in typed_tensors.mistakes(x):
        with pytest.raises((AttributeError, pl.OperatorError, pl.ShapeError, TypeError)):
            mistake()


def test_help_shows_how_a_method_is_called(x: pl.Tensor) -> None:
    assert str(inspect.signature(x.clip)) == "(min=None, max=None, *, name=None)"
    assert str(inspect.signature(x.sum)) == "(axis=None, keepdims=False, *, name=None)"
    assert str(inspect.signature(x.softmax)) == "(*, axis=-1, name=None)"
    assert x.clip.__doc__ == "Clip with this tensor as x; returns y."


def test_an_editor_completes_methods_without_running_anything() -> None:
    jedi = pytest.importorskip("jedi", reason="jedi comes with ipykernel")
    code = "import plait as pl\nx = pl.GraphBuilder().input('x', 'float32', (1,))\nx.log_so"
    found = jedi.Script(code, environment=jedi.InterpreterEnvironment()).complete()
    assert [one.name for one in found] == ["log_softmax"]
    assert "axis" in found[0].get_signatures()[0].to_string()
