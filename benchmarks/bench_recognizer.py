"""Cost of a streaming recognizer of many streams, beside the batched decoding of sherpa-onnx.

Sound of all streams comes in pieces of 0.32 s. Each side computes the same features of it
(kaldi-native-fbank, which is in sherpa-onnx too), runs the same network on the chunks that are
complete, and decodes greedily. Tokens and their times must be equal. The network is a streaming
Zipformer of the usual size (`streaming_zipformer.py`). Its weights are random, since no package has
trained ones, so the tokens mean nothing. Needs `pip install sherpa-onnx kaldi-native-fbank
onnxruntime onnx`; sherpa-onnx has an ONNX Runtime of its own. Question: how long does a chunk take?
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import plait as pl
from measure import save
from plait.graph.values.tensor import Array
from streaming_zipformer import BANDS, CHUNK, SHIFT, save_network

RATE, PIECE, STEP_S = 16_000, 5_120, 0.04
PACKAGES = "sherpa-onnx", "kaldi-native-fbank"
FEW = 8
"""Streams up to which they are run one by one as well."""
Tokens = list[tuple[int, int]]
"""Tokens of a stream, each with the step of 40 ms in which it begins."""


def make_sounds(streams: int, pieces: int) -> Array:
    """Return noisy tones that rise, fall and pause: float32[streams, pieces, samples]."""
    random = np.random.default_rng(0)
    seconds = np.arange(pieces * PIECE) / RATE
    sounds = []
    for _ in range(streams):
        sound = random.normal(0, 0.01, len(seconds))
        for pitch, bend, beat in random.uniform((100, 1, 0.5), (3_000, 5, 4), (3, 3)):
            phase = np.cumsum(pitch * (1 + 0.5 * np.sin(2 * np.pi * bend * seconds))) / RATE
            sound += 0.1 * np.sin(2 * np.pi * phase) * np.abs(np.sin(2 * np.pi * beat * seconds))
        sounds.append(sound.reshape(pieces, PIECE))
    return np.array(sounds, "float32")


class Ear:
    """The features of a stream."""

    def __init__(self) -> None:
        features = import_module("kaldi_native_fbank")
        options = features.FbankOptions()
        options.frame_opts.dither, options.frame_opts.snip_edges = 0, False
        options.mel_opts.num_bins, options.mel_opts.high_freq = BANDS, -400
        self._bank, self._begin = features.OnlineFbank(options), 0

    def hear(self, piece: Array) -> Iterator[Array]:
        """Yield the chunks that are complete, float32[1, frames, bands]."""
        self._bank.accept_waveform(RATE, piece)
        while self._begin + CHUNK < self._bank.num_frames_ready:
            frames = range(self._begin, self._begin + CHUNK)
            joined = np.concatenate([self._bank.get_frame(n) for n in frames])
            yield joined.reshape(1, CHUNK, BANDS)
            self._begin += SHIFT


def list_chunks(sounds: Array) -> Iterator[list[tuple[int, Array]]]:
    """Yield the number of the stream and the chunk of all chunks that are complete at a time."""
    ears = [Ear() for _ in sounds]
    for place in range(sounds.shape[1]):
        yield [(n, chunk) for n, ear in enumerate(ears) for chunk in ear.hear(sounds[n, place])]


class Text:
    """The tokens of a stream, found greedily."""

    def __init__(self) -> None:
        self.tokens: Tokens = []
        self._last, self._steps = 0, 0

    def add(self, best: Sequence[int]) -> None:
        """Take the best tokens of the following steps; 0 is the blank."""
        for token in best:
            if token not in (0, self._last):
                self.tokens.append((token, self._steps))
            self._last = token
            self._steps += 1


def read_all(texts: Sequence[Text]) -> list[Tokens]:
    return [text.tokens for text in texts]


class Sherpa:
    """sherpa-onnx: `decode_streams` runs all streams that have a chunk as one batch."""

    def __init__(self, model: Path, tokens: Path, threads: int) -> None:
        recognizer = import_module("sherpa_onnx").OnlineRecognizer
        self._recognizer = recognizer.from_zipformer2_ctc(str(tokens), str(model), threads)

    def decode(self, sounds: Array) -> list[Tokens]:
        recognizer = self._recognizer
        streams = [recognizer.create_stream() for _ in sounds]
        for place in range(sounds.shape[1]):
            for stream, sound in zip(streams, sounds, strict=True):
                stream.accept_waveform(RATE, sound[place])
            while ready := [stream for stream in streams if recognizer.is_ready(stream)]:
                recognizer.decode_streams(ready)
        return [self._read(stream) for stream in streams]

    def _read(self, stream: Any) -> Tokens:
        names, times = self._recognizer.tokens(stream), self._recognizer.timestamps(stream)
        return [(int(n[1:]), round(time / STEP_S)) for n, time in zip(names, times, strict=True)]


class ByHand:
    """ONNX Runtime alone."""

    def __init__(self, model: Path, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        session = onnxruntime.InferenceSession(model, options)
        states = session.get_inputs()[1:]
        self._shapes = {one.name: one.shape for one in states}
        self._counts = [one.name for one in states if one.type == "tensor(int64)"]
        self._run = session.run
        self._outputs = ["log_probs", *(f"new_{name}" for name in self._shapes)]

    def make_states(self, rows: int) -> dict[str, Array]:
        return {
            name: np.zeros(
                [rows if dim == "N" else dim for dim in shape],
                "int64" if name in self._counts else "float32",
            )
            for name, shape in self._shapes.items()
        }

    def step(self, x: Array, states: dict[str, Array]) -> tuple[list[list[int]], dict[str, Array]]:
        """Return the best tokens of each row, and the next states."""
        scores, *following = self._run(self._outputs, {"x": x, **states})
        return scores.argmax(-1).tolist(), dict(zip(states, following, strict=True))

    def decode_stacked(self, sounds: Array) -> list[Tokens]:
        """Keep the states of all streams stacked, which works as long as all have a chunk."""
        texts, states = [Text() for _ in sounds], self.make_states(len(sounds))
        for chunks in list_chunks(sounds):
            if chunks:
                x = np.concatenate([chunk for _, chunk in chunks])
                best, states = self.step(x, states)
                for (number, _), tokens in zip(chunks, best, strict=True):
                    texts[number].add(tokens)
        return read_all(texts)

    def decode_in_turn(self, sounds: Array) -> list[Tokens]:
        texts, states = [Text() for _ in sounds], [self.make_states(1) for _ in sounds]
        for chunks in list_chunks(sounds):
            for number, chunk in chunks:
                (best,), states[number] = self.step(chunk, states[number])
                texts[number].add(best)
        return read_all(texts)


def make_recognizer(model: Path) -> pl.Graph:
    """Return the network with its states as variables."""
    network = pl.load(model)
    b = pl.GraphBuilder("recognizer")
    fed = {"x": b.input("x", "float32", (1, CHUNK, BANDS))}
    for name in network.inputs[1:]:
        spec = network.tensors[name]
        shape = [1 if dim == "N" else dim for dim in spec.shape or ()]
        fed[name] = b.variable(name, np.zeros(shape, spec.dtype))
    made = b.include(network, fed)
    for name in network.inputs[1:]:
        b.assign(fed[name], made[f"new_{name}"])
    b.output("best", made["log_probs"].argmax(-1))
    return b.build()


def decode_by_key(session: pl.BlockingSession, batch: int | None, sounds: Array) -> list[Tokens]:
    texts = [Text() for _ in sounds]
    numbers: list[int] = []

    def list_items() -> Iterator[dict[str, Any]]:
        for chunks in list_chunks(sounds):
            for number, chunk in chunks:
                numbers.append(number)
                yield {"x": chunk, "stream": number}

    for place, item in enumerate(session.stream(list_items(), key="stream", batch=batch)):
        texts[numbers[place]].add(item["best"][0].tolist())
    session.drop_keys()
    return read_all(texts)


def compare(
    ways: dict[str, Callable[[Array], list[Tokens]]], sounds: Array, rounds: int
) -> dict[str, Any]:
    """Return the median milliseconds of a chunk of each way, after a check of its tokens."""
    wanted = next(iter(ways.values()))(sounds)
    for name, way in ways.items():
        if (found := way(sounds)) != wanted:
            raise SystemExit(f"{name} finds other tokens: {found} in place of {wanted}")
    n_chunks = sum(map(len, list_chunks(sounds)))
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            time.sleep(0.1)  # threads of the way before spin for a while
            begin = time.perf_counter(), time.process_time()
            way(sounds)
            end = time.perf_counter(), time.process_time()
            times[name].append((end[0] - begin[0], end[1] - begin[1]))
    figures: dict[str, Any] = {
        "load": os.getloadavg()[0],
        "chunks": n_chunks,
        "tokens": sum(map(len, wanted)),
    }
    for place, clock in enumerate(("ms", "processor ms")):
        figures[clock] = {
            name: round(median(one[place] for one in found) / n_chunks * 1e3, 3)
            for name, found in times.items()
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--pieces", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    figures: dict[str, Any] = {
        name: version(name) for name in ("sherpa-onnx", "kaldi-native-fbank")
    }
    with TemporaryDirectory() as folder, ExitStack() as stack:
        model, tokens, figures["weights"] = save_network(Path(folder))
        graph, sides = make_recognizer(model), {}
        for n in sorted({1, len(os.sched_getaffinity(0))}):
            plan = pl.plan(graph, [pl.device("ort", threads=n), "cpu"])
            session = stack.enter_context(pl.BlockingSession(plan))
            sides[n] = Sherpa(model, tokens, n), session, ByHand(model, n)
        for streams in asked.streams:
            ways: dict[str, Callable[[Array], list[Tokens]]] = {}
            for n, (sherpa, session, hand) in sides.items():
                ways[f"sherpa-onnx, threads={n}"] = sherpa.decode
                ways[f"plait, batch={streams}, threads={n}"] = partial(
                    decode_by_key, session, streams
                )
                ways[f"stacked by hand, threads={n}"] = hand.decode_stacked
            if streams <= FEW:
                _, session, hand = sides[1]
                ways["plait, one by one, threads=1"] = partial(decode_by_key, session, None)
                ways["in turn by hand, threads=1"] = hand.decode_in_turn
            sounds = make_sounds(streams, asked.pieces)
            figures[f"{streams} streams"] = compare(ways, sounds, asked.rounds)
    save("recognizer", figures)


if __name__ == "__main__":
    main()
