"""Sounds that come piece by piece: ONNX Runtime's segments, as soon as they are over."""

from __future__ import annotations

import os
import subprocess
import sys
import wave
from collections.abc import AsyncGenerator, Iterable, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import plait as pl
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from patience import WAIT_S
from plait.graph.values.tensor import Array

pytest.importorskip("onnx")
if find_spec("silero_vad") is None:
    pytest.skip("pip install --no-deps silero-vad==6.2.3", allow_module_level=True)

import voice_activity
from voice_activity import CHUNKS, QUIET_CHUNKS, Recording, Samples, Segment, Segmenter, Sound

onnxruntime = pytest.importorskip("onnxruntime")
SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "voice_activity.py"
THRESHOLD = 0.5
CHUNK_S = 0.032
"""At both rates."""


@pytest.fixture(scope="module")
def plan() -> pl.Plan:
    return pl.plan(pl.load(voice_activity.model_path()), max_in_flight=3)


def noisy(recording: Recording, much: float) -> Recording:
    noise = np.random.default_rng(7).normal(0, much, len(recording.samples))
    samples = (recording.samples + noise).astype(np.float32)
    return recording._replace(name=f"noisy, {recording.rate} Hz", samples=samples)


def cut_short(recording: Recording, seconds: float) -> Recording:
    return recording._replace(samples=recording.samples[: int(seconds * recording.rate)])


def pcm(samples: Array) -> bytes:
    data: bytes = np.round(samples * 32768).astype("<i2").tobytes()
    return data


def write(path: Path, samples: Array, rate: int, n_channels: int = 1) -> Path:
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(n_channels)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(pcm(samples))
    return path


def reference_probabilities(recording: Recording) -> NDArray[np.float64]:
    """Return what ONNX Runtime makes of each chunk, its own state fed back."""
    path = voice_activity.model_path()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    length = CHUNKS[recording.rate]
    width = length + length // 8
    padded = np.pad(recording.samples, (length // 8, -len(recording.samples) % length))
    state = np.zeros((2, 1, 128), np.float32)
    found = []
    for chunk in sliding_window_view(padded, width)[::length]:
        fed = {"input": chunk[None], "state": state, "sr": np.array(recording.rate)}
        output, state = session.run(None, fed)
        found.append(output.item())
    return np.array(found)


def reference_segments(
    probabilities: NDArray[np.float64], threshold: float
) -> list[tuple[int, int, float]]:
    """Return first chunk, end and peak: the loud chunks, closed as images are in morphology."""
    window = np.ones(QUIET_CHUNKS)
    grown = np.convolve(probabilities >= threshold, window) > 0
    closed = np.convolve(grown, window, "valid") == QUIET_CHUNKS
    edges = np.flatnonzero(np.diff(np.pad(closed, 1).astype(int))).reshape(-1, 2)
    return [(a, b, probabilities[a:b].max()) for a, b in edges.tolist()]


def in_chunks(segments: Iterable[Segment]) -> list[tuple[int, int, float]]:
    return [(round(s.start_s / CHUNK_S), round(s.end_s / CHUNK_S), s.peak) for s in segments]


def check(found: Iterable[Segment], wanted: Sequence[tuple[int, int, float]]) -> None:
    mine = in_chunks(found)
    assert [each[:2] for each in mine] == [each[:2] for each in wanted]
    np.testing.assert_allclose([each[2] for each in mine], [each[2] for each in wanted], atol=1e-4)


def nothing(rate: int = 16000) -> Sound:
    async def pieces() -> AsyncGenerator[Samples, None]:
        for _ in ():
            yield _

    return Sound("nothing", pieces(), rate)


PROBABILITIES = st.lists(st.sampled_from([0.1, 0.4, 0.5, 0.9]), max_size=40)


@given(PROBABILITIES)
def test_segments_are_those_of_a_morphological_closing(probabilities: list[float]) -> None:
    segmenter = Segmenter(nothing(), THRESHOLD)
    found = [*map(segmenter.hear, probabilities), segmenter.end()]
    wanted = reference_segments(np.array([*probabilities, 0.0]), THRESHOLD)
    assert in_chunks(filter(None, found)) == wanted


def test_a_segment_is_over_with_the_last_chunk_of_the_pause() -> None:
    segmenter = Segmenter(nothing(), THRESHOLD)
    probabilities = [0.6, 0.1, 0.1, 0.1, 0.7, *QUIET_CHUNKS * [0.1], 0.1]
    found = [segmenter.hear(probability) for probability in probabilities]
    assert [index for index, each in enumerate(found) if each] == [4 + QUIET_CHUNKS]
    assert segmenter.end() is None


@given(st.lists(st.integers(0, 1500), max_size=6), st.sampled_from(sorted(CHUNKS)))
@settings(max_examples=30, deadline=None)
def test_chunks_do_not_depend_on_the_pieces(lengths: list[int], rate: int) -> None:
    samples = np.arange(1, sum(lengths) + 1, dtype=np.float32)

    async def pieces() -> AsyncGenerator[Samples, None]:
        for piece in np.split(samples, np.cumsum(lengths)):
            yield piece

    async def collect() -> list[Samples]:
        return [chunk async for chunk in voice_activity.cut(Sound("ramp", pieces(), rate))]

    chunks = trio.run(collect)
    length, context = CHUNKS[rate], CHUNKS[rate] // 8
    assert {chunk.shape for chunk in chunks} <= {(1, context + length)}
    assert len(chunks) == -(-len(samples) // length)
    assert not any(chunk[0, :context].any() for chunk in chunks[:1])
    for before, after in pairwise(chunks):
        np.testing.assert_array_equal(before[0, -context:], after[0, :context])
    together = np.concatenate([samples[:0], *(chunk[0, context:] for chunk in chunks)])
    np.testing.assert_array_equal(together[: len(samples)], samples)
    assert not together[len(samples) :].any()


@pytest.mark.extended
async def test_segments_of_several_sounds_are_those_of_the_reference(plan: pl.Plan) -> None:
    recordings = [
        noisy(voice_activity.synthesise(8000, 12.01), 0.01),
        voice_activity.synthesise(16000, 12.01, seed=2),
        cut_short(noisy(voice_activity.synthesise(16000, 8.01, seed=2), 0.01), 6),
    ]
    sounds = [voice_activity.play(recording) for recording in recordings]
    found: dict[str, list[Segment]] = {recording.name: [] for recording in recordings}
    async with voice_activity.segments(plan, sounds, THRESHOLD) as segments:
        async for segment in segments:
            found[segment.name].append(segment)
    for recording in recordings:
        probabilities = reference_probabilities(recording)
        assert np.abs(probabilities - THRESHOLD).min() > 1e-3  # both round to the same side
        wanted = reference_segments(probabilities, THRESHOLD)
        assert len(wanted) >= 3
        check(found[recording.name], wanted)
    assert wanted[-1][1] == len(probabilities)  # the last one ends within a word


async def test_a_segment_comes_before_the_next_piece_though_another_sound_hangs(
    plan: pl.Plan,
) -> None:
    recording = voice_activity.synthesise(16000, 4)
    first, end, _ = reference_segments(reference_probabilities(recording), THRESHOLD)[0]
    speak, spoken = trio.open_memory_channel[Samples](end + QUIET_CHUNKS)
    hang, hanging = trio.open_memory_channel[Samples](0)
    sounds = [Sound("spoken", spoken, 16000), Sound("hanging", hanging, 16000)]
    for piece in np.split(recording.samples, 125)[: end + QUIET_CHUNKS]:
        speak.send_nowait(piece)
    with trio.fail_after(WAIT_S):
        async with voice_activity.segments(plan, sounds, THRESHOLD) as segments:
            segment = await anext(segments)
    assert in_chunks([segment])[0][:2] == (first, end)
    for channel in (speak, hang):
        with pytest.raises(trio.BrokenResourceError):  # whoever leaves closes what was listened to
            await channel.send(recording.samples)


async def test_segments_of_a_recording_that_is_played_come_when_they_are_over(
    plan: pl.Plan, autojump_clock: trio.abc.Clock
) -> None:
    recording = voice_activity.synthesise(8000, 8)
    wanted = reference_segments(reference_probabilities(recording), THRESHOLD)
    sounds = [voice_activity.play(recording, live=True)]
    start_s = trio.current_time()
    async with voice_activity.segments(plan, sounds, THRESHOLD) as segments:
        came = [(segment, trio.current_time() - start_s) async for segment in segments]
    check([segment for segment, _ in came], wanted)
    over_s = [(end + QUIET_CHUNKS) * CHUNK_S for _, end, _ in wanted]
    np.testing.assert_allclose([at_s for _, at_s in came], over_s, rtol=0, atol=1e-6)


async def test_samples_that_arrive_in_halves_are_put_together() -> None:
    readable, writable = os.pipe()
    samples = np.arange(-6, 6, dtype=np.float32) / 32768
    data = pcm(samples)
    found: list[Samples] = []
    async with trio.open_nursery() as nursery:
        ready = trio.Event()

        async def read() -> None:
            async for piece in voice_activity.receive(readable):
                found.append(piece)
                ready.set()

        os.write(writable, data[:7])
        nursery.start_soon(read)
        await ready.wait()
        assert found[0].size == 3
        os.write(writable, data[7:])
        os.close(writable)
    os.close(readable)
    np.testing.assert_array_equal(np.concatenate(found), samples)


def test_the_channels_of_a_file_are_averaged(tmp_path: Path) -> None:
    frames = np.array([[0.5, 0.25], [-0.5, 0.0]])
    recording = voice_activity.read(write(tmp_path / "two.wav", frames, 8000, n_channels=2))
    assert recording.rate == 8000
    np.testing.assert_array_equal(recording.samples, np.array([0.375, -0.25], np.float32))


def test_a_rate_that_the_network_does_not_know_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "cd.wav", np.zeros(10), 44100)
    with pytest.raises(ValueError, match="16 bits at 44100 Hz, not 16 at 8000 or 16000"):
        voice_activity.read(path)


def test_the_script_finds_speech_in_what_it_makes_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert voice_activity.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split("  ")[-1] for line in lines[:-1]} == {f"made up at {r} Hz" for r in CHUNKS}
    assert lines[-1].startswith("24.0 s of recordings in ")


def test_the_script_hears_a_file_and_standard_input_alike(tmp_path: Path) -> None:
    samples = voice_activity.synthesise(16000, 4).samples
    path = write(tmp_path / "a.wav", samples, 16000)
    command = [sys.executable, "-W", "error", str(SCRIPT), str(path), "-"]
    done = subprocess.run(command, input=pcm(samples), capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.decode().splitlines()[:-1]
    from_file = [line.removesuffix("a.wav") for line in lines if line.endswith("a.wav")]
    from_input = [line.removesuffix("-") for line in lines if line.endswith("-")]
    assert from_file == from_input != []


def test_the_script_hears_nothing_in_silence_on_two_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "silence.wav", np.zeros(16000), 16000)
    assert voice_activity.main([str(path), "--devices", "worker:0,cpu"]) == 0
    assert capsys.readouterr().out.startswith("1.0 s of recordings in ")


def test_the_script_names_a_file_that_is_no_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "words.wav"
    path.write_text("no sound")
    with pytest.raises(SystemExit) as exit_:
        voice_activity.main([str(path)])
    assert exit_.value.code == 2
    assert "RIFF" in capsys.readouterr().err
