from __future__ import annotations

import contextlib
import io
import pickle
from pathlib import Path

import numpy as np
import plait as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.cli.inputs import (
    Given,
    ItemSource,
    make_random_array,
    parse_input,
    propose_lengths,
    read_arrays,
)
from plait.cli.parsing import CommandError, parse_devices, parse_pins, parse_shapes
from plait.graph.values.dtypes import dtype_of
from plait.graph.values.errors import PlaitError


@pytest.fixture
def graph() -> pl.Graph:
    b = pl.GraphBuilder("affine")
    x, y = b.input("x", "float32", ("n", 3)), b.input("y", "float32", ("n", 3))
    b.output("sum", b.op("Add", x, y))
    return b.build()


@pytest.fixture(scope="module")
def graph_of_one_input() -> pl.Graph:
    b = pl.GraphBuilder()
    b.output("y", b.op("Relu", b.input("x", "float32", (2,))))
    return b.build()


def feeds(graph: pl.Graph, *texts: str, fill: bool = False, seed: int = 0) -> ItemSource:
    return ItemSource(graph, [parse_input(text) for text in texts], seed=seed, fill=fill)


def save(file: Path, *shape: int, value: float = 1.0) -> Path:
    np.save(file, np.full(shape, value, np.float32))
    return file


def test_devices_are_separated_by_commas() -> None:
    assert parse_devices("worker:0, cpu") == ("worker:0", "cpu")


@pytest.mark.parametrize("text", ["", "cpu,", ",cpu", "a,,b"])
def test_an_empty_device_name_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="empty name"):
        parse_devices(text)


def test_a_pin_is_split_at_its_last_equals_sign() -> None:
    assert parse_pins(["a=b=cpu", "enc.*=worker:0"]) == {"a=b": "cpu", "enc.*": "worker:0"}


@pytest.mark.parametrize("text", ["a", "a=", "=cpu", ""])
def test_a_malformed_pin_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="is not NODE=DEVICE"):
        parse_pins([text])


def test_a_shape_is_a_list_of_lengths() -> None:
    assert parse_shapes(["x=1,3,48", "y=7", "s="]) == {"x": (1, 3, 48), "y": (7,), "s": ()}


@pytest.mark.parametrize("text", ["x", "=1,2", "x=1,-2", "x=1,,2", "x=a", "x=1.5", "x=1x2"])
def test_a_malformed_shape_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="is not NAME=LENGTH"):
        parse_shapes([text])


@pytest.mark.parametrize("text", ["", "x=", "=x.npy"])
def test_a_malformed_input_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="is not NAME=FILE"):
        parse_input(text)


def test_random_feeds_one_input_or_all() -> None:
    assert (parse_input("x=random"), parse_input("random")) == (Given("x", ()), Given(None, ()))


def test_a_file_that_exists_is_not_split_at_an_equals_sign(tmp_path: Path) -> None:
    file = save(tmp_path / "a=b.npy", 1)
    assert parse_input(str(file)) == Given(None, (file,))
    assert parse_input(f"x={file}") == Given("x", (file,))


def test_a_folder_is_a_sequence_of_its_array_files_in_order(tmp_path: Path) -> None:
    files = [save(tmp_path / f"{name}.npy", 1) for name in ("b", "a", "c")]
    (tmp_path / "notes.txt").write_text("not an array")
    assert parse_input(f"x={tmp_path}") == Given("x", tuple(sorted(files)), is_sequence=True)


def test_a_pattern_is_a_sequence_even_of_one_file(tmp_path: Path) -> None:
    file = save(tmp_path / "only.npy", 1)
    assert parse_input(f"x={tmp_path}/on*.npy") == Given("x", (file,), is_sequence=True)


@pytest.mark.parametrize("text", ["x=nowhere.npy", "nowhere.npz", "x=no*.npy", "y" * 5000])
def test_an_input_without_files_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="finds no file"):
        parse_input(text)


def test_an_unnamed_npy_feeds_the_only_input(tmp_path: Path, graph_of_one_input: pl.Graph) -> None:
    assert list(read_arrays(save(tmp_path / "a.npy", 2), None, graph_of_one_input)) == ["x"]


def test_an_unnamed_npy_is_refused_where_there_are_several_inputs(
    tmp_path: Path, graph: pl.Graph
) -> None:
    with pytest.raises(CommandError, match="which input it feeds") as caught:
        read_arrays(save(tmp_path / "a.npy", 2), None, graph)
    assert "x, y" in str(caught.value)


def test_a_named_npz_gives_the_array_of_that_name_or_its_only_one(
    tmp_path: Path, graph: pl.Graph
) -> None:
    np.savez(tmp_path / "two.npz", x=np.zeros(2), z=np.ones(2))
    np.savez(tmp_path / "one.npz", z=np.ones(2))
    assert read_arrays(tmp_path / "two.npz", "x", graph)["x"].sum() == 0
    assert read_arrays(tmp_path / "one.npz", "x", graph)["x"].sum() == 2
    with pytest.raises(CommandError, match="has no array 'y'") as caught:
        read_arrays(tmp_path / "two.npz", "y", graph)
    assert "x, z" in str(caught.value)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_a_dtype_that_numpy_lacks_comes_back_from_a_file(dtype: str, tmp_path: Path) -> None:
    b = pl.GraphBuilder("extension")
    x = b.input("x", dtype, (3,))
    b.output("y", b.op("Identity", x))
    saved = np.array([1, -2, 0.5], dtype_of(dtype))
    np.save(tmp_path / "x.npy", saved)
    found = read_arrays(tmp_path / "x.npy", "x", b.build())["x"]
    assert found.dtype == saved.dtype
    assert found.tobytes() == saved.tobytes()


def npz_bytes() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, x=np.arange(50.0))
    return file.getvalue()


@given(
    content=st.one_of(
        st.binary(max_size=80),
        st.binary(max_size=80).map(b"PK\3\4".__add__),
        st.binary(max_size=80).map(b"\x93NUMPY\x01\x00v\x00".__add__),
    )
)
def test_foreign_files_raise_our_error(
    content: bytes, tmp_path_factory: pytest.TempPathFactory, graph_of_one_input: pl.Graph
) -> None:
    file = tmp_path_factory.getbasetemp() / "foreign.npy"
    file.write_bytes(content)
    with pytest.raises(CommandError, match="cannot read"):
        read_arrays(file, None, graph_of_one_input)


@given(cut=st.integers(0, len(npz_bytes())), position=st.integers(0, 400), byte=st.integers(0, 255))
def test_a_damaged_npz_raises_nothing_but_our_error(
    cut: int,
    position: int,
    byte: int,
    tmp_path_factory: pytest.TempPathFactory,
    graph_of_one_input: pl.Graph,
) -> None:
    file = tmp_path_factory.getbasetemp() / "damaged.npz"
    content = bytearray(npz_bytes())
    content[position % len(content)] = byte
    file.write_bytes(content[:cut])
    with contextlib.suppress(CommandError):
        arrays = read_arrays(file, None, graph_of_one_input)
        assert all(isinstance(array, np.ndarray) for array in arrays.values())


def test_objects_are_never_unpickled(tmp_path: Path, graph: pl.Graph) -> None:
    np.save(tmp_path / "o.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(CommandError, match="holds Python objects") as caught:
        read_arrays(tmp_path / "o.npy", "x", graph)
    assert "allow_pickle" not in str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        ("float16", 0, 1),
        ("float64", 0, 1),
        ("uint8", 0, 255),
        ("int8", -128, 127),
        ("int64", 0, 99),
        ("bool", 0, 1),
    ],
)
def test_random_numbers_fill_the_range_of_their_dtype(dtype: str, low: float, high: float) -> None:
    made = make_random_array(pl.TensorSpec(dtype, (100, 100)), np.random.default_rng(0))
    assert (made.dtype, made.shape) == (np.dtype(dtype), (100, 100))
    assert low <= made.min() <= low + 0.02 * (high - low)
    assert high - 0.02 * (high - low) <= made.max() <= high


def test_random_complex_numbers_have_both_parts() -> None:
    made = make_random_array(pl.TensorSpec("complex64", (9,)), np.random.default_rng(0))
    assert made.dtype == np.complex64
    assert made.real.std() > 0
    assert made.imag.std() > 0


def test_random_items_are_the_same_for_the_same_seed_and_number(graph: pl.Graph) -> None:
    one, same, other = (feeds(graph, "random", seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.item(3)["x"], same.item(3)["x"])
    assert not np.array_equal(one.item(3)["x"], one.item(4)["x"])
    assert not np.array_equal(one.item(3)["x"], other.item(3)["x"])


@pytest.mark.parametrize(
    ("dtype", "shape", "expected"),
    [
        ("float32", ("batch", 3, "height", "width"), {"batch": 1, "height": 320, "width": 320}),
        ("float32", ("?0", 3, "?1", "?2"), {"?0": 1, "?1": 320, "?2": 320}),
        ("float32", ("d", 3, 48, "w0"), {"d": 1, "w0": 320}),
        ("uint8", ("n", "rows", "columns", 3), {"n": 1, "rows": 320, "columns": 320}),
        ("int64", ("batch_size", "sequence_length"), {"batch_size": 1, "sequence_length": 64}),
        ("int64", ("batch", "src_len"), {"batch": 1, "src_len": 64}),
        ("float32", ("b", "num_samples"), {"b": 1, "num_samples": 1}),
        ("float32", ("b", "audio_samples"), {"b": 1, "audio_samples": 16_000}),
        ("float32", ("k", 7), {"k": 1}),
    ],
)
def test_open_lengths_are_proposed_from_names_and_positions(
    dtype: str, shape: tuple[int | str, ...], expected: dict[str, int]
) -> None:
    assert propose_lengths([pl.TensorSpec(dtype, shape)], {}) == expected
    assert propose_lengths([pl.TensorSpec(dtype, shape)], expected) == {}


def test_a_symbol_of_two_inputs_has_one_length() -> None:
    specs = [pl.TensorSpec("float32", shape) for shape in [("p", 2), (1, 3, "p", 8)]]
    assert propose_lengths(specs, {}) == {"p": 320}


def test_a_symbol_that_nothing_binds_is_proposed_and_noted_once(graph: pl.Graph) -> None:
    made = feeds(graph, "random")
    assert [array.shape for array in (made.item(0) | made.item(1)).values()] == [(1, 3), (1, 3)]
    assert made.notes == [
        "input 'x': n = 1 proposed; --shape x=1,3 sets others",
        "input 'y': n = 1 proposed; --shape y=1,3 sets others",
    ]


def test_random_numbers_take_the_shape_that_a_file_gives_to_a_symbol(
    tmp_path: Path, graph: pl.Graph
) -> None:
    made = feeds(graph, f"x={save(tmp_path / 'x.npy', 5, 3)}", "y=random")
    assert made.item(0)["y"].shape == (5, 3)
    assert made.notes == []


def test_an_input_that_is_not_given_is_named(graph: pl.Graph) -> None:
    with pytest.raises(CommandError, match="nothing is given for y"):
        feeds(graph, "x=random")


def test_an_input_that_is_not_given_is_random_where_that_is_wanted(graph: pl.Graph) -> None:
    assert list(feeds(graph, "x=random", fill=True).item(0)) == ["x", "y"]


def test_an_unknown_input_is_refused_with_the_known_ones(graph: pl.Graph) -> None:
    with pytest.raises(CommandError, match="no input 'z'") as caught:
        feeds(graph, "z=random", fill=True)
    assert "x, y" in str(caught.value)


def test_an_input_given_twice_is_refused(graph: pl.Graph) -> None:
    with pytest.raises(CommandError, match="'x' is given twice"):
        feeds(graph, "x=random", "x=random", fill=True)


def test_an_unnamed_npz_feeds_all_its_arrays(tmp_path: Path, graph: pl.Graph) -> None:
    np.savez(tmp_path / "xy.npz", x=np.zeros((1, 3), "f4"), y=np.ones((1, 3), "f4"))
    item = feeds(graph, str(tmp_path / "xy.npz")).item(0)
    assert {name: array.sum() for name, array in item.items()} == {"x": 0, "y": 3}


def test_each_file_of_a_folder_is_an_item_and_a_single_file_is_in_all(
    tmp_path: Path, graph: pl.Graph
) -> None:
    (tmp_path / "xs").mkdir()
    for i in range(3):
        save(tmp_path / "xs" / f"{i}.npy", 1, 3, value=i)
    single = save(tmp_path / "y.npy", 1, 3, value=7)
    made = feeds(graph, f"x={tmp_path / 'xs'}", f"y={single}")
    assert made.count == 3
    items = [made.item(i) for i in range(3)]
    assert [(item["x"][0, 0], item["y"][0, 0]) for item in items] == [(0, 7), (1, 7), (2, 7)]


def test_folders_of_different_lengths_are_refused(tmp_path: Path, graph: pl.Graph) -> None:
    for name, count in (("xs", 2), ("ys", 3)):
        (tmp_path / name).mkdir()
        for i in range(count):
            save(tmp_path / name / f"{i}.npy", 1, 3)
    with pytest.raises(CommandError, match="different numbers of files: x 2, y 3"):
        feeds(graph, f"x={tmp_path / 'xs'}", f"y={tmp_path / 'ys'}")


@pytest.fixture
def graph_of_bytes() -> pl.Graph:
    b = pl.GraphBuilder("bytes")
    b.output("y", b.op("Identity", b.input("file", "uint8", ("bytes",))))
    return b.build()


@pytest.mark.parametrize("content", [b"", b"RIFF", b"PK\3\4", b"\x93NUMPY"])
@pytest.mark.parametrize("given", ["file={}", "{}", "file={}/*.wav", "{}/"])
def test_any_file_feeds_its_bytes_to_an_input_of_bytes(
    given: str, content: bytes, tmp_path: Path, graph_of_bytes: pl.Graph
) -> None:
    file = tmp_path / "wav" / "0.wav"
    file.parent.mkdir()
    file.write_bytes(content)
    (file.parent / "folder.wav").mkdir()
    (file.parent / ".hidden").write_bytes(b"no")
    place = file.parent if "/" in given else file
    fed = feeds(graph_of_bytes, given.format(place)).item(0)["file"]
    assert (fed.dtype, fed.tobytes()) == (np.uint8, content)


def test_arrays_feed_their_values_to_an_input_of_bytes(
    tmp_path: Path, graph_of_bytes: pl.Graph
) -> None:
    np.save(tmp_path / "x.npy", np.arange(3, dtype=np.uint8))
    (tmp_path / "notes.txt").write_text("about them")
    made = feeds(graph_of_bytes, f"file={tmp_path}")
    assert (made.count, made.item(0)["file"].tolist()) == (1, [0, 1, 2])


@pytest.mark.parametrize("content", [b"RIFF", pickle.dumps({}), b""])
def test_what_other_inputs_take_is_said(
    content: bytes, tmp_path: Path, graph_of_one_input: pl.Graph
) -> None:
    (tmp_path / "x.wav").write_bytes(content)
    with pytest.raises(CommandError, match="it holds no arrays") as caught:
        read_arrays(tmp_path / "x.wav", "x", graph_of_one_input)
    assert "give a .npy or .npz file" in str(caught.value.fix)
    assert "pickle" not in str(caught.value)


def test_objects_are_fed_from_python_before_any_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.jpg").write_bytes(b"damaged")
    with pl.pipeline(len, example="abc") as pipe, pytest.raises(CommandError) as caught:
        feeds(pipe.graph, f"item={tmp_path / 'x.jpg'}")
    assert "the input 'item' takes Python objects" in caught.value.what
    assert "pipe.run" in str(caught.value.fix)


def test_a_damaged_file_of_a_folder_fails_its_item_only(tmp_path: Path, graph: pl.Graph) -> None:
    (tmp_path / "0.npy").write_bytes(b"damaged")
    save(tmp_path / "1.npy", 1, 3)
    made = feeds(graph, f"x={tmp_path}", "y=random")
    with pytest.raises(CommandError, match=r"cannot read .*0\.npy"):
        made.item(0)
    assert made.item(1)["x"].shape == (1, 3)


def test_an_array_of_the_wrong_shape_is_refused(tmp_path: Path, graph: pl.Graph) -> None:
    with pytest.raises(PlaitError, match=r"input 'x' must be float32\[n, 3\]"):
        feeds(graph, f"x={save(tmp_path / 'x.npy', 5, 4)}", "y=random").item(0)


def test_an_input_of_unknown_rank_needs_a_shape() -> None:
    spec = pl.TensorSpec("float32", None)
    graph = pl.Graph("g", ("x",), ("x",), (), {"x": spec}, {})
    with pytest.raises(CommandError, match="rank of input 'x' is not known") as caught:
        feeds(graph, "x=random").item(0)
    assert "--shape x=" in str(caught.value)
