"""The limit of a stream in one sentence: a device and its longest step, or the source."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ...devices.kinds import get_kind

if TYPE_CHECKING:
    from .profile import Profile

BUSY = 0.6
"""A device or a source that is busy for this share of the time is taken for the limit."""

ALONE = 1.2
"""Items under way in the mean, below which items run one at a time."""

LEAST_GAIN = 1.05
"""The rate is given for a faster step if it is this multiple of the present one."""


def describe_limit(profile: Profile) -> str:
    """Return a sentence about the limit of the rate in `profile`; empty without timed steps."""
    spent = profile.attribution()
    if not spent.wall_ns or not profile.active_s or not profile.steps():
        return ""
    active_ns = profile.active_s * 1e9
    kind, busy = _find_busiest(profile)
    source = spent.spent_ns.get("source", 0) / active_ns
    if spent.wall_ns / active_ns < ALONE:
        return f"items ran one at a time; {_describe_longest(profile, '', spent.wall_ns)}"
    if source >= max(BUSY, busy):
        return f"limit: the source, which was at work for {source:.0%} of the time"
    if busy >= BUSY:
        return f"limit: {kind}, busy for {busy:.0%} of the time; " + _describe_longest(
            profile, kind, busy * active_ns
        )
    name, ns = max(spent.spent_ns.items(), key=lambda pair: pair[1])
    return (
        f"no kind of device was busy for more than {busy:.0%} of the time; most of an item's time, "
        f"{ns / spent.wall_ns:.0%}, is {name.replace('_', ' ')}"
    )


def _find_busiest(profile: Profile) -> tuple[str, float]:
    shares = defaultdict[str, list[float]](list)
    for device, busy_s in profile.busy_s.items():
        shares[get_kind(device)].append(busy_s / profile.active_s)
    means = {kind: sum(each) / len(each) for kind, each in shares.items()}
    kind = max(means, key=means.__getitem__, default="")
    return kind, means.get(kind, 0.0)


def _describe_longest(profile: Profile, kind: str, whole_ns: float) -> str:
    taken = defaultdict[str, float](float)
    lanes = defaultdict[str, set[str]](set)
    for row in profile.steps():
        # A wait keeps no device busy, and rows are waited for while steps of their batches run.
        passive = ("wait for rows", "wait") if kind else ("wait for rows",)
        if row["kind"] not in passive and (not kind or get_kind(row["device"]) == kind):
            taken[row["step"]] += row["runs"] * row["run_ms"] * 1e6
            lanes[row["step"]].add(row["device"])
    if not taken:  # the device has worked for calls alone
        return "none of its steps was timed"
    step = max(taken, key=taken.__getitem__)
    share = min(1.0, taken[step] / (whole_ns * len(lanes[step]) if kind else whole_ns))
    gain = 1 / (1 - share / 2)
    if gain < LEAST_GAIN:
        return f"no step takes more of that than {step!r}, {share:.0%}"
    return (
        f"{step!r} takes {share:.0%} of that, and at twice its speed the rate is {gain:.2g} times"
    )
