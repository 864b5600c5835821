"""Forks: a child process has copies of its parent's connections and queues, and not its threads.

Whatever waits for a thread in there would wait for ever, and what it sends would reach processes
that work for its parent. So all that depends on threads or connections gives them up in a child.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Inherited(Protocol):
    """Something that a forked child has a useless copy of."""

    def give_up(self) -> None:
        """Let go of it without a word to anybody; in the child, right after the fork.

        The threads that held locks are gone: these have to be made anew.
        """
        ...


_inherited: WeakSet[Inherited] = WeakSet()


def give_up_in_children(owner: Inherited) -> None:
    """Have something given up in each process that is forked from now on."""
    _inherited.add(owner)


def _give_up_all() -> None:
    for owner in list(_inherited):
        owner.give_up()
    _inherited.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_give_up_all)
