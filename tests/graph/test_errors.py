from __future__ import annotations

import json
import pickle
import wave
import zlib
from collections.abc import Callable

import pytest
from plait.devices import errors as device_errors
from plait.graph.values import errors
from plait.graph.values.errors import (
    Argument,
    Fix,
    GraphError,
    InternalError,
    OperatorError,
    ParseError,
    PlaitError,
    ShapeError,
    WireError,
)


def test_an_error_says_what_where_and_how_to_fix_it() -> None:
    error = GraphError("two nodes are named 'a'", at="node 'a'", fix="choose another name")
    assert str(error) == "two nodes are named 'a'\n  at:  node 'a'\n  fix: choose another name"


def test_the_description_of_an_error_names_its_module_where_its_name_says_nothing() -> None:
    assert errors.describe_error(zlib.error("Error -3")) == "zlib.error: Error -3"
    assert errors.describe_error(EOFError()) == "EOFError"
    assert errors.describe_error(OSError("no file\n")) == "OSError: no file"
    assert errors.describe_error(wave.Error("no RIFF")) == "wave.Error: no RIFF"
    assert errors.describe_error(json.JSONDecodeError("odd", "", 0)).startswith("JSONDecodeError: ")


def test_an_error_without_place_or_remedy_is_one_line() -> None:
    assert str(GraphError("the graph has no output")) == "the graph has no output"


def test_a_place_found_later_shows_in_the_message() -> None:
    error = ShapeError("shapes differ", fix="make them equal")
    error.at = "node 'add'"
    assert str(error) == "shapes differ\n  at:  node 'add'\n  fix: make them equal"


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (GraphError, PlaitError),
        (OperatorError, GraphError),
        (ShapeError, GraphError),
        (ParseError, GraphError),
        (errors.LogicError, GraphError),
        (errors.RuntimeFailureError, PlaitError),
        (WireError, PlaitError),
        (InternalError, PlaitError),
        (device_errors.DeviceError, PlaitError),
        (device_errors.DeviceUnavailableError, device_errors.DeviceError),
        (device_errors.DeviceLostError, device_errors.DeviceError),
        (device_errors.DeviceMemoryError, device_errors.DeviceError),
        (device_errors.KernelError, device_errors.DeviceError),
    ],
)
def test_the_error_tree_is_as_documented(kind: type[PlaitError], base: type[PlaitError]) -> None:
    assert kind.__base__ is base


@pytest.mark.parametrize("module", [errors, device_errors])
def test_the_documented_tree_names_every_error_of_its_module(module: object) -> None:
    defined = {
        name
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, PlaitError)
        and value.__module__ == getattr(module, "__name__", "")
    }
    assert {name for name in defined if name not in (module.__doc__ or "")} == set()


FIX = Fix("bound it: ", Argument("bounds", {"n": (2, 64)}), ", and go on")


def test_a_fix_spells_its_arguments_as_python_does_or_as_whoever_prints_it() -> None:
    error = ShapeError("too long", at="node 'add'", fix=FIX)
    assert error.fix == "bound it: bounds={'n': (2, 64)}, and go on"
    assert str(error).endswith(f"fix: {error.fix}")
    assert error.spelled(lambda one: f"<{one.name}>").endswith("fix: bound it: <bounds>, and go on")


@pytest.mark.parametrize("copied", [lambda e: pickle.loads(pickle.dumps(e)), ShapeError.again])
def test_a_fix_keeps_its_arguments_when_its_error_is_copied(
    copied: Callable[[ShapeError], ShapeError],
) -> None:
    again = copied(ShapeError("too long", fix=FIX))
    assert isinstance(again.fix, Fix)
    assert (again.fix, again.fix.parts) == (FIX, FIX.parts)


def test_an_error_survives_the_way_to_another_process() -> None:
    error = ShapeError("shapes differ", at="node 'add'", fix="make them equal")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.what, again.at, again.fix) == (
        ShapeError,
        "shapes differ",
        "node 'add'",
        "make them equal",
    )


def test_notes_survive_pickling() -> None:
    error = PlaitError("what", at="where", fix="how")
    error.add_note("a traceback from elsewhere")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["a traceback from elsewhere"]
