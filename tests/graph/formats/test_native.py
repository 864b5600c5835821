from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as arrays_of
import msgpack
import numpy as np
import pytest
from arrays import any_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from plait import Graph, GraphBuilder, TensorSpec
from plait.graph.core.attribute import Attribute, Kind
from plait.graph.core.operator import define, unregister_operator
from plait.graph.formats import native
from plait.graph.formats.container import ALIGNMENT, GRAPHS
from plait.graph.formats.header import DTYPES
from plait.graph.formats.native import (
    dump_bytes,
    is_native,
    load_bytes,
    load_native,
    save,
)
from plait.graph.functions.python import operator
from plait.graph.values.errors import GraphError, ParseError, ShapeError, UnknownOperatorError

pytestmark = pytest.mark.usefixtures("forget_operators")

PREFIX = struct.Struct("<8sIIQ")
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)
FLOATS = st.floats(allow_nan=False)

define(
    "test.EveryKind",
    inputs="x* ",
    outputs="y z?",
    attributes={
        "int": Attribute(Kind.INT, 1),
        "float": Attribute(Kind.FLOAT, 0.5),
        "bool": Attribute(Kind.BOOL, False),
        "string": Attribute(Kind.STRING, ""),
        "ints": Attribute(Kind.INTS, ()),
        "floats": Attribute(Kind.FLOATS, (1.0,)),
        "strings": Attribute(Kind.STRINGS, ("a",)),
        "dtype": Attribute(Kind.DTYPE, "int8"),
        "absent": Attribute(Kind.INT, None),
    },
)(lambda call: (TensorSpec(call.attributes["dtype"], ("n", 2)), TensorSpec("bool", None)))


@pytest.fixture(scope="module", autouse=True)
def _forget() -> Any:
    yield
    unregister_operator("test.EveryKind")


def small_graph(constant: Any = None) -> Graph:
    b = GraphBuilder("small")
    x = b.input("x", "float32", ("n", 2))
    w = b.constant(np.ones(2, "float32") if constant is None else constant, "w")
    b.output("y", b.op("Relu", b.op("Add", x, w, name="add") if constant is None else x))
    if constant is not None:
        b.output("kept", b.op("Identity", w))
    return b.build()


def with_header(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Return a file whose header was changed by someone who then got the checksum right."""
    _, version, _, nbytes = PREFIX.unpack_from(data)
    header = change(data[PREFIX.size : PREFIX.size + nbytes])
    start = -(-(PREFIX.size + nbytes) // ALIGNMENT) * ALIGNMENT
    prefix = PREFIX.pack(GRAPHS.magic, version, zlib.crc32(header), len(header))
    padding = bytes(-(PREFIX.size + len(header)) % ALIGNMENT)
    return prefix + header + padding + data[start:]


def scalars(data: bytes) -> list[Any]:
    _, _, _, nbytes = PREFIX.unpack_from(data)
    unpacker = msgpack.Unpacker()
    unpacker.feed(data[PREFIX.size : PREFIX.size + nbytes])
    return list(unpacker)


def with_scalars(data: bytes, change: Callable[[list[Any]], None]) -> bytes:
    def changed(_: bytes) -> bytes:
        listed = scalars(data)
        change(listed)
        return b"".join(map(msgpack.packb, listed))

    return with_header(data, changed)


def put(index: int, value: Any) -> Callable[[list[Any]], None]:
    def change(listed: list[Any]) -> None:
        listed[index] = value

    return change


def with_spec(graph: Graph, name: str, spec: TensorSpec) -> Graph:
    return replace(graph, tensors={**graph.tensors, name: spec})


def assert_equal(one: Graph, other: Graph) -> None:
    assert (one.name, one.inputs, one.outputs) == (other.name, other.inputs, other.outputs)
    assert one.nodes == other.nodes
    assert one.tensors == other.tensors
    assert list(one.constants) == list(other.constants)
    for name, array in one.constants.items():
        assert array.dtype == other.constants[name].dtype
        assert array.tobytes() == other.constants[name].tobytes()  # of NaN too, in any dtype


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Graphs with every kind of attribute, dtype and shape, of nodes that mean nothing."""
    b = GraphBuilder(draw(NAMES))
    dims = st.lists(st.integers(0, 9) | NAMES, max_size=3)
    dtypes = st.sampled_from(sorted(DTYPES))
    tensors = [
        b.input(f"in {i} {draw(NAMES)}", draw(dtypes | st.just("str")), draw(dims))
        for i in range(draw(st.integers(0, 3)))
    ]
    shapes = arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    for i in range(draw(st.integers(0, 3))):
        array = draw(any_bits(draw(dtypes), shapes))
        tensors.append(b.constant(array, f"constant {i} {draw(NAMES)}"))
    for i in range(draw(st.integers(1, 5))):
        chosen = draw(st.lists(st.sampled_from(tensors), max_size=3)) if tensors else []
        attributes: dict[str, Any] = draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "int": st.integers(-(2**63), 2**64 - 1),
                    "float": FLOATS,
                    "bool": st.booleans(),
                    "string": NAMES,
                    "ints": st.lists(st.integers(-9, 9), max_size=3),
                    "floats": st.lists(FLOATS, max_size=3),
                    "strings": st.lists(NAMES, max_size=3),
                    "dtype": dtypes,
                },
            )
        )
        outputs = [f"out {i}", draw(st.sampled_from(["", f"second {i}"]))]
        made = b.op("test.EveryKind", *chosen, outputs=outputs, **attributes)
        tensors += [name for name in made if name != ""]
    b.output("public", tensors[-1])
    return b.build()


@settings(max_examples=60)
@given(graphs())
def test_what_is_saved_is_what_is_loaded(graph: Graph) -> None:
    assert_equal(load_bytes(dump_bytes(graph)), graph)


@settings(max_examples=20)
@given(graphs())
def test_saving_twice_gives_the_same_bytes(graph: Graph) -> None:
    data = dump_bytes(graph)

    assert dump_bytes(load_bytes(data)) == data


def test_a_file_holds_the_dumped_bytes(tmp_path: Path) -> None:
    save(small_graph(), tmp_path / "small.plait")

    assert (tmp_path / "small.plait").read_bytes() == dump_bytes(small_graph())


def test_a_saved_graph_is_loaded_from_its_file(tmp_path: Path) -> None:
    save(small_graph(), tmp_path / "small.plait")

    assert_equal(load_native(tmp_path / "small.plait"), small_graph())


def test_constants_share_the_memory_they_are_loaded_from() -> None:
    data = dump_bytes(small_graph())
    (w,) = load_bytes(data).constants.values()

    assert np.shares_memory(w, np.frombuffer(data, np.uint8))
    assert not w.flags.owndata
    assert not w.flags.writeable


def test_constants_of_writable_bytes_cannot_be_written() -> None:
    (w,) = load_bytes(bytearray(dump_bytes(small_graph()))).constants.values()

    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        w.flags.writeable = True


def test_constants_start_at_multiples_of_a_cache_line() -> None:
    b = GraphBuilder()
    for length in (1, 3, 70):
        b.output(f"y{length}", b.op("Relu", b.constant(np.ones(length, "float16"), f"w{length}")))
    data = dump_bytes(b.build())
    start = np.frombuffer(data, np.uint8).ctypes.data

    for array in load_bytes(data).constants.values():
        assert (array.ctypes.data - start) % ALIGNMENT == 0


def test_constants_of_misplaced_bytes_are_copied_to_an_aligned_place() -> None:
    data = b"?" + dump_bytes(small_graph())
    (w,) = load_bytes(memoryview(data)[1:]).constants.values()

    assert w.flags.aligned
    assert not w.flags.writeable
    np.testing.assert_array_equal(w, [1, 1])


def test_constants_are_used_where_they_were_read_to(tmp_path: Path) -> None:
    path = tmp_path / "big.plait"
    big = np.arange(100_000, dtype=np.float32)
    save(small_graph(big), path)
    graph = load_native(path)
    path.unlink()

    assert not graph.constants["w"].flags.owndata
    np.testing.assert_array_equal(graph.constants["w"], big)


def test_a_constant_that_is_not_contiguous_is_saved_in_order() -> None:
    b = GraphBuilder()
    x = b.input("x", "int16", (3, 2))
    b.output("y", b.op("Add", x, np.arange(6, dtype="int16").reshape(2, 3).T))

    (loaded,) = load_bytes(dump_bytes(b.build())).constants.values()
    np.testing.assert_array_equal(loaded, [[0, 3], [1, 4], [2, 5]])


def test_python_operators_are_saved_by_name() -> None:
    @operator(name="test.double")
    def double(x: Any, *, times: int = 2) -> Any:
        return x * times

    b = GraphBuilder()
    b.output("y", b.call(double, b.input("x", "float32", (2,)), times=3))
    (node,) = load_bytes(dump_bytes(b.build())).nodes

    assert node.operator.function is double
    assert node.attributes == {"times": 3}


def test_operators_that_are_missing_are_all_named() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2,))
    for name in ("test.one", "test.two"):
        operator(name=name)(lambda x: x)
        x = b.op(name, x)
    b.output("y", x)
    data = dump_bytes(b.build())
    unregister_operator("test.one")
    unregister_operator("test.two")

    with pytest.raises(UnknownOperatorError, match=r"test\.one, test\.two") as caught:
        load_bytes(data, "model.plait")
    assert caught.value.at == "model.plait"
    assert "import the modules that define them" in str(caught.value.fix)


def test_nothing_is_imported_because_a_file_names_it() -> None:
    data = with_scalars(
        dump_bytes(small_graph()),
        lambda listed: listed.__setitem__(listed.index("Relu"), "this.Zen"),
    )

    with pytest.raises(UnknownOperatorError, match=r"this\.Zen"):
        load_bytes(data)


def test_saving_replaces_a_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "model.plait"
    path.write_bytes(b"before")
    save(small_graph(), path)

    assert load_native(path).name == "small"
    assert os.listdir(tmp_path) == ["model.plait"]


def test_a_save_that_fails_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.plait"
    path.write_bytes(b"before")
    broken = small_graph()
    object.__setattr__(broken, "outputs", ("nowhere",))

    with pytest.raises(GraphError, match="nowhere"):
        save(broken, path)
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["model.plait"]


def test_saving_into_a_folder_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="No such file or directory") as caught:
        save(small_graph(), tmp_path / "no" / "model.plait")
    assert "folder" in str(caught.value.fix)


def test_saving_below_a_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(GraphError, match="Not a directory"):
        save(small_graph(), tmp_path / "file" / "model.plait")


def test_saving_over_a_folder_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "model.plait").mkdir()

    with pytest.raises(GraphError, match=r"cannot write .*model\.plait"):
        save(small_graph(), tmp_path / "model.plait")
    assert os.listdir(tmp_path) == ["model.plait"]


def test_a_dtype_that_differs_by_machine_is_not_saved() -> None:
    if np.dtype("longdouble") == np.dtype("float64"):
        pytest.skip("long double is float64 here")
    with pytest.raises(GraphError, match=r"'w'.*longdouble|'w'.*float128"):
        dump_bytes(small_graph(np.ones(2, "longdouble")))


def test_an_attribute_of_more_than_64_bits_is_not_saved() -> None:
    b = GraphBuilder()
    b.output("y", b.op("test.EveryKind", name="huge", int=2**64))

    with pytest.raises(GraphError, match=r"18446744073709551616 cannot be saved") as caught:
        dump_bytes(b.build())
    assert "huge" in str(caught.value.at)


def test_text_that_is_no_unicode_is_not_saved() -> None:
    b = GraphBuilder("\ud800")
    b.output("y", b.op("Relu", b.input("x", "float32", ())))

    with pytest.raises(GraphError, match="cannot be saved"):
        dump_bytes(b.build())


def test_the_magic_is_recognized() -> None:
    assert is_native(dump_bytes(small_graph())[:8])
    assert not is_native(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize("data", [b"", b"\x89plait\r\n", b"\x89PNG\r\n\x1a\n" + bytes(99)])
def test_other_bytes_are_foreign(data: bytes) -> None:
    with pytest.raises(ParseError, match=r"not a \.plait file") as caught:
        load_bytes(data, "here")
    assert caught.value.at == "here"


def test_a_file_sent_as_text_says_so() -> None:
    with pytest.raises(ParseError, match="line ends"):
        load_bytes(dump_bytes(small_graph()).replace(b"\r\n", b"\n"))


def test_a_newer_version_says_so() -> None:
    data = bytearray(dump_bytes(small_graph()))
    data[8] = 2

    with pytest.raises(ParseError, match=r"version 2 of the format.*up to 1") as caught:
        load_bytes(data)
    assert caught.value.fix == "upgrade plait"


def test_a_file_cut_in_its_header_says_so() -> None:
    data = dump_bytes(small_graph())
    for length in (40, PREFIX.size + PREFIX.unpack_from(data)[3] - 1):
        with pytest.raises(ParseError, match=f"cut short: {length} bytes"):
            load_bytes(data[:length])


def test_a_file_cut_in_its_constants_names_the_first_one_missing() -> None:
    with pytest.raises(ParseError, match=r"bytes 0 to 8 are not in the file") as caught:
        load_bytes(dump_bytes(small_graph())[:-1], "model.plait")
    assert caught.value.at == "constant 'w', model.plait"


def test_a_damaged_header_fails_its_checksum() -> None:
    data = bytearray(dump_bytes(small_graph()))
    data[PREFIX.size + 2] ^= 1

    with pytest.raises(ParseError, match="checksum"):
        load_bytes(data)


def test_a_missing_or_empty_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="there is no such file"):
        load_native(tmp_path / "nowhere.plait")
    (tmp_path / "empty.plait").touch()
    with pytest.raises(ParseError, match="the file is empty"):
        load_native(tmp_path / "empty.plait")


def lie(data: bytes, changes: Sequence[tuple[Any, Any]]) -> bytes:
    """Return a file in whose header some values were replaced: the first that equals each."""

    def change(listed: list[Any]) -> None:
        for old, new in changes:
            listed[next(i for i, v in enumerate(listed) if v == old and type(v) is type(old))] = new

    return with_scalars(data, change)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("small", 7, "expected str, got int"),
        ("float32", "float33", "'float33' is not a dtype"),
        ("float32", "f4,f4", "is not a dtype"),
        ("n", -1, "-1 is not a dimension"),
        ("n", True, "True is not a dimension"),
        ("n", "", "'' is not a dimension"),
        ("n", 2.0, "2.0 is not a dimension"),
        (1, -1, "-1 is not a length"),
        (1, True, "expected int, got bool"),
        ("w", b"w", "expected str, got bytes"),
        (2, "two", "'two' is not a rank"),
        (2, True, "True is not a rank"),
        (8, 7, r"7 bytes cannot hold float32\[2\]"),
        (8, 2**62, "bytes cannot hold"),
        ("add", "", "no name"),
        ("w", "x", "'x' is defined twice"),
        ("w", "", "has no name"),
    ],
)
def test_a_header_that_lies_is_refused(old: Any, new: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        load_bytes(lie(dump_bytes(small_graph()), [(old, new)]), "model.plait")


def test_a_damaged_header_says_where() -> None:
    with pytest.raises(ParseError, match="the header is damaged") as caught:
        load_bytes(lie(dump_bytes(small_graph()), [("float32", "float33")]), "model.plait")
    assert str(caught.value.at).startswith("model.plait, byte ")


def test_a_length_beyond_the_header_is_refused_before_anything_is_allocated() -> None:
    with pytest.raises(ParseError, match="No more data"):
        load_bytes(with_scalars(dump_bytes(small_graph()), put(-2, 2**60)))


def test_a_constant_at_an_odd_offset_is_refused() -> None:
    b = GraphBuilder()
    x = b.op("Add", b.input("x", "float32", (16,)), np.ones(16, "float32"))
    b.output("y", b.op("Add", x, np.ones(1, "float32")))
    data = lie(dump_bytes(b.build()), [(0, 8)])

    with pytest.raises(ParseError, match="offset 8 is not a multiple of 64"):
        load_bytes(data)


def test_bytes_after_the_header_are_damage() -> None:
    data = with_header(dump_bytes(small_graph()), lambda header: header + b"\x00\x00")

    with pytest.raises(ParseError, match="2 bytes too many"):
        load_bytes(data)


@pytest.mark.parametrize(
    "spec",
    [TensorSpec("float32", ("n", 3)), TensorSpec("int8", ("n", 2)), TensorSpec("float32", (2,))],
)
def test_a_spec_that_contradicts_the_shape_rule_is_refused(
    spec: TensorSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = with_spec(small_graph(), "y", spec)
    with pytest.raises(GraphError, match="but its node gives"):
        dump_bytes(wrong)
    monkeypatch.setattr(native, "check", lambda graph: graph)
    data = dump_bytes(wrong)

    with pytest.raises(ParseError) as caught:
        load_bytes(data, "model.plait")
    assert (
        caught.value.what == f"tensor 'y' is declared as {spec}, but its node makes float32[n, 2]"
    )
    assert str(caught.value.at) == "node 'relu.1': Relu(add) -> y, model.plait"


@pytest.mark.parametrize(
    ("declared", "known"),
    [(("m", 2), ("m", 2)), ((5, 2), (5, 2)), (("n", "m"), ("n", 2)), (None, ("n", 2))],
)
def test_a_spec_and_the_shape_rule_complete_each_other(declared: Any, known: Any) -> None:
    data = dump_bytes(with_spec(small_graph(), "y", TensorSpec("float32", declared)))

    assert load_bytes(data).tensors["y"] == TensorSpec("float32", known)


def test_a_declared_shape_is_kept_where_the_rule_knows_none() -> None:
    graph = with_spec(small_graph(), "x", TensorSpec("float32", None))
    graph = with_spec(graph, "y", TensorSpec("float32", (4, 2)))

    assert load_bytes(dump_bytes(graph)).tensors["y"] == TensorSpec("float32", (4, 2))


def test_a_constant_whose_shape_does_not_fit_its_node_is_refused() -> None:
    data = lie(dump_bytes(small_graph(np.ones(2, "int8"))), [("int8", "bool")])

    with pytest.raises(ParseError, match="'kept' is declared as int8"):
        load_bytes(data)


def test_inputs_that_do_not_broadcast_name_the_file() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (4, 2))
    b.output("y", b.op("Add", x, np.ones(2, "float32"), name="add"))
    data = with_scalars(dump_bytes(b.build()), lambda listed: listed.__setitem__(6, 5))

    with pytest.raises(ShapeError, match="broadcast") as caught:
        load_bytes(data, "model.plait")
    assert "'add'" in str(caught.value.at)
    assert str(caught.value.at).endswith("model.plait")


def test_an_attribute_of_the_wrong_type_names_its_node() -> None:
    b = GraphBuilder()
    b.output("y", b.op("test.EveryKind", name="node"))
    data = lie(dump_bytes(b.build()), [(0.5, "half")])

    with pytest.raises(GraphError, match="'float' must be a number, got 'half'") as caught:
        load_bytes(data, "model.plait")
    assert "'node'" in str(caught.value.at)
    assert "model.plait" in str(caught.value.at)


def test_a_boolean_that_is_neither_true_nor_false_is_refused() -> None:
    data = bytearray(dump_bytes(small_graph(np.array([True, False]))))
    data[-2] = 2

    with pytest.raises(ParseError, match="neither 0 nor 1"):
        load_bytes(data)


def test_a_constant_beyond_numpys_dimensions_is_refused() -> None:
    def change(listed: list[Any]) -> None:
        start = listed.index("w")
        listed[start + 2 : start + 6] = [70, 0, *([1] * 69), 0, 0]

    with pytest.raises(ParseError, match=r"constant|dimension"):
        load_bytes(with_scalars(dump_bytes(small_graph()), change))
