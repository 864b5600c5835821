"""Keywords of other libraries, and the arguments of plait that mean the same."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from .errors import PlanError, SessionError

MEANINGS = {
    "batch_size": "batch= of stream(), or MicroBatches for requests",
    "callbacks": "on_event= of a session",
    "device": "devices= of plan()",
    "execution_providers": "devices= of plan(), such as 'ort' or 'cuda:0'",
    "feed_dict": "the feeds as the first argument",
    "input_feed": "the feeds as the first argument",
    "intra_op_num_threads": "device('ort', threads=...) among the devices of plan()",
    "jobs": "devices='worker:0..3' of plan(), or workers= of a pipeline's step",
    "max_queue_size": "max_in_flight= of stream()",
    "max_workers": "devices='worker:0..3' of plan(), or workers= of a pipeline's step",
    "n_jobs": "devices='worker:0..3' of plan(), or workers= of a pipeline's step",
    "num_threads": "device('ort', threads=...) among the devices of plan()",
    "num_workers": "devices='worker:0..3' of plan(), or workers= of a pipeline's step",
    "output_names": "fetches=",
    "prefetch": "max_in_flight= of stream()",
    "prefetch_factor": "max_in_flight= of stream()",
    "providers": "devices= of plan(), such as 'ort' or 'cuda:0'",
    "queue_size": "max_in_flight= of stream()",
    "threads": "device('cpu', threads=...) among the devices of plan()",
    "timeout": "deadline_s= of run() and stream()",
    "timeout_ms": "deadline_s= of run() and stream()",
    "timeout_s": "deadline_s= of run() and stream()",
    "workers": "devices='worker:0..3' of plan(), or workers= of a pipeline's step",
}
"""For keywords that users bring along, the place where plait takes the same."""


def make_keyword_error(
    names: Iterable[str], function: str, known: Collection[str]
) -> PlanError | SessionError:
    """Return the error for keywords that a function does not take."""
    name = next(iter(names))
    close = get_close_matches(name, known, 1)
    found = f"{close[0]}=" if close else MEANINGS.get(name, f"one of {', '.join(known)}")
    kind = PlanError if function == "plan" else SessionError
    return kind(f"{function}() takes no {name}=", fix=f"use {found}")
