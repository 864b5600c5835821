"""File types by magika's rules, as one graph: read ends (Python), score (ONNX), choose (Python).

The model and its tables come with the package `magika` (Apache-2.0), whose code is not imported. A
tensor holds numbers, so a path travels as its bytes and a label as its index in `labels()`.
"""

from __future__ import annotations

import importlib.util
import json
import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import plait as pl
from numpy.typing import NDArray

PATH_BYTES = 4096
N_TOKENS = 2048
N_SCORES = 214
ASK_MODEL = -1
"""The verdict on a file that needs the model; any other verdict is the index of its label."""

Path8 = NDArray[np.uint8]
Tokens = NDArray[np.int32]
Scores = NDArray[np.float32]


def encode_path(path: str | os.PathLike[str]) -> Path8:
    """Return a path as a tensor: its bytes, and zeros behind them."""
    raw = os.fsencode(path)
    if len(raw) > PATH_BYTES:
        raise ValueError(f"the path has {len(raw)} bytes, {PATH_BYTES} are possible: {path}")
    encoded = np.zeros(PATH_BYTES, np.uint8)
    encoded[: len(raw)] = np.frombuffer(raw, np.uint8)
    return encoded


def decode_path(encoded: Path8) -> str:
    """Return the path that `encode_path` made a tensor of."""
    return os.fsdecode(encoded.tobytes().rstrip(b"\0"))


def cut_features(head: bytes, tail: bytes) -> Tokens:
    """Return the model's tokens: the stripped ends of a file, padded towards its middle.

    `head` and `tail` are the file's first and last block: the same bytes if it has only one.
    """
    config, half = _config(), N_TOKENS // 2
    tokens = np.full(N_TOKENS, config["padding_token"], np.int32)
    begin, end = head.lstrip()[:half], tail.rstrip()[-half:]
    tokens[: len(begin)] = np.frombuffer(begin, np.uint8)
    tokens[N_TOKENS - len(end) :] = np.frombuffer(end, np.uint8)
    return tokens


def judge(head: bytes, tokens: Tokens) -> int:
    """Return the verdict on a file: ASK_MODEL, unless it has too few bytes that mean anything."""
    config = _config()
    if not head:
        return labels().index("empty")
    if tokens[config["min_file_size_for_dl"] - 1] != config["padding_token"]:
        return ASK_MODEL
    return labels().index("txt" if _is_utf8(head) else "unknown")


@pl.operator(
    (pl.TensorSpec("int32", (1, N_TOKENS)), pl.TensorSpec("int32", (1,))),
    inputs=(pl.TensorSpec("uint8", (PATH_BYTES,)),),
    name="magika.read_features",
)
def read_features(path: Path8) -> tuple[Tokens, Tokens]:
    """Read a file's ends and return its tokens and the verdict on it."""
    return _features(*_read_ends(decode_path(path), _config()["block_size"]))


def content_features(content: bytes) -> tuple[Tokens, Tokens]:
    """Return the tokens of a file that is in memory, and the verdict on it."""
    block = _config()["block_size"]
    return _features(content[:block], content[-block:])


@pl.operator(
    (pl.TensorSpec("int32", (1,)), pl.TensorSpec("float32", (1,))),
    inputs=(pl.TensorSpec("float32", (1, N_SCORES)), pl.TensorSpec("int32", (1,))),
    name="magika.choose_label",
)
def choose_label(scores: Scores, verdict: Tokens) -> tuple[Tokens, Scores]:
    """Return a file's label and the model's score for it, 1 where a verdict stands already."""
    if verdict[0] != ASK_MODEL:
        return np.array(verdict), np.ones(1, np.float32)
    best, rules = int(scores[0].argmax()), _rules()
    score = scores[0, best]
    # The thresholds are decimal fractions: compare in double precision, as magika does.
    sure = float(score) >= rules.thresholds[best]
    label = rules.trusted[best] if sure else rules.doubted[best]
    return np.array([label], np.int32), np.array([score], np.float32)


def build_graph(model: pl.Graph) -> pl.Graph:
    """Return the graph from ``path`` to ``label`` and ``score`` around magika's network."""
    builder = pl.GraphBuilder("identify")
    path = builder.input("path", "uint8", (PATH_BYTES,))
    tokens, verdict = builder.call(read_features, path, name="read")
    scores = builder.include(model, {"bytes": tokens}, prefix="model/")["target_label"]
    label, score = builder.call(choose_label, scores, verdict, name="choose")
    builder.output("label", label)
    builder.output("score", score)
    return builder.build()


def model_path() -> Path:
    """Return where magika's network lies."""
    return _package() / "models" / "standard_v3_3" / "model.onnx"


@cache
def labels() -> tuple[str, ...]:
    """Return every label there is: those of the model first, in the order of its scores."""
    space: list[str] = _config()["target_labels_space"]
    assert len(space) == N_SCORES
    return (*space, "empty", "unknown")


class _Rules(NamedTuple):
    """For each label of the model: the score it needs, what it means when trusted, and when not."""

    thresholds: tuple[float, ...]
    trusted: tuple[int, ...]
    doubted: tuple[int, ...]


@cache
def _rules() -> _Rules:
    config, space = _config(), labels()[:N_SCORES]
    kinds = json.loads((_package() / "config" / "content_types_kb.min.json").read_text())
    trusted = [config["overwrite_map"].get(label, label) for label in space]
    doubted = ["txt" if kinds[label]["is_text"] else "unknown" for label in trusted]
    return _Rules(
        tuple(config["thresholds"].get(n, config["medium_confidence_threshold"]) for n in space),
        tuple(map(labels().index, trusted)),
        tuple(map(labels().index, doubted)),
    )


@cache
def _config() -> dict[str, Any]:
    config: dict[str, Any] = json.loads(model_path().with_name("config.min.json").read_text())
    assert config["beg_size"] == config["end_size"] == N_TOKENS // 2
    assert not config["mid_size"]
    assert not config["use_inputs_at_offsets"]
    return config


@cache
def _package() -> Path:
    spec = importlib.util.find_spec("magika")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("magika's model is missing: pip install magika==1.0.3")
    return Path(spec.submodule_search_locations[0])


def _features(head: bytes, tail: bytes) -> tuple[Tokens, Tokens]:
    tokens = cut_features(head, tail)
    return tokens[np.newaxis], np.array([judge(head, tokens)], np.int32)


def _read_ends(path: str, block: int) -> tuple[bytes, bytes]:
    """Return a file's first and last `block` bytes, all of it twice where it is shorter."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(min(size, block))
        if size <= block:
            return head, head
        file.seek(size - block)
        return head, file.read(block)


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
