"""Values and images on the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from command_line import assert_mistake, plait


def model(folder: Path, dtype: str, shape: tuple[int | str, ...]) -> str:
    """Save a model that yields its one input."""
    b = pl.GraphBuilder("same")
    b.output("y", b.op("Identity", b.input("x", dtype, shape)))
    pl.save(b.build(), folder / "model.plait")
    return "model.plait"


def fed(folder: Path, dtype: str, shape: tuple[int | str, ...], value: str) -> Any:
    ran = plait(
        folder, "run", model(folder, dtype, shape), "--input", f"x={value}", "--output", "y.npz"
    )
    assert ran.exit_code == 0, ran.stderr
    return np.load(folder / "y.npz")["y"]


@pytest.mark.parametrize(
    ("dtype", "shape", "value", "expected"),
    [
        ("int64", (), "16000", 16000),
        ("float32", (), "0.5", 0.5),
        ("float16", (), "-1e-3", np.float16(-1e-3)),
        ("bool", (), "true", True),
        ("int64", (1,), "16000", [16000]),
        ("float32", ("batch", 1), "2", [[2]]),
        ("float32", (3,), "[1, 2.5, 3]", [1, 2.5, 3]),
        ("int8", (2, 2), "[[1,2],[3,-4]]", [[1, 2], [3, -4]]),
        ("float32", (), "NaN", np.nan),
    ],
)
def test_a_number_or_list_is_fed_in_the_dtype_of_the_input(
    tmp_path: Path, dtype: str, shape: tuple[int | str, ...], value: str, expected: Any
) -> None:
    found = fed(tmp_path, dtype, shape, value)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.array(expected, dtype))


@pytest.mark.parametrize(
    ("dtype", "shape", "value", "text"),
    [
        ("int64", (), "0.5", "--input x=0.5 is no int64"),
        ("uint8", (2,), "[1, 300]", "is no uint8"),
        ("float32", (2,), "[[1], [2, 3]]", "is no float32"),
        ("float32", (2,), "[1, 2, 3]", "float32[2]"),
        ("float32", (2,), "1", "float32[2]"),
        ("float32", (2,), '"text"', "is no float32: text stands in quotes, numbers do not"),
        ("float32", (2,), '[1, "2"]', "is no float32: text"),
        ("str", (2,), "text", '["a"]'),
        ("float32", (2,), "[1, null]", "finds no file"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(
    tmp_path: Path, dtype: str, shape: tuple[int, ...], value: str, text: str
) -> None:
    ran = plait(tmp_path, "run", model(tmp_path, dtype, shape), "--input", f"x={value}")
    assert_mistake(ran, text)


@pytest.mark.parametrize(
    ("shape", "value", "told"),
    [(("n",), '["one", "two"]', "['oneone' 'twotwo']"), (("n", 1), '"one"', "[['oneone']]")],
)
def test_text_is_written_in_quotes(
    tmp_path: Path, shape: tuple[int | str, ...], value: str, told: str
) -> None:
    pytest.importorskip("onnxruntime")
    b = pl.GraphBuilder("joined")
    x = b.input("x", "str", shape)
    b.output("y", b.op("StringConcat", x, x))
    pl.save(b.build(), tmp_path / "joined.plait")
    ran = plait(tmp_path, "run", "joined.plait", "--devices", "ort", "--input", f"x={value}")
    assert told in ran.stdout, ran.stderr
    wrong = plait(tmp_path, "run", "joined.plait", "--devices", "ort", "--input", "x=[1]")
    assert_mistake(wrong, "--input x=[1] is no str: text stands in quotes")


def test_a_file_of_that_name_goes_before_a_number(tmp_path: Path) -> None:
    with (tmp_path / "7").open("wb") as file:
        np.save(file, np.float32(3))
    assert fed(tmp_path, "float32", (), "7") == 3


def picture(folder: Path, mode: str, size: tuple[int, int] = (4, 3)) -> Any:
    """Write an image, and return its pixels as rows of columns of channels."""
    images = pytest.importorskip("PIL.Image")
    channels = {"L": 1, "RGB": 3, "RGBA": 4}[mode]
    pixels = np.random.default_rng(3).integers(0, 256, (size[1], size[0], channels), np.uint8)
    images.fromarray(pixels[:, :, 0] if mode == "L" else pixels).save(folder / "image.png")
    return pixels


@pytest.mark.parametrize(
    ("mode", "dtype", "shape", "order"),
    [
        ("RGB", "uint8", ("h", "w", 3), (0, 1, 2)),
        ("RGB", "float32", (1, 3, "h", "w"), (2, 0, 1)),
        ("RGB", "float32", (3, 3, 4), (2, 0, 1)),
        ("RGBA", "float16", ("batch", "h", "w", 4), (0, 1, 2)),
        ("L", "uint8", (1, 1, "h", "w"), (2, 0, 1)),
        ("L", "float32", (3, 4), (0, 1, 2)),
    ],
)
def test_an_image_is_fed_as_its_pixels_in_the_layout_of_the_input(
    tmp_path: Path, mode: str, dtype: str, shape: tuple[int | str, ...], order: tuple[int, ...]
) -> None:
    wanted = picture(tmp_path, mode).transpose(order).astype(dtype)
    found = fed(tmp_path, dtype, shape, "image.png")
    assert (found.ndim, found.dtype) == (len(shape), dtype)
    np.testing.assert_array_equal(found.ravel(), wanted.ravel())


def test_an_input_of_bytes_still_gets_the_file(tmp_path: Path) -> None:
    picture(tmp_path, "RGB")
    found = fed(tmp_path, "uint8", ("n",), "image.png")
    assert found.tobytes() == (tmp_path / "image.png").read_bytes()


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((1, 3, 224, 224), "is 4 x 3 pixels, and input 'x' is float32[1, 3, 224, 224]"),
        (("a", "b", "c", "d"), "which axis has the channels of an image is not known"),
        ((1, 3, 3, 5), "is 4 x 3 pixels"),
    ],
)
def test_an_image_that_does_not_fit_is_refused(
    tmp_path: Path, shape: tuple[int | str, ...], text: str
) -> None:
    picture(tmp_path, "RGB")
    ran = plait(tmp_path, "run", model(tmp_path, "float32", shape), "--input", "x=image.png")
    assert_mistake(ran, text)


@pytest.mark.parametrize("is_number", [True, False])
def test_objects_that_a_pipeline_returns_are_shown(tmp_path: Path, is_number: bool) -> None:
    b = pl.GraphBuilder("net")
    b.output("y", b.input("x", "float32", (2,)) * 2.0)
    end = (lambda y: float(y[0])) if is_number else (lambda y: {"first": float(y[0])})
    with pl.pipeline(b.build(), end, example=np.ones(2, "float32")) as pipe:
        pipe.plan().save(tmp_path / "pipe.plan")
        command = ("run", "pipe.plan", "--input", "item=[3,4]")
        ran = plait(tmp_path, *command)
        assert (ran.exit_code, "6.0" in ran.stdout) == (0, True), ran.stderr
        written = plait(tmp_path, *command, "--output", "out.npz")
    if is_number:
        assert np.load(tmp_path / "out.npz")["result"] == 6
    else:
        assert_mistake(written, "a result is a Python object", "pipe.run(value)")


def test_a_damaged_image_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    (tmp_path / "image.png").write_bytes(b"\x89PNG nothing")
    ran = plait(tmp_path, "run", model(tmp_path, "uint8", (2, 2, 3)), "--input", "x=image.png")
    assert_mistake(ran, "cannot read image.png")


@pytest.mark.parametrize("missing", ["PIL", "PIL.Image"])
def test_without_pillow_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    (tmp_path / "image.png").write_bytes(b"")
    monkeypatch.delitem(sys.modules, "PIL.Image", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    ran = plait(tmp_path, "run", model(tmp_path, "uint8", (2, 2, 3)), "--input", "x=image.png")
    assert_mistake(ran, "which Pillow reads", "[images]")


def test_a_folder_of_images_is_a_stream(tmp_path: Path) -> None:
    (tmp_path / "frames").mkdir()
    for number in range(3):
        picture(tmp_path, "RGB")
        (tmp_path / "image.png").rename(tmp_path / "frames" / f"{number}.png")
    name = model(tmp_path, "uint8", ("h", "w", 3))
    ran = plait(tmp_path, "stream", name, "--input", "x=frames", "--output", "out")
    assert ran.exit_code == 0, ran.stderr
    assert len(list((tmp_path / "out").iterdir())) == 3


def test_a_profile_ends_with_its_summary(tmp_path: Path) -> None:
    b = pl.GraphBuilder("m")
    b.output("y", b.input("x", "float32", (64, 64)).tanh())
    pl.save(b.build(), tmp_path / "m.plait")
    ran = plait(tmp_path, "profile", "m.plait", "--repeat", "5")
    last = ran.stdout.rstrip().splitlines()[-1]
    assert last.startswith("5 items, ")
    for said in (
        "items/s",
        "median",
        "most of an item's time",
        "'tanh.0' (Tanh on cpu) takes 100% of the time of all nodes",
    ):
        assert said in last
