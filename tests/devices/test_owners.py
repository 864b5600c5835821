"""Resources that are freed elsewhere with an object here."""

from __future__ import annotations

import weakref

from plait.devices.owners import Owners


class Owner:
    pass


def test_what_belongs_to_an_object_is_freed_when_it_goes_and_only_then() -> None:
    freed = list[int]()
    owners, first, second = Owners(freed.append), Owner(), Owner()
    owners.add(first, 1)
    owners.add(first, 2)
    owners.add(second, 3)
    assert freed == []
    del first
    assert sorted(freed) == [1, 2]
    del second
    assert sorted(freed) == [1, 2, 3]


def test_an_object_that_stays_keeps_nothing_of_what_would_have_been_told() -> None:
    class Process:
        def __init__(self) -> None:
            self.freed = list[int]()

        def free(self, number: int) -> None:
            self.freed.append(number)

    process, owner = Process(), Owner()
    owners = Owners(process.free)
    owners.add(owner, 1)
    gone, freed = weakref.ref(process), process.freed
    del process, owners
    assert gone() is None
    del owner
    assert freed == []
