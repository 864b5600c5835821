"""Lengths that functions decide: calls of one function have their own, or are called alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

Array = np.ndarray[Any, Any]
SAMPLES = pl.TensorSpec("float32", ("samples",))


@pl.operator(pl.TensorSpec("float32", ("n", 2)), inputs=[SAMPLES], name="test_own_lengths.pairs")
def pairs(samples: Array, *, hop: int = 1) -> Iterator[Array]:
    for start in range(0, len(samples) - 1, hop):
        yield samples[start : start + 2]


@pl.operator(
    lambda x: pl.TensorSpec(x.dtype, ("n",)), inputs=[SAMPLES], name="test_own_lengths.positive"
)
def positive(samples: Array) -> Array:
    return samples[samples > 0]


@pl.operator(pl.TensorSpec("int64", ("n",)), inputs=[SAMPLES], name="test_own_lengths.places")
def places(samples: Array) -> Array:
    return np.flatnonzero(samples > 0)


@pl.operator(pl.TensorSpec("float32", ("n",)), name="test_own_lengths.sorted")
def in_order(samples: Array) -> Array:
    return np.sort(samples)


def called_twice(function: Any, **options: Any) -> tuple[pl.GraphBuilder, Any, Any]:
    b = pl.GraphBuilder("twice")
    left, right = (b.input(name, "float32", (f"{name} samples",)) for name in ("left", "right"))
    one = b.call(function, left, name="one")
    return b, one, b.call(function, right, name="other", **options)


def shapes(b: pl.GraphBuilder, *tensors: str) -> list[Any]:
    return [(b.spec(tensor).shape or ("?",))[0] for tensor in tensors]


@given(
    samples=st.lists(st.integers(-3, 3), min_size=4, max_size=9),
    function=st.sampled_from([pairs, positive]),
    calls=st.integers(2, 4),
)
def test_a_call_on_the_result_of_another_one_has_its_own_length(
    samples: list[int], function: Any, calls: int
) -> None:
    b = pl.GraphBuilder("chain")
    fed = np.array(samples, np.float32)
    last, wanted = b.input("samples", "float32", ("samples",)), fed
    names, is_pairs = [], function is pairs
    for _ in range(calls):
        called = b.call(function, last)
        names += shapes(b, called)
        last = b.op("Reshape", called, np.array([-1])) if is_pairs else called
        wanted = np.ravel(list(pairs(wanted))) if is_pairs else wanted[wanted > 0]
    b.output("y", last)
    assert len(set(names)) == len(names)
    bounds = dict.fromkeys(names, (0, 256))
    found = pl.run(pl.plan(b.build(), bounds=bounds), {"samples": fed})["y"]
    np.testing.assert_array_equal(found, wanted)


def test_functions_without_declared_inputs_keep_the_lengths_of_these() -> None:
    b = pl.GraphBuilder("chain")
    first = b.call(in_order, b.call(positive, b.input("samples", "float32", ("samples",))))
    assert shapes(b, first, b.call(in_order, first)) == ["n", "n"]


@given(
    left=st.lists(st.integers(-3, 3), min_size=1, max_size=9),
    right=st.lists(st.integers(-3, 3), min_size=1, max_size=9),
    function=st.sampled_from([pairs, positive]),
)
def test_calls_of_one_function_may_yield_different_counts(
    left: list[int], right: list[int], function: Any
) -> None:
    b, one, other = called_twice(function)
    assert shapes(b, one, other) == ["n", "n.2"]
    b.output("left pairs", one)
    b.output("right pairs", other * 1.0)
    bounds = {"left samples": 9, "right samples": 9, "n": 9}
    plan = pl.plan(b.build(), bounds=bounds)
    assert plan.computed["n.2"] == plan.computed["n"] == (0, 9)
    fed = [np.array(one, "float32") for one in (left, right)]
    found = pl.run(plan, {"left": fed[0], "right": fed[1]})
    for name, samples in zip(("left pairs", "right pairs"), fed, strict=True):
        given: Any = function(samples)
        assert found[name].tolist() == [np.asarray(row).tolist() for row in given]


def test_bounds_may_differ_and_lengths_have_names_that_users_give() -> None:
    b, one, other = called_twice(pairs, lengths={"n": "right pairs"})
    assert shapes(b, one, other) == ["n", "right pairs"]
    b.output("one", one)
    b.output("other", other)
    bounds = {"left samples": 9, "right samples": 9, "n": 8, "right pairs": 2}
    plan = pl.plan(b.build(), bounds=bounds)
    assert plan.computed == {"left samples": (1, 9), "right samples": (1, 9)} | {
        "n": (0, 8),
        "right pairs": (0, 2),
    }
    samples = {name: np.zeros(5, "float32") for name in ("left", "right")}
    with pytest.raises(pl.PlaitError, match="'right pairs': 4"):
        pl.run(plan, samples)


def test_lengths_that_are_declared_to_be_equal_are() -> None:
    b, one, other = called_twice(pairs, lengths={"n": "n"})
    assert shapes(b, one, other) == ["n", "n"]
    b.output("sum", one + other)
    plan = pl.plan(b.build(), bounds={"left samples": 9, "right samples": 9, "n": 8})
    samples = {name: np.ones(5, "float32") for name in ("left", "right")}
    assert pl.run(plan, samples)["sum"].tolist() == [[2, 2]] * 4
    with pytest.raises(pl.PlaitError, match="'n' is"):
        pl.run(plan, {**samples, "right": np.ones(7, "float32")})


def test_functions_that_declare_one_symbol_have_one_length_and_what_is_fed_has_its_own() -> None:
    b = pl.GraphBuilder("both")
    x = b.input("x", "float32", ("samples",))
    assert shapes(b, b.call(positive, x), b.call(places, x)) == ["n", "n"]
    b = pl.GraphBuilder("fed")
    x = b.input("x", "float32", ("n",))
    assert shapes(b, b.call(in_order, x), b.call(in_order, x)) == ["n", "n"]


def test_included_graphs_keep_what_is_equal_in_them_and_nothing_else() -> None:
    b, _, _ = called_twice(pairs)
    for name in ("one", "other"):
        b.output(f"y {name}", name)
    kept = {"n": "kept"}
    values, at = (b.call(each, "left", lengths=kept) for each in (positive, places))
    b.output("y", values + b.op("Cast", at, to="float32"))
    inner = b.build()
    outer = pl.GraphBuilder("outer")
    found = []
    for turn in range(2):
        fed = {
            name: outer.input(f"{name}{turn}", "float32", (f"s{turn}",)) for name in inner.inputs
        }
        made = outer.include(inner, fed, prefix=f"{turn}/")
        found.append(shapes(outer, *made.values()))
        for name, tensor in made.items():
            outer.output(f"{name}{turn}", tensor)
    assert found[0] == ["n", "n.2", "kept"]
    assert len({*found[0], *found[1]}) == 6
    assert pl.check(outer.build())


def test_saved_graphs_keep_the_names(tmp_path: Any) -> None:
    b, one, other = called_twice(pairs, hop=2)
    b.output("one", one)
    b.output("other", other)
    pl.save(b.build(), tmp_path / "twice.plait")
    loaded = pl.load(tmp_path / "twice.plait")
    assert [str(loaded.tensors[name]) for name in loaded.outputs] == [
        "float32[n, 2]",
        "float32[n.2, 2]",
    ]


def test_a_length_that_the_function_does_not_decide_is_refused() -> None:
    with pytest.raises(pl.OperatorError, match=r"decides no length 'samples'(.|\n)*it decides: n"):
        called_twice(pairs, lengths={"samples": "n"})
