"""Passes as users name them: functions, and the names of plait's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import GraphError
from ..names import did_you_mean
from .pipeline import Pass, name_of


def select(
    passes: Sequence[Pass | str], all_passes: Sequence[Pass], optional: Sequence[Pass] = ()
) -> tuple[Pass, ...]:
    """Return the passes that are meant, in order.

    A name stands for plait's pass of that name; with ``-`` before it, for leaving that one out, and
    with ``+`` for running it ahead of the others: those listed, or all of plait's but the optional
    ones if none is listed.

    Raises
    ------
    GraphError
        If there is no pass of that name.
    """
    by_name = {name_of(one): one for one in (*all_passes, *optional)}
    added: list[Pass] = []
    listed: list[Pass] = []
    left_out: set[Pass] = set()
    for one in passes:
        if not isinstance(one, str):
            listed.append(one)
        elif one.startswith("-"):
            left_out.add(_find(one[1:], by_name))
        elif one.startswith("+"):
            added.append(_find(one[1:], by_name))
        else:
            listed.append(_find(one, by_name))
    base = all_passes if (left_out or added) and not listed else listed
    rest = (one for one in base if one not in left_out and one not in added)
    return (*added, *rest)


def _find(name: str, by_name: Mapping[str, Pass]) -> Pass:
    try:
        return by_name[name]
    except KeyError:
        fix = did_you_mean(name, by_name, f"there are: {', '.join(by_name)}")
        raise GraphError(f"there is no pass {name!r}", fix=fix) from None
