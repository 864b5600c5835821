"""Items that hand variables on as they run, and end in order.

A successful item waits until all earlier ones have succeeded: only then are its versions committed
and its results returned. If an item fails after it has handed a variable on, all later ones run
again from their inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from ....devices.operator_instances import OperatorInstances
from ..opened.versions import StateVersions
from .item import ItemRun


@dataclass(slots=True)
class _Member:
    """An item in flight; `settle` completes it once it has run and the earlier ones are decided."""

    item_run: ItemRun
    versions: StateVersions
    settle: Callable[[], object] | None = None


class StatePipeline:
    """Decides which versions of variables are committed; used on the trio thread only."""

    def __init__(self) -> None:
        self._members: dict[int, _Member] = {}

    def start(self, item: int, item_run: ItemRun, versions: StateVersions) -> None:
        self._members[item] = _Member(item_run, versions)

    def land(
        self,
        item: int,
        settle: Callable[[], object],
        may_commit: Callable[[ItemRun], bool],
        recall: Callable[[ItemRun], object],
    ) -> None:
        """End `item`: call `settle` once it and all earlier ones are decided.

        If `may_commit` is False for it, that is now, and its versions are withdrawn. `recall`
        restarts an item that may have read a withdrawn version.
        """
        member = self._members[item]
        member.settle = settle
        if not may_commit(member.item_run):
            self._drop(item, recall)
        while self._members:
            first = min(self._members)
            following = self._members[first]
            if following.settle is None:
                return
            if may_commit(following.item_run):
                del self._members[first]
                following.versions.commit(first)
                following.item_run.cause = None  # it has run
                following.settle()
            else:
                self._drop(first, recall)

    def _drop(self, item: int, recall: Callable[[ItemRun], object]) -> None:
        """Withdraw the versions of `item`; call `recall` with each later item, to restart it."""
        member = self._members.pop(item)
        ended: list[_Member] = []
        if member.versions.withdraw(item):
            later = [number for number in sorted(self._members) if number > item]
            running = [self._members[number].item_run for number in later]
            for number in later:
                self._members[number].versions.withdraw(number)
                if self._members[number].settle is not None:
                    ended.append(self._members.pop(number))
            for item_run in running:
                recall(item_run)
        for one in (*ended, member):
            assert one.settle is not None
            one.settle()


class KeyState:
    """The state of one key; a key that was dropped and comes back has another one.

    The `pipeline` has its items in flight, which commit in order; `users` are those that were
    admitted and have not ended.
    """

    def __init__(self, key: Hashable, versions: StateVersions) -> None:
        self.key = key
        self.versions = versions
        self.pipeline = StatePipeline()
        self.instances = OperatorInstances()
        self.users: set[object] = set()
        self.is_dropped = False
