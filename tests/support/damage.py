"""Damaged files: bytes exchanged, and readers that are held to little memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

from hypothesis import strategies as st
from plait.graph.values.errors import PlaitError


def exchange_bytes(data: st.DataObject, sound: bytes, most: int) -> bytes:
    """Return a file in which from one to so many bytes, drawn from `data`, are others."""
    damaged = bytearray(sound)
    for _ in range(data.draw(st.integers(1, most))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    return bytes(damaged)


def refusal(read: Callable[[], object], most: int) -> PlaitError | None:
    """Return the error by which a reader refuses a file, if it does, within so many bytes."""
    refused: PlaitError | None = None
    tracemalloc.start()
    try:
        read()
    except PlaitError as error:
        refused = error
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < most
    return refused
