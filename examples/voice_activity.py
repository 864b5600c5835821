"""Speech in recordings: a recurrent network hears several sounds, and tells as soon as it knows.

Every chunk of a sound goes through the network with the state that the chunk before it left, so
each sound is a stream with one chunk in flight. All share a session, and the devices; none waits
for another. A segment of speech is given out as soon as the pause after it is long enough.
Needs ``pip install '.[onnx]'`` and ``pip install --no-deps silero-vad==6.2.3``, whose code is
not used: only its model. Without recordings, it listens to two that it makes up.

    python examples/voice_activity.py [WAV ...] [--live] [--devices cpu,worker:0]
    arecord -q -t raw -f S16_LE -r 16000 | python examples/voice_activity.py -
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import wave
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import plait as pl
import trio

CHUNKS = {8000: 256, 16000: 512}
"""Samples per chunk at each sample rate that the network knows."""
QUIET_CHUNKS = 4
"""This many chunks below the threshold end a segment, fewer are a pause within it."""

Samples: TypeAlias = npt.NDArray[np.float32]
Pieces: TypeAlias = AsyncGenerator[Samples, None] | trio.abc.ReceiveChannel[Samples]


class Recording(NamedTuple):
    """A name, the samples between -1 and 1, and how many there are in a second."""

    name: str
    samples: Samples
    rate: int


class Sound(NamedTuple):
    """Something to listen to: its samples come in pieces of any length."""

    name: str
    pieces: Pieces
    rate: int


class Segment(NamedTuple):
    """Where somebody speaks, and the highest probability of that."""

    name: str
    start_s: float
    end_s: float
    peak: float


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


def play(recording: Recording, *, live: bool = False) -> Sound:
    """Return the sound of a recording; if live, pieces come when a microphone would have them."""

    async def pieces() -> AsyncGenerator[Samples, None]:
        start_s = trio.current_time()
        length = CHUNKS[recording.rate]
        for end in range(length, len(recording.samples) + length, length):
            await trio.sleep_until(start_s + live * end / recording.rate)
            yield recording.samples[end - length : end]

    return Sound(recording.name, pieces(), recording.rate)


async def receive(descriptor: int) -> AsyncGenerator[Samples, None]:
    """Yield what comes from a file or pipe: one channel, 16 bits a sample, no header."""
    rest = b""
    # A file object would be locked by a read that was abandoned, and keep Python from exiting.
    while data := await trio.to_thread.run_sync(os.read, descriptor, 4096, abandon_on_cancel=True):
        data = rest + data
        n_bytes = len(data) // 2 * 2
        rest = data[n_bytes:]
        yield np.frombuffer(data[:n_bytes], "<i2").astype(np.float32) / np.float32(32768)


async def cut(sound: Sound) -> AsyncGenerator[Samples, None]:
    """Yield the chunks of a sound, each with the end of the one before it in front."""
    length = CHUNKS[sound.rate]
    context = length // 8
    heard = np.zeros(context, np.float32)
    async with aclosing(sound.pieces) as pieces:
        async for piece in pieces:
            heard = np.concatenate([heard, piece])
            while len(heard) >= context + length:
                yield heard[None, : context + length]
                heard = heard[length:]
    if len(heard) > context:
        yield np.pad(heard, (0, context + length - len(heard)))[None]


class Segmenter:
    """Makes segments of the probabilities for the chunks of a sound, which come one by one."""

    def __init__(self, sound: Sound, threshold: float) -> None:
        self._name = sound.name
        self._chunk_s = CHUNKS[sound.rate] / sound.rate
        self._threshold = threshold
        self._chunk = self._first = self._last = -1
        self._peak = 0.0

    def hear(self, probability: float) -> Segment | None:
        """Return the segment that is over when this chunk has been heard, if one is."""
        self._chunk += 1
        if probability >= self._threshold:
            self._first = self._first if self._peak else self._chunk
            self._last = self._chunk
            self._peak = max(self._peak, probability)
        return self.end() if self._chunk - self._last >= QUIET_CHUNKS else None

    def end(self) -> Segment | None:
        """Return the segment that has begun, if one has."""
        peak, self._peak = self._peak, 0.0
        start_s, end_s = self._first * self._chunk_s, (self._last + 1) * self._chunk_s
        return Segment(self._name, start_s, end_s, peak) if peak else None


async def listen(
    session: pl.Session, sound: Sound, threshold: float, found: trio.MemorySendChannel[Segment]
) -> None:
    """Send the segments of a sound, each when it is over."""
    state = np.zeros((2, 1, 128), np.float32)
    segmenter = Segmenter(sound, threshold)

    async def inputs() -> AsyncGenerator[Mapping[str, object], None]:
        # With one in flight, a chunk is asked for only when the result before it was seen.
        async for chunk in chunks:
            yield {"input": chunk, "state": state, "sr": np.int64(sound.rate)}

    async with found, aclosing(cut(sound)) as chunks:
        async with session.stream(inputs(), max_in_flight=1) as results:
            async for item in results:
                state = item["stateN"]
                if segment := segmenter.hear(item["output"].item()):
                    await found.send(segment)
        if segment := segmenter.end():
            await found.send(segment)


@trio.as_safe_channel
async def segments(
    plan: pl.Plan, sounds: Sequence[Sound], threshold: float
) -> AsyncGenerator[Segment, None]:
    """Yield the segments of all sounds, as they end; a consumer that is slow holds them up."""
    send, found = trio.open_memory_channel[Segment](0)
    async with pl.Session(plan) as session, trio.open_nursery() as nursery:
        async with send:
            for sound in sounds:
                nursery.start_soon(listen, session, sound, threshold, send.clone())
        async for segment in found:
            yield segment


async def report(plan: pl.Plan, sounds: Sequence[Sound], threshold: float) -> None:
    async with segments(plan, sounds, threshold) as found:
        async for name, start_s, end_s, peak in found:
            print(f"{start_s:7.2f} s to {end_s:7.2f} s  up to {peak:.0%} sure  {name}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Find speech in recordings, or as it is spoken.")
    parser.add_argument("recordings", nargs="*", metavar="WAV", help="or - for standard input, raw")
    parser.add_argument("--rate", type=int, choices=CHUNKS, default=16000, help="of standard input")
    parser.add_argument("--live", action="store_true", help="play recordings as they are heard")
    parser.add_argument("--devices", default="cpu", help="in order of preference")
    parser.add_argument("--threshold", type=float, default=0.5, help="speech is above it")
    options = parser.parse_args(arguments)
    try:
        recordings = [read(Path(path)) for path in options.recordings if path != "-"]
        if not options.recordings:
            recordings = [synthesise(rate, 12) for rate in CHUNKS]
        sounds = [play(recording, live=options.live) for recording in recordings]
        if "-" in options.recordings:
            sounds.append(Sound("-", receive(sys.stdin.fileno()), options.rate))
        plan = pl.plan(pl.load(model_path()), options.devices.split(","), max_in_flight=len(sounds))
        start_s = time.perf_counter()
        trio.run(report, plan, sounds, options.threshold)
    except KeyboardInterrupt:
        return 130
    except (pl.PlaitError, ModuleNotFoundError, OSError, ValueError, wave.Error) as error:
        parser.exit(2, f"{error}\n")
    if recordings:
        total_s = sum(len(recording.samples) / recording.rate for recording in recordings)
        print(f"{total_s:.1f} s of recordings in {time.perf_counter() - start_s:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
