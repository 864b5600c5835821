"""Readers of files and devices: content, stamps and errors; what is left open fails any test."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from media_files import RATE, write_image, write_sound, write_video
from plait import sources

STAMPS_MS = [0, 40, 80, 200, 240]
SHADES = [0, 50, 100, 150, 200]


@pytest.fixture
def video(tmp_path: Path) -> Path:
    return write_video(tmp_path / "grey.mkv", SHADES, STAMPS_MS)


def brightest(shape: tuple[int | str, ...]) -> pl.Plan:
    b = pl.GraphBuilder("brightest")
    values = b.op("Cast", b.input("frame", "uint8", shape), to="float32")
    b.output("y", b.op("ReduceMax", values, keepdims=0))
    return pl.plan(b.build(), max_in_flight=2)


def test_frames_of_a_video_have_its_pixels_and_times(video: Path) -> None:
    frames = list(sources.read_video(video))
    assert [frame.stamp for frame in frames] == [stamp / 1000 for stamp in STAMPS_MS]
    assert {frame.value.shape for frame in frames} == {(16, 32, 3)}
    assert [np.unique(frame.value).tolist() for frame in frames] == [[shade] for shade in SHADES]
    scaled = next(sources.read_video(video, "frame", size=(4, 6)))
    assert scaled.value["frame"].shape == (4, 6, 3)


def test_every_session_streams_a_reader_and_closes_it(video: Path) -> None:
    plan = brightest((16, 32, 3))
    expected = [(stamp / 1000, shade) for stamp, shade in zip(STAMPS_MS, SHADES, strict=True)]

    def reader() -> pl.sources.Reader:
        return sources.read_video(video, "frame")

    async def under_trio(**arguments: Any) -> list[Any]:
        async with pl.Session(plan) as session:
            async with session.stream(reader(), **arguments) as results:
                return [(item.stamp, item["y"]) async for item in results]

    async def under_asyncio() -> list[Any]:
        async with pl.AsyncioSession(plan) as session:
            async with session.stream(reader()) as results:
                await anext(results)  # and leave it
            async with session.stream(reader()) as results:
                return [(item.stamp, item["y"]) async for item in results]

    with pl.BlockingSession(plan) as session:
        for keep in (None, 9):
            results = session.stream(reader(), keep=keep)
            assert [(item.stamp, item["y"]) for item in results] == expected
        with session.stream(reader()) as results:
            next(results)
    assert trio.run(under_trio) == expected
    assert trio.run(lambda: under_trio(keep=9)) == expected
    assert asyncio.run(under_asyncio()) == expected


def test_two_videos_of_different_rates_are_joined(video: Path, tmp_path: Path) -> None:
    slow = write_video(tmp_path / "slow.mkv", [7, 8, 9], [0, 100, 210])
    cameras = {"left": sources.read_video(video), "right": sources.read_video(slow)}
    joined = pl.join(cameras, tolerance_s=0.021)
    pairs = [(one.stamp, one.value["left"].max(), one.value["right"].max()) for one in joined]
    assert pairs == [(0.0, 0, 7), (0.08, 100, 8), (0.2, 150, 9)]
    assert joined.status().missing == {"right": 2}


FRAMES, PERIOD_MS, OFFSET_MS, BEHIND = 120, 40, 7, 5


def arrivals(stamps: Sequence[int], chance: random.Random) -> list[int]:
    """Return the order in which frames come of which some are late, by five others."""
    late = [BEHIND + 0.5 if chance.random() < 0.05 else 0 for _ in stamps]
    return sorted(range(len(stamps)), key=lambda place: place + late[place])


def in_order(frames: Iterable[pl.Stamped], order: Sequence[int]) -> Iterator[pl.Stamped]:
    """Yield frames of a file in the order in which a network would bring them."""
    read, source = dict[int, pl.Stamped](), enumerate(frames)
    for place in order:
        while place not in read:
            number, frame = next(source)
            read[number] = frame
        yield read.pop(place)


@pytest.mark.parametrize("lateness_ms", [0, (BEHIND + 2) * PERIOD_MS + 1])
def test_videos_with_late_and_missing_frames_are_joined_as_by_hand(
    lateness_ms: int, tmp_path: Path
) -> None:
    chance, stamps, orders = random.Random(4), {}, {}
    for name, offset in (("left", 0), ("right", OFFSET_MS)):
        kept = [n for n in range(FRAMES) if chance.random() > 0.02]
        stamps[name] = [n * PERIOD_MS + offset for n in kept]
        orders[name] = arrivals(stamps[name], chance)
        write_video(tmp_path / f"{name}.mkv", range(len(kept)), stamps[name])

    def in_time(name: str) -> list[int]:
        came = [stamps[name][place] for place in orders[name]]
        return sorted(t for n, t in enumerate(came) if t >= max(came[: n + 1]) - lateness_ms)

    expected = []
    for stamp in in_time("left"):
        near = [other for other in in_time("right") if abs(other - stamp) <= 10]
        if near:
            (other,) = near
            gap = stamps["left"].index(stamp) - stamps["right"].index(other)
            expected.append((stamp, float(gap)))

    b = pl.GraphBuilder("gap")
    shape = 16, 32, 3
    left, right = (
        b.op("ReduceMean", b.op("Cast", b.input(name, "uint8", shape), to="float32"), keepdims=0)
        for name in ("left", "right")
    )
    b.output("y", b.op("Sub", left, right))
    videos = {
        name: in_order(sources.read_video(tmp_path / f"{name}.mkv"), orders[name])
        for name in ("left", "right")
    }
    joined = pl.join(videos, tolerance_s=0.0105, lateness_s=lateness_ms / 1000)
    with pl.BlockingSession(pl.plan(b.build(), max_in_flight=3)) as session:
        found = [
            (round((item.stamp or 0) * 1000), float(item["y"])) for item in session.stream(joined)
        ]
    assert found == expected
    status = joined.status()
    late = {name: len(stamps[name]) - len(in_time(name)) for name in stamps}
    assert late["left"] + late["right"] == 0 if lateness_ms else min(late.values()) > 0
    assert (status.matched, status.late) == (len(expected), late)
    assert status.missing["right"] > 0


@pytest.mark.parametrize(("chunk", "hop"), [(100, None), (64, 64), (64, 16), (1000, 10)])
def test_chunks_of_sound_are_its_samples(tmp_path: Path, chunk: int, hop: int | None) -> None:
    samples = np.random.default_rng(0).uniform(-1, 1, (250, 2)).astype(np.float32)
    path = write_sound(tmp_path / "noise.wav", samples)
    chunks = list(sources.read_sound(path, chunk, hop=hop, rate=RATE))
    padded = np.concatenate([samples, np.zeros((chunk, 2), np.float32)])
    step = hop or chunk
    for number, one in enumerate(chunks):
        assert one.stamp == number * step / RATE
        assert np.array_equal(one.value, padded[number * step :][:chunk])
    assert (len(chunks) - 1) * step + chunk >= len(samples)  # the last sample is in one
    assert len(chunks) == 1 or (len(chunks) - 2) * step + chunk < len(samples)


def test_a_microphone_gives_chunks_of_one_length_at_one_rate() -> None:
    """FFmpeg makes the sound in place of a device: a note of 400 Hz for half a second."""
    note = "sine=frequency=400:sample_rate=44100:duration=0.5"
    chunks = list(sources.read_microphone(note, 1600, "sound", format="lavfi"))
    assert [round(one.stamp, 6) for one in chunks] == [0.0, 0.1, 0.2, 0.3]
    for one in chunks:
        heard = one.value["sound"]
        assert (heard.shape, heard.dtype) == ((1600, 1), np.float32)
        # 40 whole waves in a chunk: all of the spectrum is in one line.
        assert np.argmax(np.abs(np.fft.rfft(heard[:, 0]))) == 40
    stereo = next(sources.read_microphone(note, 10, channels=2, format="lavfi"))
    assert stereo.value.shape == (10, 2)


def test_images_are_read_in_order_and_decoded_on_a_worker(tmp_path: Path) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (3, 8, 6, 3), dtype=np.uint8)
    for name, picture in zip("cab", pictures, strict=True):
        write_image(tmp_path / f"{name}.png", picture)
    (tmp_path / "bad.png").write_bytes(b"no image")
    b = pl.GraphBuilder("images")
    file = b.input("file", "uint8", ("nbytes",))
    decoded = b.call(sources.decode_image, file, height=8, width=6, name="decode")
    b.output("pixels", decoded)
    plan = pl.plan(b.build(), ["cpu", "worker:0"], pin={"decode": "worker:0"})
    with pl.BlockingSession(plan) as session:
        items = list(session.stream(sources.read_image_files(tmp_path, "file", pattern="*.png")))
        assert [item.stamp for item in items] == [0, 1, 2, 3]
        assert isinstance(items[2].error, pl.KernelError)
        for item, picture in zip((items[0], items[1], items[3]), pictures[[1, 2, 0]], strict=True):
            assert np.array_equal(item["pixels"], picture)


def test_images_are_scaled_and_made_upright(tmp_path: Path) -> None:
    from PIL import Image

    grey = Image.new("L", (40, 20), 77)
    exif = grey.getexif()
    exif[0x0112] = 6  # on its side
    grey.save(tmp_path / "grey.jpg", exif=exif)
    content = next(sources.read_image_files(tmp_path)).value
    assert sources.decode_image(content, height=40, width=20).shape == (40, 20, 3)
    assert np.abs(sources.decode_image(content, height=5, width=9).astype(int) - 77).max() <= 1


def test_damaged_and_missing_files_are_told(tmp_path: Path, video: Path) -> None:
    content = video.read_bytes()
    half = tmp_path / "half.mkv"
    half.write_bytes(b"\0" * 64 + content[64:])
    text = tmp_path / "text.wav"
    text.write_text("no sound")
    raw = tmp_path / "samples.raw"
    raw.write_bytes(bytes(100))
    sound = write_sound(tmp_path / "quiet.wav", np.zeros((10, 1)))
    empty = tmp_path / "empty"
    empty.mkdir()
    for reader, message in (
        (sources.read_video(tmp_path / "none.mp4"), "none.mp4 cannot be opened: No such file"),
        (sources.read_video(half), "half.mkv cannot be opened"),
        (sources.read_video(sound), "quiet.wav has no video in it"),
        (sources.read_sound(text, 10), "text.wav cannot be read"),
        (sources.read_sound(raw, 10), "samples.raw cannot be read"),
        (sources.read_sound(tmp_path / "none.wav", 10), "none.wav cannot be read"),
        (sources.read_sound(sound, 10, rate=44100), "has 8,000 samples per second, not 44,100"),
        (sources.read_image_files(tmp_path / "none"), "none is not a folder"),
        (sources.read_image_files(empty), "empty has no file"),
    ):
        with pytest.raises(pl.SourceError, match=message):
            next(reader)
    with pytest.raises(pl.SourceError, match="hop is 11, longer than a chunk"):
        sources.read_sound(sound, 10, hop=11)
    with pytest.raises(pl.SourceError, match="chunk is 0"):
        sources.read_sound(sound, 0)
    with pytest.raises(pl.SourceError, match="channels is 3"):
        sources.read_microphone("default", 10, channels=3)


@pytest.mark.parametrize(
    ("module", "extra", "call"),
    [
        ("av", "video", lambda: sources.read_video("a.mp4")),
        ("av", "video", lambda: sources.read_microphone("default", 10)),
        ("soundfile", "audio", lambda: sources.read_sound("a.wav", 10)),
        ("PIL", "images", lambda: sources.decode_image(np.zeros(1, "uint8"), height=1, width=1)),
    ],
)
def test_what_is_not_installed_is_named(
    module: str, extra: str, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(pl.SourceError, match=rf"is not installed\n.*\[{extra}\]"):
        call()
