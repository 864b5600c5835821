"""Forks: a child process inherits connections and queues, but no threads.

A wait for a thread would never end there, and messages would reach processes that work for the
parent. So all objects with threads or connections drop them in a child.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Inherited(Protocol):
    """An object that is unusable in a forked child."""

    def give_up(self) -> None:
        """Drop threads and connections silently; called in the child, right after the fork.

        Replace all locks: the threads that held them are gone.
        """


_inherited: WeakSet[Inherited] = WeakSet()


def register_for_forks(owner: Inherited) -> None:
    _inherited.add(owner)


def _notify_children() -> None:
    for owner in list(_inherited):
        owner.give_up()
    _inherited.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_notify_children)
