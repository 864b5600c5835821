"""For how many plans more it pays to be kept open."""

from __future__ import annotations

from plait.scheduler.runtime.opened.open_plans import (
    KEPT_KEYS,
    MORE_NBYTES,
    MORE_PLANS,
    CacheStatistics,
)


def come_again(lookups: CacheStatistics, keys: range, nbytes: int = 0) -> int:
    for key in keys:
        lookups.close(key)
        lookups.miss(key, nbytes)
    return lookups.more


def test_one_more_is_kept_for_each_that_was_closed_too_early() -> None:
    lookups = CacheStatistics(1)
    lookups.miss("new", 0)
    lookups.miss("new", 0)
    assert lookups.more == 0, "it was never closed to make room"
    assert come_again(lookups, range(3)) == 3
    lookups.miss(0, 0)
    assert lookups.more == 3, "it was closed once"


def test_there_is_a_most_for_each_variant() -> None:
    assert come_again(CacheStatistics(1), range(MORE_PLANS + 9)) == MORE_PLANS
    assert come_again(CacheStatistics(2), range(2 * MORE_PLANS + 9)) == 2 * MORE_PLANS


def test_no_more_are_kept_where_those_that_are_open_are_large() -> None:
    assert come_again(CacheStatistics(1), range(3), MORE_NBYTES) == 0


def test_what_was_closed_long_ago_is_forgotten() -> None:
    lookups = CacheStatistics(1)
    for key in range(KEPT_KEYS + 1):
        lookups.close(key)
    lookups.miss(0, 0)
    assert lookups.more == 0
    lookups.miss(1, 0)
    assert lookups.more == 1


def test_hits_and_misses_are_counted() -> None:
    lookups = CacheStatistics(1)
    lookups.miss("a", 0)
    lookups.hit()
    lookups.hit()
    status = lookups.status(kept=5)
    assert (status.hits, status.misses, status.kept) == (2, 1, 5)
