"""Texts about passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from ...graph.escaping import listing
from ...graph.passes import Applied
from ...graph.printing import counted, seconds_text

LISTED_NAMES = 200
LISTED_DEAD = 20


def pass_lines(applied: Sequence[Applied]) -> Iterator[str]:
    """Yield one line for each pass that did something."""
    first = {one.inside: one.before for one in reversed(applied)}
    last = {one.inside: one.after for one in applied}
    before, after = sum(first.values()), sum(last.values())
    seconds = seconds_text(sum(one.seconds for one in applied))
    yield f"passes: {before:,} -> {after:,} nodes in {seconds}"
    width = max(len(_titled(one)) for one in applied)
    for one in applied:
        yield f"  {_titled(one):{width}}  {one.before:5,} -> {one.after:5,}  {_counts(one)}"


def dead_lines(dead: Mapping[str, str]) -> Iterator[str]:
    """Yield the nodes that no output needs, and why."""
    if not dead:
        return
    yield f"dead: {counted(len(dead), 'node')} that no output needs, dropped"
    for name, why in islice(dead.items(), LISTED_DEAD):
        yield f"  {name}: {why}"
    if len(dead) > LISTED_DEAD:
        yield f"  and {counted(len(dead) - LISTED_DEAD, 'node')} more"


def explained(applied: Sequence[Applied], dead: Mapping[str, str]) -> str:
    """Return what each pass did to which node, and which nodes were dead before all of them."""
    if not applied:
        return "\n".join(["passes: none of them found anything to do", *dead_lines(dead)])
    lines = [*pass_lines(applied), *dead_lines(dead)]
    for one in applied:
        lines += ["", f"{_titled(one)}, {seconds_text(one.seconds)}"]
        for what in ("rewritten", "added", "removed"):
            names = getattr(one, what)
            lines += [f"  {what:9}  {name}" for name in names[:LISTED_NAMES]]
            if len(names) > LISTED_NAMES:
                lines.append(f"  and {counted(len(names) - LISTED_NAMES, 'node')} more")
    return listing(lines)


def _titled(one: Applied) -> str:
    return f"{one.name} in {one.inside}" if one.inside else one.name


def _counts(one: Applied) -> str:
    counts = ("rewritten", one.rewritten), ("added", one.added), ("removed", one.removed)
    listed = ", ".join(f"{len(names):,} {what}" for what, names in counts if names)
    return listed or "constants alone"
