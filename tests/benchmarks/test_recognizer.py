"""The streaming recognizer of the benchmark finds the same tokens in each way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import plait as pl
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import bench_recognizer as bench
from plait.graph.values.tensor import Array
from streaming_zipformer import BANDS, CHUNK, save_network


class RandomEar:
    def hear(self, piece: Array) -> Iterator[Array]:
        random = np.random.default_rng(np.abs(piece[:4] * 1e6).astype(int))
        yield random.normal(-8, 3, (1, CHUNK, BANDS)).astype("float32")


def test_keys_in_a_batch_find_the_tokens_of_each_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "Ear", RandomEar)
    model, _, _ = save_network(tmp_path, tiny=True)
    sounds, hand = bench.make_sounds(3, 3), bench.ByHand(model, 1)
    wanted = hand.decode_in_turn(sounds)
    assert all(wanted)
    assert hand.decode_stacked(sounds) == wanted
    with pl.BlockingSession(pl.plan(bench.make_recognizer(model), ["ort", "cpu"])) as session:
        assert bench.decode_by_key(session, 3, sounds) == wanted


def test_sherpa_onnx_finds_the_same_tokens(tmp_path: Path) -> None:
    pytest.importorskip("sherpa_onnx")
    pytest.importorskip("kaldi_native_fbank")
    model, tokens, _ = save_network(tmp_path, tiny=True)
    sounds = bench.make_sounds(2, 4)
    wanted = bench.Sherpa(model, tokens, 1).decode(sounds)
    assert any(wanted)
    assert bench.ByHand(model, 1).decode_stacked(sounds) == wanted
    with pl.BlockingSession(pl.plan(bench.make_recognizer(model), ["ort", "cpu"])) as session:
        assert bench.decode_by_key(session, 2, sounds) == wanted
