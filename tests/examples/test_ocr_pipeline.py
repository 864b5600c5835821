"""Images through three networks on several devices: what rapidocr reads, in the same order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

pytest.importorskip("onnx")
rapidocr = pytest.importorskip("rapidocr_onnxruntime")

import ocr_images  # noqa: E402 - needs the path that conftest.py adds
import ocr_pipeline  # noqa: E402
from ocr_pipeline import Result, Shapes  # noqa: E402
from PIL import Image, ImageDraw, ImageFilter, ImageFont  # noqa: E402 - rapidocr brings it

SIDE = 256
"""Less than is usual, for both sides: the letters are large, and this is quick."""
WAYS = {
    "worker and cpu": (["worker:0"], ["cpu"], Shapes(SIDE, 1, (4, 1))),
    "ort and worker": (["ort", "worker:0"], ["ort:1"], Shapes(SIDE, 1, (1,))),
}


def paper(*lines: str, size: tuple[int, int] = (384, 256), height: int = 28) -> Image.Image:
    """Draw lines of text, with the font that Pillow carries."""
    image = Image.new("RGB", size, "white")
    font = ImageFont.load_default(height)
    ImageDraw.Draw(image).multiline_text((24, 12), "\n".join(lines), "black", font, spacing=20)
    return image


def rotated(image: Image.Image, angle: float) -> Image.Image:
    return image.rotate(angle, Image.Resampling.BICUBIC, expand=angle == 90, fillcolor="white")


def noisy(image: Image.Image, much: float) -> Image.Image:
    noise = np.random.default_rng(0).normal(0, much, (*image.size[::-1], 3))
    return Image.fromarray((np.asarray(image) + noise).clip(0, 255).astype(np.uint8))


def columns() -> Image.Image:
    """Draw two lines of two columns, the right one a little higher."""
    image, right = paper("left one", "left two"), paper("right 1", "right 2", size=(200, 150))
    image.paste(right.crop((20, 14, 200, 150)), (250, 10))
    return image


IMAGES: dict[str, Callable[[], Image.Image]] = {
    "straight": lambda: paper("The quick brown fox", "jumps over 12 lazy dogs", "since 1885."),
    "slanted": lambda: rotated(noisy(paper("Order 2024-0871", "Total: 1,299.00"), 8), 4),
    "slanted back": lambda: rotated(paper("braided streams", "meet on time"), -7),
    "upside down": lambda: rotated(paper("Which way is up?", "This one is not."), 180),
    "on its side": lambda: rotated(paper("turned by a quarter"), 90),
    "noisy": lambda: noisy(paper("grains of sand", "everywhere", "in the wind"), 40),
    "blurred": lambda: paper("seen from afar", "at dusk").filter(ImageFilter.GaussianBlur(1.2)),
    "dark": lambda: Image.eval(paper("white on black", "at midnight"), lambda v: 255 - v),
    "grey": lambda: paper("ink that has faded").point(lambda v: 130 + v // 4).convert("L"),
    "columns": columns,
    "strip": lambda: paper("one long line, low and wide", size=(384, 44), height=24),
    "low": lambda: paper("low", size=(64, 26), height=14),
    "small print": lambda: paper(
        *(f"{i}. line of a list" for i in range(6)), size=(256, 256), height=17
    ),
    "blank": lambda: paper(),
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("images")
    for name, drawn in IMAGES.items():
        drawn().save(folder / f"{name}.png")
    return [folder / f"{name}.png" for name in IMAGES]


@pytest.fixture(scope="module")
def wanted(paths: list[Path]) -> list[Any]:
    """What the package reads: of each image, a box, text and score for each line."""
    reader = rapidocr.RapidOCR(det_limit_side_len=SIDE, intra_op_num_threads=1)
    return [reader(str(path))[0] or [] for path in paths]


async def read(way: str, paths: list[Path]) -> list[Result]:
    find, devices, shapes = WAYS[way]
    plans = ocr_pipeline.make_plans(find, devices)
    async with ocr_pipeline.open_reader(plans, shapes) as reader:
        return await gather(reader.read, paths, 4)


@pytest.mark.extended
@pytest.mark.parametrize(("way", "part"), [("worker and cpu", 1), ("ort and worker", 3)])
async def test_images_say_what_the_package_reads(
    way: str, part: int, paths: list[Path], wanted: list[Any]
) -> None:
    found = await read(way, paths[::part])
    assert [result.path for result in found] == paths[::part]
    assert [result.error for result in found] == [None] * len(found)
    for result, lines in zip(found, wanted[::part], strict=True):
        assert [line.text for line in result.lines] == [text for _, text, _ in lines]
        for line, (box, _, score) in zip(result.lines, lines, strict=True):
            np.testing.assert_allclose(line.box, box, atol=1)
            assert line.score == pytest.approx(score, abs=1e-3)


def test_the_package_reads_what_was_drawn(wanted: list[Any]) -> None:
    texts = [[text for _, text, _ in lines] for lines in wanted]
    read = dict(zip(IMAGES, texts, strict=True))
    assert read["straight"] == ["The quick brown fox", "jumps over 12 lazy dogs", "since 1885."]
    assert read["upside down"] == ["This one is not.", "Which way is up?"]
    assert read["columns"] == ["left one", "right 1", "left two", "right 2"]
    assert [name for name, lines in read.items() if not lines] == ["blank"]


async def test_a_file_that_is_no_image_does_not_stop_the_others(
    paths: list[Path], wanted: list[Any], tmp_path: Path
) -> None:
    words, gone = tmp_path / "words.png", tmp_path / "gone.png"
    words.write_text("words")
    low = paths[list(IMAGES).index("low")]
    plans = ocr_pipeline.make_plans(["cpu"], ["cpu"])
    async with ocr_pipeline.open_reader(plans, Shapes(SIDE, 1)) as reader:
        first, second, third = await gather(reader.read, [words, low, gone], 2)
    assert "cannot identify image" in str(first.error)
    assert [line.text for line in second.lines] == ["low"]
    assert isinstance(third.error, FileNotFoundError)


async def gather(work: Callable[[Any], Awaitable[Any]], items: Any, most: int) -> list[Any]:
    async with ocr_pipeline.in_order(work, items, most) as results:
        return [result async for result in results]


async def test_results_keep_the_order_of_the_items_whoever_is_first() -> None:
    ends = {name: trio.Event() for name in "abc"}
    done: list[str] = []

    async def work(name: str) -> str:
        await ends[name].wait()
        done.append(name)
        return name.upper()

    async def end_in_turn() -> None:
        for name in "cba":
            await wait_all_tasks_blocked()
            ends[name].set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_in_turn)
        assert await gather(work, "abc", 3) == ["A", "B", "C"]
    assert done == ["c", "b", "a"]


@pytest.mark.parametrize("most", [1, 2, 5])
async def test_as_many_items_are_under_way_as_allowed(most: int) -> None:
    under_way, seen = set[int](), list[int]()

    async def work(item: int) -> int:
        under_way.add(item)
        await wait_all_tasks_blocked()
        seen.append(len(under_way))
        under_way.remove(item)
        return item

    assert await gather(work, range(9), most) == list(range(9))
    assert max(seen) == most


async def test_who_leaves_early_cancels_what_is_under_way() -> None:
    cancelled: list[int] = []

    async def work(item: int) -> int:
        if item:
            try:
                await trio.sleep_forever()
            finally:
                cancelled.append(item)
        return item

    async with ocr_pipeline.in_order(work, range(9), 3) as results:
        assert await anext(results) == 0
    assert sorted(cancelled) == [1, 2]


async def test_what_work_raises_ends_everything() -> None:
    async def work(item: int) -> None:
        raise ValueError(f"item {item}")

    with pytest.raises(ExceptionGroup) as raised:
        await gather(work, [0], 3)
    assert raised.group_contains(ValueError, match="item 0")


def test_a_box_is_grown_by_its_area_over_its_perimeter() -> None:
    probability = np.zeros((1, 1, 160, 320), np.float32)
    probability[..., 50:70, 100:200] = 0.9
    probability[..., 100:102, 10:12] = 0.9  # a speck is no text
    boxes, count = ocr_images.find_boxes(probability, np.array([320, 640], np.int32))
    grown = 100 * 20 * 1.6 / (2 * (100 + 20))
    left, top, right, bottom = 100 - grown, 50 - grown, 200 + grown, 70 + grown
    corners = np.array([[left, top], [right, top], [right, bottom], [left, bottom]])
    assert count.tolist() == [1]
    np.testing.assert_allclose(boxes[0], 2 * corners, atol=4)
    assert not boxes[1:].any()


def test_faint_boxes_are_left_out() -> None:
    probability = np.zeros((1, 1, 160, 320), np.float32)
    probability[..., 50:70, 100:200] = 0.4
    _, count = ocr_images.find_boxes(probability, np.array([160, 320], np.int32))
    assert count.tolist() == [0]


def test_boxes_at_one_height_are_read_from_left_to_right() -> None:
    corners = {"b": (200, 12), "d": (5, 60), "a": (10, 18), "c": (300, 15)}
    boxes = {
        name: np.array([corner, (0, 0), (0, 0), (0, 0)], np.int32)
        for name, corner in corners.items()
    }
    ordered = ocr_images.in_reading_order(list(boxes.values()))
    assert [tuple(box[0].tolist()) for box in ordered] == [corners[name] for name in "abcd"]


def test_guesses_are_joined_and_blanks_part_repetitions() -> None:
    best = np.array([0, 1, 1, 0, 1, 2, 2, 0])
    probability = np.array([0.9, 0.5, 0.1, 0.9, 0.6, 0.7, 0.1, 0.9])
    text, score = ocr_images.text_of(best, probability, ["", "a", "b"])
    assert text == "aab"
    assert score == pytest.approx(0.6)
    assert ocr_images.text_of(np.zeros(3, int), probability[:3], ["", "a"]) == ("", 0.0)


@given(
    widths=st.lists(st.integers(8, 900), max_size=20),
    step=st.sampled_from([1, 32]),
    sizes=st.sampled_from([(1,), (1, 4), (6, 3, 1)]),
)
@settings(max_examples=25, deadline=None)
def test_every_line_is_read_once_in_a_width_that_holds_it(
    widths: list[int], step: int, sizes: tuple[int, ...]
) -> None:
    lines = [np.full((24, width, 3), 255, np.uint8) for width in widths]
    batches = list(ocr_images.for_reading(lines, sizes, step))
    assert sorted(index for batch in batches for index in batch.lines) == list(range(len(lines)))
    for batch in batches:
        count, _, height, width = batch.pixels.shape
        assert count == len(batch.lines)
        assert (count in sizes, height, width >= 320) == (True, 48, True)
        assert width % step == 0
        for index, pixels in zip(batch.lines, batch.pixels, strict=True):
            own = 2 * widths[index]
            assert own <= width
            assert pixels[:, :, :own].min() == 1
            assert not pixels[:, :, own:].any()


@pytest.mark.extended
def test_the_script_reads_what_it_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, *_ = ocr_pipeline.draw(tmp_path)
    assert ocr_pipeline.main([str(first), "--find", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert first.name in printed
    assert f": {ocr_pipeline.POEM[0]}\n" in printed
    assert "1 image in" in printed


def test_the_script_says_what_is_no_device(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        ocr_pipeline.main(["--find", "abacus:7"])
    assert ended.value.code == 2
    assert "abacus" in capsys.readouterr().err
