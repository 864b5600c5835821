"""Who speaks when? A recurrent network listens to recordings, chunk by chunk, several at a time.

Every chunk goes through the network with the state that the chunk before it left behind, so each
recording is a stream with one chunk in flight; the recordings share a session, and the devices.
Needs ``pip install 'plait[onnx]'`` and ``pip install --no-deps silero-vad==6.2.3``, whose code is
not used: only its model. Without recordings, it listens to two that it makes up.

    python examples/voice_activity.py [WAV ...] [--devices cpu,worker:0] [--threshold 0.5]
"""

from __future__ import annotations

import argparse
import sys
import time
import wave
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import plait as pl
import trio

CHUNKS = {8000: 256, 16000: 512}
"""Samples per chunk at each sample rate that the network knows."""
QUIET_CHUNKS = 4
"""This many chunks below the threshold end a segment, fewer are a pause within it."""

Samples = npt.NDArray[np.float32]


class Recording(NamedTuple):
    """A name, the samples between -1 and 1, and how many there are in a second."""

    name: str
    samples: Samples
    rate: int


def model_path() -> Path:
    """Return the network's file; the package around it, which needs torch, is not imported."""
    spec = find_spec("silero_vad")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("pip install --no-deps silero-vad==6.2.3", name="silero_vad")
    return Path(spec.origin).parent / "data" / "silero_vad.onnx"


def read(path: Path) -> Recording:
    """Return a recording from a WAV file of 16 bits a sample; channels are averaged."""
    with wave.open(str(path)) as sound:
        n_channels, width, rate, n_frames = sound.getparams()[:4]
        data = sound.readframes(n_frames)
    if width != 2 or rate not in CHUNKS:
        rates = " or ".join(map(str, CHUNKS))
        raise ValueError(f"{path} has {8 * width} bits at {rate} Hz, not 16 at {rates}")
    frames = np.frombuffer(data, "<i2").reshape(-1, n_channels)
    return Recording(path.name, frames.mean(1, dtype=np.float32) / 32768, rate)


def synthesise(rate: int, seconds: float, seed: int = 0) -> Recording:
    """Return vowel-like bursts with silence between: harmonics under three formants."""
    random = np.random.default_rng(seed)
    samples = random.normal(0, 1e-4, int(seconds * rate))
    start_s = 1.0
    while start_s + 1.5 < seconds:
        for _ in range(random.integers(3, 7)):
            vowel = _vowel(random, rate)
            first = int(start_s * rate)
            room = samples[first : first + len(vowel)]
            room += vowel[: len(room)]
            start_s += len(vowel) / rate
        start_s += random.uniform(1, 2)
    return Recording(f"made up at {rate} Hz", samples.astype(np.float32), rate)


def _vowel(random: np.random.Generator, rate: int) -> npt.NDArray[np.float64]:
    seconds = random.uniform(0.15, 0.3)
    t = np.arange(int(seconds * rate)) / rate
    pitch = random.uniform(110, 150) * (1 - 0.3 * t)
    formants = random.uniform((300, 900, 2300), (800, 2000, 2900))
    harmonics = np.arange(1, int(rate / 2 / 150))[:, None]
    distance = (harmonics * pitch.mean() - formants) / (60, 90, 120)
    loudness = (1 / (1 + distance**2)).sum(1) / harmonics[:, 0] ** 0.5
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    sound: npt.NDArray[np.float64] = loudness @ np.sin(harmonics * phase)
    return 0.1 * sound * np.sin(np.pi * t / seconds) ** 0.5


def cut(recording: Recording) -> Iterator[Samples]:
    """Yield the chunks of a recording, each with the end of the one before it in front."""
    length = CHUNKS[recording.rate]
    context = length // 8
    padding = -len(recording.samples) % length
    padded = np.pad(recording.samples, (context, padding))
    for start in range(0, len(padded) - context, length):
        yield padded[None, start : start + context + length]


async def listen(session: pl.Session, recording: Recording) -> list[float]:
    """Return the probability of speech in every chunk of a recording."""
    state = np.zeros((2, 1, 128), np.float32)

    def chunks() -> Iterator[Mapping[str, object]]:
        # With one in flight, a chunk is pulled only when the result before it was seen.
        for chunk in cut(recording):
            yield {"input": chunk, "state": state, "sr": np.int64(recording.rate)}

    found: list[float] = []
    async with session.stream(chunks(), max_in_flight=1) as results:
        async for item in results:
            state = item["stateN"]
            found.append(float(item["output"][0, 0]))
    return found


def segments(probabilities: Sequence[float], threshold: float) -> list[tuple[int, int]]:
    """Return where speech starts and ends, in chunks."""
    loud = np.flatnonzero(np.asarray(probabilities) >= threshold).tolist()
    breaks = [(a + 1, b) for a, b in pairwise(loud) if b - a > QUIET_CHUNKS]
    edges = [*loud[:1], *(edge for ends in breaks for edge in ends), *(n + 1 for n in loud[-1:])]
    return list(zip(edges[::2], edges[1::2], strict=True))


async def listen_to_all(
    recordings: Sequence[Recording], devices: Sequence[str]
) -> list[list[float]]:
    """Return the probabilities for every recording; all are heard at the same time."""
    plan = pl.plan(pl.load(model_path()), devices, max_in_flight=len(recordings))
    found: list[list[float]] = [[] for _ in recordings]

    async def listen_to(index: int) -> None:
        found[index] = await listen(session, recordings[index])

    async with pl.Session(plan) as session, trio.open_nursery() as nursery:
        for index in range(len(recordings)):
            nursery.start_soon(listen_to, index)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Find speech in recordings.")
    parser.add_argument("recordings", type=Path, nargs="*", metavar="WAV")
    parser.add_argument("--devices", default="cpu", help="in order of preference")
    parser.add_argument("--threshold", type=float, default=0.5, help="speech is above it")
    options = parser.parse_args(arguments)
    try:
        recordings = [read(path) for path in options.recordings]
        recordings = recordings or [synthesise(rate, 12) for rate in CHUNKS]
        start_s = time.perf_counter()
        found = trio.run(listen_to_all, recordings, options.devices.split(","))
    except (pl.PlaitError, ModuleNotFoundError, OSError, ValueError, wave.Error) as error:
        parser.exit(2, f"{error}\n")
    elapsed_s = time.perf_counter() - start_s
    for recording, probabilities in zip(recordings, found, strict=True):
        chunk_s = CHUNKS[recording.rate] / recording.rate
        print(recording.name)
        for first, end in segments(probabilities, options.threshold):
            peak = max(probabilities[first:end])
            print(f"  {first * chunk_s:7.2f} s to {end * chunk_s:7.2f} s  at most {peak:.0%} sure")
    total_s = sum(len(recording.samples) / recording.rate for recording in recordings)
    print(f"{total_s:.1f} s of sound in {elapsed_s:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
