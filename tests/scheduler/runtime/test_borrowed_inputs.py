"""Large inputs of kernels are read where the caller has them, and large outputs are given away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.scheduler.dispatch.inline_policy import Estimates
from plait.scheduler.runtime.opened.copying import Feeds
from plait.scheduler.runtime.opened.results import copy_results

Array = np.ndarray[Any, Any]
SHAPE = 130, 128  # of more than 64 KiB

FORMS: dict[str, Callable[[Array], Array]] = {
    "plain": np.array,
    "read-only": lambda array: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape),
    "columns first": np.asfortranarray,
    "a part": lambda array: np.repeat(array, 2, 1)[:, ::2],
    "bytes swapped": lambda array: array.astype(">f4"),
    "not aligned": lambda array: (
        np.frombuffer(b"0" + array.tobytes(), np.uint8)[1:].view(array.dtype).reshape(array.shape)
    ),
    "of a subclass": lambda array: array.view(np.matrix),
}


@pl.operator(pl.TensorSpec("float32", ()), name="test_borrowed_inputs.add_up")
def add_up(x: Array) -> Any:
    return x.sum()


def make_plan(*, calls: bool = False, passes: bool = False, devices: str = "ort:0..1") -> pl.Plan:
    """Return a plan of 2x + 1, the sum of x if it `calls` a function, and of x if it `passes`."""
    b = pl.GraphBuilder("line")
    x = b.input("x", "float32", SHAPE)
    b.output("y", b.op("Add", b.op("Mul", x, np.float32(2)), np.float32(1), name="add"))
    if calls:
        b.output("total", b.call(add_up, x, name="total"))
    if passes:
        b.output("x again", b.op("Identity", x))
    cpu = {"total": "cpu"} if calls else {}
    return pl.plan(b.build(), [devices, "cpu"], pin={**cpu, "*": devices}, max_in_flight=4)


@pytest.fixture
def borrowed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The addresses of inputs that steps read in the callers' memory; all items are brief."""
    addresses: list[int] = []
    end = Feeds.end_loans

    def note(feeds: Feeds) -> None:
        places = ((place.array, feeds.targets[name]) for name, place in feeds.lent.items())
        addresses.extend(one.ctypes.data for one, target in places if one is not target)
        end(feeds)

    monkeypatch.setattr(Feeds, "end_loans", note)
    monkeypatch.setattr(Estimates, "are_brief", lambda *_, **__: True)
    return addresses


def run_twice(session: pl.BlockingSession, x: Array) -> dict[str, Array]:
    session.run({"x": x})  # on lanes, if it is the first
    return dict(session.run({"x": x}))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", [{}, {"calls": True}, {"passes": True}], ids=str)
def test_arrays_in_any_form_are_read(
    form: str, options: dict[str, Any], borrowed: list[int]
) -> None:
    x = np.random.default_rng(0).random(SHAPE, np.float32)
    fed = FORMS[form](x)
    with pl.BlockingSession(make_plan(**options)) as session:
        found = run_twice(session, fed)
        np.testing.assert_allclose(found["y"], 2 * x + 1, rtol=1e-6)
        np.testing.assert_array_equal(found.get("x again", x), x)
        np.testing.assert_allclose(found.get("total", x.sum()), x.sum(), rtol=1e-4)
    is_read_there = form in ("plain", "read-only", "of a subclass") and "calls" not in options
    assert (fed.ctypes.data in borrowed) == is_read_there
    np.testing.assert_array_equal(fed, x)


@pytest.mark.usefixtures("borrowed")
def test_each_item_has_results_of_its_own() -> None:
    inputs = [np.full(SHAPE, n, np.float32) for n in range(20)]
    with pl.BlockingSession(make_plan()) as session:
        found = [session.run({"x": x})["y"] for x in inputs]
        found += [item.outputs["y"] for item in session.stream({"x": x} for x in inputs)]
        found += [one.result()["y"] for one in [session.submit({"x": x}) for x in inputs]]
    for y, x in zip(found, inputs * 3, strict=True):
        np.testing.assert_array_equal(y, 2 * x + 1)
        assert y.flags.writeable


def test_results_leave_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    given_away: list[str] = []

    def note(results: Any, given: Any = ()) -> Any:
        given_away.extend(given)
        return copy_results(results, given)

    monkeypatch.setattr("plait.scheduler.runtime.running.inline_runner.copy_results", note)
    monkeypatch.setattr(Estimates, "are_brief", lambda *_, **__: True)
    with pl.BlockingSession(make_plan()) as session:
        run_twice(session, np.zeros(SHAPE, np.float32))
    assert "y" in given_away


@given(ways=st.lists(st.booleans(), min_size=1, max_size=8))
def test_items_on_lanes_read_the_slot_after_one_that_was_interrupted(ways: list[bool]) -> None:
    """Ctrl-C may strike before a loan is ended: the next item must not read the old array."""
    end = Feeds.end_loans
    with pytest.MonkeyPatch.context() as patch, pl.BlockingSession(make_plan()) as session:
        for number, runs_here in enumerate(ways):
            patch.setattr(Estimates, "are_brief", lambda *_, here=runs_here, **__: here)
            patch.setattr(Feeds, "end_loans", (lambda _: None) if runs_here else end)
            x = np.full(SHAPE, number, np.float32)
            np.testing.assert_array_equal(session.run({"x": x})["y"], 2 * x + 1)


def test_a_large_input_that_nothing_reads_is_fed_like_any_other() -> None:
    b = pl.GraphBuilder("half read")
    x, _ = b.input("x", "float32", SHAPE), b.input("spare", "float32", SHAPE)
    b.output("y", b.op("Relu", x))
    ones = np.ones(SHAPE, np.float32)
    assert (pl.run(b.build(), {"x": ones, "spare": ones})["y"] == 1).all()
