"""cuDNN itself, where it is installed, plans what plait asks of it, for GPUs that are elsewhere."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import cudnn_without_gpu
import numpy as np
import pytest
from cudnn_without_gpu import TARGETS
from plait.devices.cuda import attention
from plait.devices.cuda.convolutions import StaticConvolution
from plait.devices.cuda.cudnn_graphs import Computable, is_attention_for_cudnn

from .test_cuda_attention import Sizes, feeds_of, found_in, graph_of

pytestmark = pytest.mark.slow

HEADS = Sizes(2, 8, 8, 512, 512, 64, 64)
ATTENTIONS: dict[str, tuple[Sizes, tuple[int, ...], dict[str, Any]]] = {
    "plain": (HEADS, (), {}),
    "causal": (HEADS, (), {"is_causal": True}),
    "padded": (HEADS, (2, 1, 1, 512), {}),
    "a mask for each head, causal": (HEADS, (8, 512, 512), {"is_causal": True}),
    "shared keys, causal": (HEADS._replace(shared=2), (), {"is_causal": True}),
    "odd lengths": (HEADS._replace(queries=197, keys=77), (197, 77), {}),
    "wide heads": (Sizes(1, 16, 4, 1024, 1024, 128, 128), (), {"is_causal": True}),
}


def ask(asked: list[Computable], tmp_path: Path) -> list[list[Any]]:
    """Return what each target has for each computation."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler to make a driver of")
    given = tmp_path / "asked"
    given.write_bytes(pickle.dumps(asked))
    command = [sys.executable, cudnn_without_gpu.__file__, str(tmp_path), str(given)]
    path = os.pathsep.join(sys.path)
    made = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True)
    assert made.returncode == 0, made.stderr.decode()
    found = [json.loads(line) for line in made.stdout.splitlines()]
    if not found:
        pytest.skip(
            "cuDNN is not installed: pip install nvidia-cudnn-cu13 nvidia-cublas nvidia-cuda-nvrtc"
        )
    return found


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_attention_is_planned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dtype: str) -> None:
    """From Ampere on there is at least one engine for each that plait takes to be for cuDNN."""
    monkeypatch.setattr(attention, "LEAST", 0)
    asked: list[Computable] = []
    for number, (s, lengths, attributes) in enumerate(ATTENTIONS.values()):
        mask = np.zeros(lengths, feeds_of(s, dtype)["q"].dtype) if lengths else None
        rows = number % 2 == 1
        heads = {"q_num_heads": s.heads, "kv_num_heads": s.shared} if rows else {}
        graph = graph_of(feeds_of(s, dtype, mask, rows=rows), **attributes, **heads)
        one = found_in(graph, tf32=True)
        assert one is not None
        assert is_attention_for_cudnn(one)
        asked.append(one)
    found = ask(asked, tmp_path)
    assert [name for name, _ in found] == [target.name for target in TARGETS] * len(asked)
    titles = [title for title in ATTENTIONS for _ in TARGETS]
    for title, (name, engines) in zip(titles, found, strict=True):
        assert isinstance(engines, int), f"{title} on {name}: {engines}"
        assert engines > 0, f"{title} on {name}"


def test_convolutions_are_planned(tmp_path: Path) -> None:
    asked: list[Computable] = []
    for dtype, kernel, group in product(("float16", "bfloat16", "float32"), (1, 3), (1, 2)):
        weights, y = (64, 64 // group, kernel, kernel), (2, 64, 29 - kernel, 29 - kernel)
        moves = (0, 0), (0, 0), (1, 1), (1, 1)
        asked.append(StaticConvolution(dtype, (2, 64, 28, 28), weights, y, *moves, True))
    for name, engines in ask(asked, tmp_path):
        assert isinstance(engines, int), f"{name}: {engines}"
        assert engines > 0, name
