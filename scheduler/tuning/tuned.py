"""The result of tuning: the plan, the costs, and the times of all trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

from ...devices.device import Configured
from ...graph.core.printing import format_seconds
from ..costs import Costs
from ..dispatch.core_shares import list_planned, share_cores
from ..planner.simulate import Prediction, predict
from ..plans.plan import Plan
from .trial import Trial

_COLUMNS = (
    *("", "tried", "devices", "subgraphs", "in flight", "replicas", "threads"),
    *("items/s", "p50", "p99", "predicted"),
)
_LEFT = 3


@dataclass(frozen=True, repr=False)
class Tuned:
    """The outcome of `plait.tune`.

    Attributes
    ----------
    plan : Plan
        The fastest plan of those that ran.
    costs : Costs
        The given costs; measurements take precedence over them.
    trials : tuple of Trial
        All runs, in order.
    best : Trial
        The trial of `plan`.
    rounds : int
        The number of plans made from measurements.
    notes : tuple of str
        The variants that were not tried, with the reasons.

    Examples
    --------
    >>> import numpy as np
    >>> import plait as pl
    >>> b = pl.GraphBuilder("doubled")
    >>> x = b.input("x", "float32", ("n",))
    >>> b.output("y", b.op("Add", x, x))
    >>> tuned = pl.tune(b.build(), ["cpu"], feeds={"x": np.ones(1000, "float32")})
    >>> tuned.best in tuned.trials, tuned.notes
    (True, ())
    """

    plan: Plan
    costs: Costs
    trials: tuple[Trial, ...]
    best: Trial
    rounds: int
    notes: tuple[str, ...] = ()

    def table(self) -> str:
        """Return a table of the trials with the chosen one marked, and the notes."""
        rows = [_COLUMNS, *(self._row(trial) for trial in self.trials)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = (
            "  ".join(
                f"{text:<{width}}" if place < _LEFT else f"{text:>{width}}"
                for place, (text, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        )
        return "\n".join((*lines, *self.notes))

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain values, for JSON."""
        return {
            "chosen": self.best.name,
            "rounds": self.rounds,
            "notes": [*self.notes],
            "trials": [
                {
                    "name": trial.name,
                    "devices": list(trial.plan.device_names),
                    "subgraphs": len(trial.plan.subgraphs),
                    "in_flight": _count_in_flight(trial),
                    "replicas": trial.plan.variants,
                    "threads": _count_threads(trial.plan),
                    "items_per_s": trial.items_per_s,
                    "latency_ms": {f"p{q}": trial.latency_s(q / 100) * 1e3 for q in (50, 99)},
                    "seconds": trial.seconds,
                    "predicted_s": self.predicted_s(trial),
                }
                for trial in self.trials
            ],
        }

    def predicted_s(self, trial: Trial) -> float | None:
        """Predict the seconds of `trial` from all measurements.

        None if shapes depend on values, or if the plan's devices were not measured.
        """
        found = self._predictions.get(id(trial))
        if found is None:
            return None
        return 1 / found.items_per_s if trial.is_streamed and found.items_per_s else found.seconds

    @cached_property
    def _predictions(self) -> dict[int, Prediction | None]:
        return {
            id(trial): predict(trial.plan, self.costs) for trial in self.trials if trial.is_priced
        }

    def _row(self, trial: Trial) -> Sequence[str]:
        seconds = self.predicted_s(trial)
        return (
            "*" if trial is self.best else "",
            trial.name,
            ",".join(trial.plan.device_names),
            str(len(trial.plan.subgraphs)),
            str(_count_in_flight(trial)),
            str(trial.plan.variants),
            ",".join(map(str, _count_threads(trial.plan).values())) or "-",
            f"{trial.items_per_s:.4g}",
            format_seconds(trial.latency_s(0.5)),
            format_seconds(trial.latency_s(0.99)),
            _format_prediction(seconds, trial.is_streamed),
        )

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        best, count = self.best, len(self.trials)
        return f"<Tuned: {best.name!r}, {best.items_per_s:.4g} items/s, the best of {count} trials>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.table())}</pre>"


def _format_prediction(seconds: float | None, is_rate: bool) -> str:
    if seconds is None:
        return "-"
    return f"{1 / seconds:.4g} items/s" if is_rate and seconds else format_seconds(seconds)


def _count_in_flight(trial: Trial) -> int:
    return trial.plan.in_flight if trial.is_streamed else 1


def _count_threads(plan: Plan) -> dict[str, int]:
    shares = share_cores(plan)
    found: dict[str, int] = {}
    for name in sorted(list_planned(plan) & shares.keys()):
        device = plan.prototypes[name]
        options = device.options if isinstance(device, Configured) else {}
        found[name] = options.get("threads", shares[name])
    return found
