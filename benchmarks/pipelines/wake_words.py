"""Wake words in what several microphones hear, chunk by chunk of 80 ms (openwakeword's networks).

A network makes spectra of a chunk, a second one a feature of the last 76 of them, and one for each
word looks at the last 16 features. A chunk needs what the one before it left behind.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import trio

from .pipeline import Item, Pipeline, Result, Work, WorkAsync, in_package, on_threads, ort_session

CHUNK, OVERLAP = 1280, 480
"""Samples of a chunk, and of those before it that spectra are made of too."""
SPECTRA, BANDS, FEATURES, VALUES = 76, 32, 16, 96
WORDS = "alexa", "hey_jarvis", "hey_marvin", "hey_mycroft"
MICROPHONES, HERTZ = 4, 16000


def pipeline(chunks: int) -> Pipeline:
    """Return the pipeline for so many chunks of each microphone a round."""
    network("embedding_model")
    return Pipeline(
        items=lambda turn: recordings(turn, chunks),
        by_hand=by_hand,
        by_plait=by_plait,
        same=same,
        others={"OpenVINO, AsyncInferQueue": by_openvino, "openwakeword's own loop": by_package},
        size=chunks,
    )


# what both are made of


def network(name: str) -> Path:
    """Return the file of a network."""
    file = f"{name}.onnx"
    return in_package("openwakeword", "resources", "models", file, install="openwakeword==0.4.0")


def words() -> list[Path]:
    """Return the files of the networks for words."""
    return [network(f"{word}_v0.1") for word in WORDS]


def recordings(turn: int, chunks: int) -> Sequence[Any]:
    """Return a recording of each microphone: tones that come and go over noise, 16 bits."""
    random = np.random.default_rng(turn)
    seconds = np.arange(chunks * CHUNK) / HERTZ
    tones = 3000 * np.sin(np.outer(random.uniform(600, 3000, MICROPHONES), seconds))
    swells = np.sin(np.outer(random.uniform(1, 9, MICROPHONES), seconds))
    noise = random.normal(0, 300, tones.shape)
    return list((tones * swells + noise).astype(np.int16))


def chunks_of(recording: Any) -> list[Any]:
    """Return the chunks of a recording, each with what comes before it."""
    padded = np.concatenate([np.zeros(OVERLAP, np.float32), recording.astype(np.float32)])
    return [
        padded[None, start : start + CHUNK + OVERLAP] for start in range(0, len(recording), CHUNK)
    ]


def nothing_heard() -> tuple[Any, Any]:
    """Return the spectra and features that are there before the first chunk."""
    return np.ones((SPECTRA, BANDS), np.float32), np.zeros((FEATURES, VALUES), np.float32)


def same(one: Result, other: Result) -> bool:
    """Say whether the words have the same scores."""
    return np.allclose(one, other, atol=1e-3)


# by hand


def by_hand(workers: int, threads: int) -> Work:
    """Have each worker listen to a microphone; sessions are shared."""
    to_spectra = ort_session(network("melspectrogram"), threads)
    to_feature = ort_session(network("embedding_model"), threads)
    heads = [ort_session(path, threads) for path in words()]
    fed = [head.get_inputs()[0].name for head in heads]

    def work(recording: Item) -> Result:
        spectra, features = nothing_heard()
        scores = []
        for chunk in chunks_of(recording):
            new = to_spectra.run(None, {"input": chunk})[0].reshape(-1, BANDS) / 10 + 2
            spectra = np.concatenate([spectra, new])[-SPECTRA:]
            (feature,) = to_feature.run(None, {"input_1": spectra[None, :, :, None]})
            features = np.concatenate([features[1:], feature.reshape(1, VALUES)])
            found = (
                head.run(None, {name: features[None]})
                for head, name in zip(heads, fed, strict=True)
            )
            scores.append([each.item() for (each,) in found])
        return np.array(scores)

    return on_threads(work, workers)


def by_package() -> Work:
    """Listen to microphone after microphone with the package, as if they were one."""
    from openwakeword.model import Model

    def work(items: Sequence[Item]) -> Sequence[Result]:
        results = []
        for recording in items:
            found = (
                model.predict(recording[start : start + CHUNK])
                for start in range(0, len(recording), CHUNK)
            )
            results.append(np.array([list(each.values()) for each in found]))
        return results

    model = Model([str(path) for path in words()])
    return work


def by_openvino() -> Work:
    """Have a queue over microphones for each network that takes time; the words follow behind."""
    from .openvino_queue import compiled, queue

    spectrograms, embeddings = (
        compiled(network("melspectrogram")),
        queue(network("embedding_model")),
    )
    to_spectra = spectrograms.create_infer_request()
    heads = [compiled(path).create_infer_request() for path in words()]

    def work(items: Sequence[Item]) -> Sequence[Result]:
        states = [list(nothing_heard()) for _ in items]
        scores: list[list[Any]] = [[] for _ in items]

        def embedded(request: Any, index: int) -> None:
            feature = request.get_output_tensor().data.reshape(1, VALUES)
            states[index][1] = np.concatenate([states[index][1][1:], feature])

        embeddings.set_callback(embedded)
        for chunks in zip(*map(chunks_of, items), strict=True):
            for index, chunk in enumerate(chunks):
                new = to_spectra.infer([chunk])[0].reshape(-1, BANDS) / 10 + 2
                states[index][0] = np.concatenate([states[index][0], new])[-SPECTRA:]
                embeddings.start_async([states[index][0][None, :, :, None]], index)
            embeddings.wait_all()
            for index, (_, features) in enumerate(states):
                scores[index].append([head.infer([features[None]])[0].item() for head in heads])
        return [np.array(each) for each in scores]

    return work


# with plait


def listening_graph() -> pl.Graph:
    """Return the graph from a chunk and what was heard before to the scores of all words."""
    b = pl.GraphBuilder("listening")
    chunk = b.input("chunk", "float32", (1, CHUNK + OVERLAP))
    spectra = b.input("spectra", "float32", (SPECTRA, BANDS))
    features = b.input("features", "float32", (FEATURES, VALUES))
    (new,) = b.include(pl.load(network("melspectrogram")), {"input": chunk}).values()
    new = b.op("Add", b.op("Div", b.op("Reshape", new, np.array([-1, BANDS])), 10.0), 2.0)
    heard = b.op("Slice", b.op("Concat", spectra, new, axis=0), [-SPECTRA], [1 << 31], [0])
    image = b.op("Unsqueeze", heard, np.array([0, 3]))
    (feature,) = b.include(pl.load(network("embedding_model")), {"input_1": image}).values()
    latest = b.op("Reshape", feature, np.array([1, VALUES]))
    features = b.op("Concat", b.op("Slice", features, [1], [FEATURES], [0]), latest, axis=0)
    last = b.op("Unsqueeze", features, np.array([0]))
    for word, path in zip(WORDS, words(), strict=True):
        head = pl.load(path)
        (score,) = b.include(head, {head.inputs[0]: last}, prefix=f"{word}/").values()
        b.output(word, score)
    b.output("heard", heard)
    b.output("latest", features)
    return b.build()


@asynccontextmanager
async def by_plait() -> AsyncIterator[WorkAsync]:
    """Have one graph, and a task for each microphone."""
    plan = pl.plan(listening_graph(), ["ort:0..1"], max_in_flight=MICROPHONES)
    async with pl.Session(plan) as session:

        async def listen(recording: Item, scores: list[Any]) -> None:
            spectra, features = nothing_heard()
            for chunk in chunks_of(recording):
                feeds = {"chunk": chunk, "spectra": spectra, "features": features}
                found = await session.run(feeds)
                spectra, features = found["heard"], found["latest"]
                scores.append([found[word].item() for word in WORDS])

        async def listen_to_all(items: Sequence[Item]) -> Sequence[Result]:
            scores: list[list[Any]] = [[] for _ in items]
            async with trio.open_nursery() as nursery:
                for recording, found in zip(items, scores, strict=True):
                    nursery.start_soon(listen, recording, found)
            return [np.array(each) for each in scores]

        yield listen_to_all
