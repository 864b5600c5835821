from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any

import numpy as np
import plait as pl
import pytest
from plait.graph.building.builder import GraphBuilder
from plait.graph.core.attribute import REQUIRED, Kind
from plait.graph.core.operator import find_operator
from plait.graph.formats.native import dump_bytes, load_bytes
from plait.graph.functions.python import check_results, get_operator, operator
from plait.graph.values.errors import GraphError, OperatorError, ShapeError
from plait.graph.values.tensor import Array, Dim, TensorSpec

pytestmark = pytest.mark.usefixtures("forget_operators")

SPEC = TensorSpec("float32", (2,))


def one_input(shape: tuple[Dim, ...] = (4, 6), dtype: str = "float32") -> GraphBuilder:
    b = GraphBuilder("g")
    b.input("x", dtype, shape)
    return b


def spec_of_output(b: GraphBuilder, tensor: str) -> TensorSpec:
    b.output("y", tensor)
    return b.build().tensors["y"]


def test_a_decorated_function_is_still_the_function() -> None:
    @operator(SPEC, name="test.double")
    def double(x: Array) -> Array:
        return x * 2

    assert double(3) == 6


def test_a_function_is_registered_under_module_and_name() -> None:
    @operator(SPEC)
    def double(x: Array) -> Array:
        return x * 2

    name = f"{double.__module__}.{double.__qualname__}"
    assert find_operator(name).function is double
    assert get_operator(double).name == name


def test_a_name_given_wins() -> None:
    @operator(SPEC, name="test.double")
    def double(x: Array) -> Array:
        return x * 2

    assert get_operator(double).name == "test.double"


def test_two_functions_cannot_share_a_name() -> None:
    operator(SPEC, name="test.double")(lambda x: x)
    with pytest.raises(GraphError, match=r"'test\.double' is defined twice"):
        operator(SPEC, name="test.double")(lambda x: x)


def test_positional_parameters_are_inputs_and_keywords_attributes() -> None:
    @operator(SPEC, name="test.f")
    def f(a: Array, b: Array | None = None, *rest: Array, by: float = 2.0, n: int) -> Array:
        return a

    made = get_operator(f)
    assert made.inputs == "a b? rest*"
    assert {name: (a.kind, a.default) for name, a in made.attributes.items()} == {
        "by": (Kind.FLOAT, 2.0),
        "n": (Kind.INT, made.attributes["n"].default),
    }
    assert repr(made.attributes["n"].default) == "REQUIRED"


@pytest.mark.parametrize(
    ("default", "kind"),
    [
        (True, Kind.BOOL),
        (1, Kind.INT),
        (0.5, Kind.FLOAT),
        ("max", Kind.STRING),
        ((True, False), Kind.BOOLS),
        ((1, 2), Kind.INTS),
        ((0.5,), Kind.FLOATS),
        (("a",), Kind.STRINGS),
    ],
)
def test_a_default_tells_the_kind_of_an_attribute(default: Any, kind: Kind) -> None:
    def f(x: Array, *, value: Any = default) -> Array:
        return x

    operator(SPEC, name="test.f")(f)
    attribute = get_operator(f).attributes["value"]
    assert (attribute.kind, attribute.default) == (kind, default)


@pytest.mark.parametrize("default", [None, (), [1, 2], {"a": 1}, np.float32(1)])
def test_a_default_that_no_file_could_hold_is_refused(default: Any) -> None:
    def f(x: Array, *, value: Any = default) -> Array:
        return x

    with pytest.raises(OperatorError) as caught:
        operator(SPEC, name="test.f")(f)
    assert str(caught.value) == (
        "parameter 'value' of operator 'test.f' cannot be an attribute\n"
        "  fix: annotate it, or give a default: an int, float, bool, str, or a tuple of those"
    )


def annotated(
    x: Array,
    *,
    flags: Sequence[bool],
    sizes: list[int] = (),  # type: ignore[assignment]
    pair: tuple[float, float] = (1, 2),
    words: tuple[str, ...] | None = None,
    count: int | None,
    scale: float = 1,
    label: str = None,  # type: ignore[assignment]  # noqa: RUF013
) -> Array:
    return x * scale


def test_an_annotation_tells_the_kind_of_an_attribute_and_whether_it_may_be_left_out() -> None:
    operator(SPEC, name="test.f")(annotated)
    found = {n: (a.kind, a.default) for n, a in get_operator(annotated).attributes.items()}
    assert found == {
        "flags": (Kind.BOOLS, REQUIRED),
        "sizes": (Kind.INTS, ()),
        "pair": (Kind.FLOATS, (1.0, 2.0)),
        "words": (Kind.STRINGS, None),
        "count": (Kind.INT, None),
        "scale": (Kind.FLOAT, 1.0),
        "label": (Kind.STRING, None),
    }


def test_arrays_of_booleans_and_absent_attributes_reach_the_function() -> None:
    seen: list[Any] = []

    @operator(SPEC, name="test.seen")
    def see(x: Array, *, flags: Sequence[bool], count: int | None = None) -> Array:
        seen.extend((flags, count))
        return x

    b = one_input((2,))
    b.output("y", b.call(see, "x", flags=np.array([True, False])))
    loaded = load_bytes(dump_bytes(b.build()))
    pl.run(loaded, {"x": np.zeros(2, "float32")})
    assert seen == [(True, False), None]
    with pytest.raises(OperatorError, match="'flags' must be a sequence of booleans, got 3"):
        b.call(see, "x", flags=3)


@pytest.mark.parametrize(
    "annotation",
    ["np.ndarray", "int | str", "tuple[int, str]", "tuple[Annotated[int, []], ...]", "Unknown"],
)
def test_a_type_that_no_attribute_is_of_is_refused(annotation: str) -> None:
    namespace: dict[str, Any] = {"np": np, "Annotated": Annotated}
    exec(f"from __future__ import annotations\ndef f(x, *, value: {annotation}): ...", namespace)
    with pytest.raises(OperatorError, match="parameter 'value'"):
        operator(SPEC, name="test.f")(namespace["f"])


def test_a_default_that_is_not_of_the_annotated_type_is_refused() -> None:
    def f(x: Array, *, value: int = 0.5) -> Array:  # type: ignore[assignment]
        return x

    with pytest.raises(OperatorError, match=r"'value' must be an integer, got 0\.5"):
        operator(SPEC, name="test.f")(f)


def test_an_attribute_without_default_or_annotation_is_refused() -> None:
    def f(x, *, value):  # type: ignore[no-untyped-def]
        return x

    with pytest.raises(OperatorError, match="parameter 'value'"):
        operator(SPEC, name="test.f")(f)


@pytest.mark.parametrize("word", ["name", "outputs"])
def test_an_attribute_cannot_have_a_name_that_the_builder_uses(word: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def f(x, *, {word}='a'): return x", namespace)
    with pytest.raises(OperatorError) as caught:
        operator(SPEC, name="test.f")(namespace["f"])
    assert str(caught.value) == (
        f"operator 'test.f' cannot have an attribute {word!r}\n"
        "  fix: rename the parameter: GraphBuilder.call uses this word itself"
    )


def test_collected_keywords_are_refused() -> None:
    def f(x: Array, **options: int) -> Array:
        return x

    with pytest.raises(OperatorError) as caught:
        operator(SPEC, name="test.f")(f)
    assert str(caught.value) == (
        "operator 'test.f' takes **options\n  fix: list its attributes as keyword-only parameters"
    )


def test_a_function_without_outputs_is_refused() -> None:
    with pytest.raises(OperatorError) as caught:
        operator([], name="test.f")(lambda x: None)
    assert str(caught.value) == (
        "operator 'test.f' declares no output\n"
        "  fix: return something, if only a flag: a node is known by what it writes"
    )


def test_a_function_that_is_no_operator_is_refused() -> None:
    def plain(x: Array) -> Array:
        return x

    with pytest.raises(OperatorError) as caught:
        one_input().call(plain, "x")
    assert str(caught.value) == (
        f"{plain.__qualname__} is not an operator\n  fix: decorate it with @plait.operator(outputs)"
    )


def test_something_unhashable_is_no_operator_either() -> None:
    with pytest.raises(OperatorError, match=r"\[\] is not an operator"):
        get_operator([])  # type: ignore[arg-type]


def test_a_call_of_one_output_gives_its_name() -> None:
    @operator(name="test.f")
    def f(x: Array) -> Array:
        return x

    b = one_input()
    assert b.call(f, "x") == "f.0"
    assert b.call(f, "x", outputs=["z"]) == "z"


def test_a_call_of_several_outputs_gives_their_names() -> None:
    @operator([SPEC, SPEC], name="test.f")
    def f(x: Array) -> tuple[Array, Array]:
        return x, x

    b = one_input()
    assert b.call(f, "x", name="twin") == ("twin.0", "twin.1")
    assert b.call(f, "x", outputs=["a", "b"]) == ("a", "b")


def test_a_call_passes_attributes_on() -> None:
    @operator(name="test.f")
    def f(x: Array, *, by: float = 1.0, mode: str = "up") -> Array:
        return x

    b = one_input()
    b.output("y", b.call(f, "x", by=3))
    assert b.build().nodes[0].attributes == {"by": 3.0, "mode": "up"}


def test_an_attribute_may_be_called_function() -> None:
    @operator(name="test.f")
    def f(x: Array, *, function: str = "tanh") -> Array:
        return x

    b = one_input()
    b.output("y", b.call(f, "x", function="sin"))
    assert b.build().nodes[0].attributes == {"function": "sin"}


def test_effects_are_kept() -> None:
    @operator(SPEC, name="test.f", effects=True)
    def f(x: Array) -> Array:
        return x

    assert get_operator(f).effects


def test_without_declaration_an_output_is_the_inputs_broadcast_together() -> None:
    @operator(name="test.f")
    def f(x: Array, y: Array) -> Array:
        return x + y

    b = one_input((4, 1))
    made = b.call(f, "x", np.ones((1, 6)))
    assert spec_of_output(b, made) == TensorSpec("float64", (4, 6))


def test_without_declaration_or_inputs_there_is_nothing_to_infer_from() -> None:
    @operator(name="test.f")
    def f() -> Array:
        return np.zeros(3)

    with pytest.raises(ShapeError) as caught:
        GraphBuilder().call(f)
    assert caught.value.what == "test.f has no inputs to infer its output from"
    assert caught.value.fix == "declare outputs"


def test_a_source_needs_no_inputs() -> None:
    @operator(SPEC, name="test.f")
    def f() -> Array:
        return np.zeros(2, np.float32)

    b = GraphBuilder()
    assert spec_of_output(b, b.call(f)) == SPEC


def test_symbols_of_the_inputs_are_bound_in_the_outputs() -> None:
    @operator(
        TensorSpec("uint8", ("w", "h", 3)),
        inputs=[TensorSpec("float32", ("h", "w"))],
        name="test.f",
    )
    def f(x: Array) -> Array:
        return x

    b = one_input((4, "width"))
    assert spec_of_output(b, b.call(f, "x")) == TensorSpec("uint8", ("width", 4, 3))


def test_an_unbound_symbol_stays_one() -> None:
    @operator(TensorSpec("uint8", ("found",)), name="test.f")
    def f(x: Array) -> Array:
        return x

    b = one_input()
    assert spec_of_output(b, b.call(f, "x")) == TensorSpec("uint8", ("found",))


def test_a_callable_declaration_sees_specs_and_attributes() -> None:
    def shape(x: TensorSpec, *, times: int) -> TensorSpec:
        assert x.shape is not None
        return TensorSpec(x.dtype, (times, *x.shape))

    @operator(shape, name="test.f")
    def f(x: Array, *, times: int = 2) -> Array:
        return np.stack([x] * times)

    b = one_input()
    assert spec_of_output(b, b.call(f, "x", times=5)) == TensorSpec("float32", (5, 4, 6))


def test_a_callable_declaration_may_give_several_specs() -> None:
    @operator(lambda x: [x, SPEC], n_outputs=2, name="test.f")
    def f(x: Array) -> tuple[Array, Array]:
        return x, x[0, :2]

    b = one_input()
    assert spec_of_output(b, b.call(f, "x")[1]) == SPEC


@pytest.mark.parametrize(
    ("dtype", "shape", "wanted"),
    [
        ("uint8", ("n", "n"), TensorSpec("float32", ("n", "n"))),
        ("float32", (4,), TensorSpec("float32", ("n", "n"))),
        ("float32", (4, 5), TensorSpec("float32", ("n", "n"))),
        ("float32", (4, 4), TensorSpec("float32", ("n", 3))),
        ("uint8", (4, 4), TensorSpec("float32", None)),
    ],
)
def test_an_input_unlike_its_declaration_is_refused(
    dtype: str, shape: tuple[Dim, ...], wanted: TensorSpec
) -> None:
    @operator(SPEC, inputs=[wanted], name="test.f")
    def f(x: Array) -> Array:
        return x

    with pytest.raises(ShapeError) as caught:
        one_input(shape, dtype).call(f, "x", name="n")
    got = TensorSpec(dtype, shape)
    assert str(caught.value) == (
        f"input 0 of test.f must be {wanted}, got {got}\n"
        f"  at:  node 'n': test.f(x) -> n, inputs {got}\n"
        "  fix: insert a Cast or Reshape, or correct the operator's declaration"
    )


def test_one_symbol_is_one_length_across_inputs() -> None:
    vector = TensorSpec("float32", ("n",))

    @operator(vector, inputs=[vector, vector], name="test.f")
    def f(x: Array, y: Array) -> Array:
        return x + y

    b = one_input((4,))
    with pytest.raises(ShapeError, match=r"input 1 of test\.f must be float32\[n\]"):
        b.call(f, "x", np.ones(5, np.float32))


def test_an_absent_optional_input_is_not_matched() -> None:
    @operator(SPEC, inputs=[SPEC, TensorSpec("uint8", ())], name="test.f")
    def f(x: Array, y: Array | None = None, z: Array | None = None) -> Array:
        return x

    b = one_input((2,))
    assert spec_of_output(b, b.call(f, "x", None, "x")) == SPEC


def test_inputs_of_any_rank_match_a_declaration_without_shape() -> None:
    @operator(SPEC, inputs=[TensorSpec("float32")], name="test.f")
    def f(x: Array) -> Array:
        return x

    b = one_input((1, 2, 3))
    assert spec_of_output(b, b.call(f, "x")) == SPEC


def test_a_result_that_matches_is_returned_as_arrays() -> None:
    (array,) = check_results("node 'n'", np.array([1, 2], np.float32), [SPEC])
    np.testing.assert_array_equal(array, np.array([1, 2], np.float32))


def test_a_numpy_scalar_is_an_array_of_rank_zero() -> None:
    (array,) = check_results("node 'n'", np.float32(1), [TensorSpec("float32", ())])
    assert array.shape == ()


def test_what_is_returned_for_an_absent_output_will_do() -> None:
    arrays = check_results("node 'n'", (np.array([1, 2], np.float32), "anything"), [SPEC, None])
    assert len(arrays) == 2


@pytest.mark.parametrize(
    ("results", "got"),
    [((), "0 arrays"), ((np.ones(2),) * 3, "3 arrays"), (None, "None"), ([1, 2], "one list")],
    ids=str,
)
def test_a_wrong_number_of_results_is_refused(results: Any, got: str) -> None:
    with pytest.raises(GraphError) as caught:
        check_results("node 'n'", results, [SPEC, SPEC])
    assert str(caught.value) == (
        f"the function returned {got}, 2 arrays were declared\n"
        "  at:  node 'n'\n"
        "  fix: return a tuple of 2 for every item: as many as an operator declares, or a "
        "pipeline's example gave"
    )


@pytest.mark.parametrize(
    ("result", "text", "fix"),
    [
        (np.ones(2, np.float64), "float64[2]", "convert it: np.asarray(result, 'float32'), or"),
        (np.ones(3, np.float32), "float32[3]", "return this shape; for lengths that vary, give"),
        (None, "None", "return an array of numbers for every item"),
        (np.array(["a", "b"]), "str[2]", "return an array of numbers for every item"),
        (np.array(["a", "b"], np.dtypes.StringDType()), "str[2]", "return an array of numbers"),
        (np.ones((2, 1), np.float32), "float32[2, 1]", "return this shape; for lengths that"),
    ],
)
def test_a_result_unlike_its_declaration_is_refused(result: Any, text: str, fix: str) -> None:
    with pytest.raises(GraphError) as caught:
        check_results("node 'n'", result, [SPEC])
    assert str(caught.value).startswith(
        f"output 0 of the function is {text}, declared was float32[2]\n"
        f"  at:  node 'n'\n  fix: {fix}"
    )


async def asynchronous(x: Any) -> Any:
    return x


class AsyncRun:
    async def run(self, x: Any) -> Any:
        return x


def test_a_class_computes_with_an_ordinary_method() -> None:
    with pytest.raises(OperatorError, match=r"AsyncRun\.run is asynchronous"):
        operator()(AsyncRun)


def test_shapes_are_told_by_an_ordinary_function() -> None:
    with pytest.raises(OperatorError, match="given by an async or generator function"):
        operator(asynchronous)(asynchronous)


@pytest.mark.parametrize(
    ("given", "effects", "limit"),
    [(None, False, None), (None, True, 1), (3, True, 3), (1, False, 1)],
)
def test_an_async_function_is_called_so_many_times_at_once(
    given: int | None, effects: bool, limit: int | None
) -> None:
    name = f"test_python_operator.limited_{given}_{effects}"
    operator(name=name, concurrency=given, effects=effects)(asynchronous)
    made = get_operator(asynchronous)
    assert (made.is_async, made.concurrency) == (True, limit)


@pytest.mark.parametrize("given", [0, -1, True, 1.5, "2"])
def test_a_concurrency_that_is_no_count_is_refused(given: Any) -> None:
    with pytest.raises(OperatorError, match="give a whole number of calls from 1"):
        operator(name="test_python_operator.uncounted", concurrency=given)(asynchronous)


def test_devices_call_ordinary_functions_one_at_a_time_anyway() -> None:
    with pytest.raises(OperatorError, match="its function is not async"):
        operator(name="test_python_operator.ordinary", concurrency=2)(lambda x: x)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(OperatorError, match="is not a function"):
        operator()(partial(max, 1))


def test_a_notebook_cell_may_define_its_operator_again(forget_operators: None) -> None:
    cell = "@operator(name='cell.f')\ndef f(x):\n    return x + {}"
    scope: dict[str, Any] = {"__name__": "__main__", "operator": operator}
    for number in (1, 2):
        exec(cell.format(number), scope)
    function = find_operator("cell.f").function
    assert function is not None
    assert function(1) == 3


def test_two_functions_of_a_module_may_not_define_an_operator(forget_operators: None) -> None:
    scope: dict[str, Any] = {"__name__": "some.module", "operator": operator}
    exec("@operator(name='some.f')\ndef f(x): ...", scope)
    with pytest.raises(GraphError, match="defined twice"):
        exec("@operator(name='some.f')\ndef g(x): ...", scope)


@pytest.mark.parametrize("outputs", ["float32", ["float32"], [TensorSpec("int8", ()), None]])
def test_outputs_that_are_no_specs_are_refused(outputs: Any) -> None:
    with pytest.raises(OperatorError, match=r"the outputs of operator 'test\.f' are"):
        operator(name="test.f", outputs=outputs)(lambda x: x)


@pytest.mark.parametrize("given", ["gpu", "", None, 3])
def test_arrays_of_an_unknown_place_are_refused(given: Any) -> None:
    with pytest.raises(OperatorError, match="the arrays of operator") as caught:
        operator(name="test_python_operator.nowhere", arrays=given)(lambda x: x)
    assert caught.value.fix == "use one of 'host', 'cuda'"


def test_what_is_awaited_or_yields_rows_takes_arrays_of_the_host() -> None:
    def rows(x: Array) -> Iterator[Array]:
        yield x

    for function, told in ((asynchronous, "is async"), (rows, "is a generator")):
        with pytest.raises(OperatorError, match=told):
            operator(name="test_python_operator.rows", arrays="cuda")(function)


def test_arrays_lie_on_the_host_unless_told_otherwise() -> None:
    operator(name="test_python_operator.on_host")(lambda x: x)
    operator(name="test_python_operator.on_gpu", arrays="cuda")(lambda x: x)
    found = [find_operator(f"test_python_operator.on_{place}").arrays for place in ("host", "gpu")]
    assert found == ["host", "cuda"]
