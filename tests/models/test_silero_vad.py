"""A recurrent network that branches on its input, chunk after chunk: ONNX Runtime's numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from plait.graph.values.tensor import Array

onnxruntime = pytest.importorskip("onnxruntime")

TOLERANCE = 1e-4
CHUNKS = {8000: 256, 16000: 512}
"""Samples per chunk at each sample rate; an eighth of a chunk goes before it as context."""
WAYS: dict[str, tuple[list[str], dict[str, str]]] = {
    "cpu": (["cpu"], {}),
    "worker": (["worker:0"], {}),
    "spectrum": (["cpu", "worker:0"], {"*/stft/*": "worker:0"}),
    "encoder": (["worker:0", "cpu"], {"*/encoder/*": "cpu"}),
    "recurrence": (["cpu", "worker:0"], {"*/decoder/rnn/*": "worker:0"}),
    "back and forth": (["cpu", "worker:0"], {"*Conv*": "worker:0", "*LSTM*": "worker:0"}),
}
FILES = ("silero_vad", "silero_vad_half", "silero_vad_16k_op15", "silero_vad_op18_ifless")


def model(name: str = "silero_vad") -> Path:
    spec = find_spec("silero_vad")
    if spec is None or spec.origin is None:
        pytest.skip("pip install --no-deps silero-vad==6.2.3")
    return Path(spec.origin).parent / "data" / f"{name}.onnx"


def sound(rate: int, seconds: float, seed: int = 0) -> Array:
    """Return four syllables of falling harmonics under formants, silence, four more, and so on."""
    random = np.random.default_rng(seed)
    samples = random.normal(0, 1e-4, int(seconds * rate))
    t = np.arange(rate // 4) / rate
    k = np.arange(1, 26)[:, None]
    phase = 2 * np.pi * (130 * t - 20 * t**2)
    for syllable in range(int(4 * seconds)):
        if syllable % 8 >= 4:
            formants = random.uniform((300, 900, 2300), (800, 2000, 2900))
            loudness = (1 / (1 + ((130 * k - formants) / 80) ** 2)).sum(1) / k[:, 0] ** 0.5
            start = syllable * len(t)
            samples[start : start + len(t)] += (
                0.1 * loudness @ np.sin(k * phase) * np.sin(4 * np.pi * t)
            )
    return samples.astype(np.float32)


def chunks(recordings: Array, rate: int) -> list[Array]:
    """Return the chunks of recordings, a row for each, with the context before them."""
    length = CHUNKS[rate]
    context = length // 8
    padded = np.pad(recordings, ((0, 0), (context, 0)))
    starts = range(0, recordings.shape[1] - length + 1, length)
    return [padded[:, start : start + context + length] for start in starts]


def reference(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def expected(path: Path, fed: list[Array], rate: int) -> tuple[Array, Array]:
    """Return ONNX Runtime's probabilities and states of all chunks, its own states fed back."""
    session = reference(path)
    names = {each.name for each in session.get_inputs()}
    state = np.zeros((2, len(fed[0]), 128), np.float32)
    rows = []
    for chunk in fed:
        given = {"input": chunk, "state": state, "sr": np.array(rate)}
        output, state = session.run(None, {n: v for n, v in given.items() if n in names})
        rows.append((output, state))
    probabilities, states = zip(*rows, strict=True)
    return np.array(probabilities), np.array(states)


async def found(session: pl.Session, fed: list[Array], rate: int) -> tuple[Array, Array]:
    """Return plait's, from a stream whose items take the state of the item before."""
    names = session.plan.graph.inputs
    state: Array = np.zeros((2, len(fed[0]), 128), np.float32)

    def source() -> Iterator[Mapping[str, Array]]:
        for chunk in fed:
            given = {"input": chunk, "state": state, "sr": np.array(rate)}
            yield {name: given[name] for name in names}

    rows = []
    async with session.stream(source(), max_in_flight=1) as results:
        async for item in results:
            probability, state = (item[name] for name in session.plan.graph.outputs)
            rows.append((probability, state))
    probabilities, states = zip(*rows, strict=True)
    return np.array(probabilities), np.array(states)


def check(mine: tuple[Array, Array], theirs: tuple[Array, Array]) -> None:
    np.testing.assert_allclose(mine[0], theirs[0], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(mine[1], theirs[1], rtol=0, atol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "rate"), [*((way, 16000) for way in WAYS), ("cpu", 8000), ("back and forth", 8000)]
)
async def test_half_a_minute_is_heard_as_by_the_reference(way: str, rate: int) -> None:
    """Every way at one rate; at the other, which takes the other branch, two of them."""
    devices, pins = WAYS[way]
    fed = chunks(sound(rate, 30)[None], rate)
    wanted = expected(model(), fed, rate)
    assert wanted[0].min() < 0.1
    assert wanted[0].max() > 0.5  # neither all silence nor all speech
    async with pl.Session(pl.plan(pl.load(model()), devices, pin=pins)) as session:
        check(await found(session, fed, rate), wanted)


@pytest.mark.parametrize("name", FILES)
async def test_every_form_of_the_network_gives_its_reference_results(name: str) -> None:
    fed = chunks(sound(16000, 3)[None], 16000)
    async with pl.Session(pl.plan(pl.load(model(name)))) as session:
        check(await found(session, fed, 16000), expected(model(name), fed, 16000))


async def test_a_batch_of_recordings_is_heard_at_once() -> None:
    fed = chunks(np.stack([sound(8000, 3, seed) for seed in range(3)]), 8000)
    async with pl.Session(pl.plan(pl.load(model()))) as session:
        check(await found(session, fed, 8000), expected(model(), fed, 8000))


@pytest.mark.slow
async def test_streams_of_both_rates_share_a_session() -> None:
    fed = {rate: chunks(sound(rate, 3)[None], rate) for rate in CHUNKS}
    plan = pl.plan(pl.load(model()), ["cpu", "worker:0"], pin={"*LSTM*": "worker:0"})
    results: dict[int, tuple[Array, Array]] = {}

    async def hear(rate: int) -> None:
        results[rate] = await found(session, fed[rate], rate)

    async with pl.Session(plan) as session, trio.open_nursery() as nursery:
        for rate in CHUNKS:
            nursery.start_soon(hear, rate)
    for rate, mine in results.items():
        check(mine, expected(model(), fed[rate], rate))


def test_chunks_in_a_row_are_heard_in_one_item() -> None:
    path = model("silero_vad_16k_sequence")
    state = np.zeros((1, 1, 128), np.float32)
    given = {"input": np.concatenate(chunks(sound(16000, 3)[None], 16000)), "h": state, "c": state}
    names = ("speech_probs", "hn", "cn")
    wanted = dict(zip(names, reference(path).run(list(names), given), strict=True))
    mine = pl.run(pl.load(path), given)
    for name in names:
        np.testing.assert_allclose(mine[name], wanted[name], rtol=0, atol=TOLERANCE)
