from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.scheduler.dispatch.hand_over import NOMINAL_NS
from plait.scheduler.plans.regions import ADMISSION, Region
from plait.scheduler.simulation.engine import run
from plait.scheduler.simulation.workload import (
    Placed,
    SimulatedHost,
    SimulatedLane,
    Timeline,
    Workload,
)

US = 1000


def workload(
    *steps: tuple[str, float, Sequence[int]], keeps_order: bool = False, on_host: bool = False
) -> Workload:
    """Return steps given as lane, microseconds, waits; a lane "a in" belongs to device "a"."""
    names = list(dict.fromkeys(lane for lane, _, _ in steps))
    lanes = [
        SimulatedLane(name, name.split()[0], keeps_order=keeps_order, on_host=on_host)
        for name in names
    ]
    return Workload(
        lanes,
        [names.index(lane) for lane, _, _ in steps],
        [microseconds / 1e6 for _, microseconds, _ in steps],
        [waits for _, _, waits in steps],
    )


def started_us(timeline: Timeline) -> list[float]:
    return [start / US for start in timeline.started]


def makespan_us(timeline: Timeline) -> float:
    return timeline.makespan_s * 1e6


def test_a_chain_takes_the_sum_of_its_steps() -> None:
    chain = workload(("a", 3, ()), ("b", 4, (0,)), ("a", 5, (1,)))
    timeline = run(chain)
    assert started_us(timeline) == [0, 3, 7]
    assert makespan_us(timeline) == pytest.approx(12)


def test_branches_on_two_devices_overlap() -> None:
    fork = workload(("a", 2, ()), ("a", 5, (0,)), ("b", 4, (0,)), ("a", 1, (1, 2)))
    assert started_us(run(fork)) == [0, 2, 2, 7]


def calls(depth: int, *steps: tuple[str, float, Sequence[int]]) -> Workload:
    """Return steps of which those on the lane "calls" await, so many at a time."""
    work = workload(*steps)
    lanes = [
        replace(lane, depth=depth, awaits=True) if lane.name == "calls" else lane
        for lane in work.lanes
    ]
    return replace(work, lanes=lanes)


def test_calls_that_wait_keep_no_lane_and_not_each_other() -> None:
    fork = calls(
        9, ("calls", 7, ()), ("calls", 5, ()), ("a", 2, ()), ("a", 2, (2,)), ("a", 1, (0, 1))
    )
    timeline = run(fork)
    assert started_us(timeline) == [0, 0, 0, 2, 7]
    assert makespan_us(timeline) == pytest.approx(8)


def test_of_calls_no_more_are_under_way_than_may_be_and_older_items_come_first() -> None:
    timeline = run(calls(2, ("calls", 3, ()), ("calls", 4, (0,))), items=4, max_in_flight=4)
    # Two at a time: 0 and 1 make their first calls, then their second ones; so do 2 and 3.
    assert started_us(timeline) == [0, 3, 0, 3, 7, 10, 7, 10]
    assert timeline.bound[4] in (1, 3)


@given(
    durations=st.lists(st.integers(1, 50), min_size=1, max_size=20),
    depth=st.integers(1, 5),
)
def test_calls_are_shared_out_as_a_list_scheduler_does(durations: list[int], depth: int) -> None:
    timeline = run(calls(depth, *(("calls", duration, ()) for duration in durations)))
    servers, ends = [0] * depth, []
    for duration in sorted(durations, reverse=True):  # what takes longest goes first
        first = servers.index(min(servers))
        servers[first] += duration
        ends.append(servers[first])
    assert makespan_us(timeline) == pytest.approx(max(ends))


def test_branches_on_one_device_take_turns_in_the_order_of_submission() -> None:
    fork = workload(("a", 2, ()), ("a", 5, (0,)), ("a", 4, (0,)))
    assert started_us(run(fork)) == [0, 2, 7]


def test_two_stages_work_on_two_items_at_once() -> None:
    stages = workload(("a", 3, ()), ("b", 3, (0,)))
    timeline = run(stages, items=4, max_in_flight=2)
    assert started_us(timeline) == [0, 3, 3, 6, 6, 9, 9, 12]


def test_with_one_item_in_flight_items_go_one_after_another() -> None:
    stages = workload(("a", 3, ()), ("b", 3, (0,)))
    timeline = run(stages, items=3, max_in_flight=1)
    assert started_us(timeline) == [0, 3, 6, 9, 12, 15]
    assert timeline.admitted == [0, 6 * US, 12 * US]


def test_an_item_is_let_in_when_all_earlier_results_are_out() -> None:
    """The consumer takes results in order, so an item that overtook another holds its place."""
    steps = workload(("a", 10, ()), ("b", 1, ()))
    timeline = run(steps, items=3, max_in_flight=2)
    assert timeline.admitted == [0, 0, 10 * US]
    assert timeline.admitted_by[2] == 0


def test_work_behind_a_native_wait_holds_up_its_lane() -> None:
    """A device that keeps the order itself was given its work in that order."""
    chained = workload(
        ("a in", 5, ()), ("a", 1, (0,)), ("b", 3, ()), ("a", 1, (2,)), keeps_order=True
    )
    assert started_us(run(chained)) == [0, 5, 0, 6]


def test_work_that_still_waits_is_not_submitted_where_the_scheduler_keeps_the_order() -> None:
    steps = workload(("a in", 5, ()), ("a", 1, (0,)), ("b", 3, ()), ("a", 1, (2,)))
    assert started_us(run(steps)) == [0, 5, 0, 3]


def test_the_copies_of_a_region_let_in_as_many_items() -> None:
    stages = workload(("a", 1, ()), ("b", 5, (0,)))
    between = Region("host", "between", 8, copies=1, claims=(0,), releases=(1,))
    timeline = run(stages, items=3, max_in_flight=3, regions=[between])
    assert started_us(timeline) == [0, 1, 6, 7, 12, 13]
    double = Region("host", "between", 8, copies=2, claims=(0,), releases=(1,))
    timeline = run(stages, items=3, max_in_flight=3, regions=[double])
    assert started_us(timeline) == [0, 1, 1, 6, 6, 11]
    assert timeline.bound[4] == 1, "the third item's first step waits for memory of the first"


def test_a_region_claimed_at_admission_delays_the_admission() -> None:
    steps = workload(("a", 1, ()), ("b", 5, (0,)))
    fed = Region("host", "fed", 8, copies=1, claims=(ADMISSION,), releases=(0,))
    timeline = run(steps, items=3, max_in_flight=3, regions=[fed])
    assert timeline.admitted == [0, 1 * US, 2 * US]


def test_a_lane_that_is_woken_by_others_begins_later() -> None:
    lanes = [
        SimulatedLane("a", "a", wake_s=2e-6, gap_s=1e-6, report_s=3e-6),
        SimulatedLane("b", "b", wake_s=4e-6),
    ]
    steps = Workload(lanes, [0, 0, 1], [10e-6] * 3, [(), (0,), (1,)])
    timeline = run(steps)
    # a: woken at 2; ends at 12, known at 15, on its own lane at once; ends at 25, known at 28.
    assert started_us(timeline) == [2, 15, 32]


def test_the_loop_feeds_and_lands_one_item_at_a_time() -> None:
    steps = workload(("a", 10, ()))
    host = SimulatedHost(feed_s=3e-6, land_s=2e-6, feed_delay_s=1e-6, land_delay_s=5e-6)
    timeline = run(steps, items=2, max_in_flight=2, host=host)
    assert timeline.admitted == [0, 4 * US]
    assert started_us(timeline) == [4, 14]
    assert timeline.landed == [19 * US, 29 * US]


def test_kernels_that_python_calls_wait_while_the_loop_works() -> None:
    lane = SimulatedLane("a", "a", shares_interpreter=True)
    steps = Workload([lane], [0], [10e-6], [()])
    timeline = run(steps, items=2, max_in_flight=2, host=SimulatedHost(feed_s=3e-6))
    # The first item begins at 3 and is held up while the second is fed, from 3 to 6.
    assert timeline.ended == [16 * US, 26 * US]


def test_where_all_cores_are_busy_the_loop_takes_its_time_from_the_lanes() -> None:
    lane = SimulatedLane("a", "a", on_host=True)
    steps = Workload([lane], [0], [10e-6], [()])
    ended = {
        cores: run(
            steps, items=2, max_in_flight=2, host=SimulatedHost(cores=cores, feed_s=3e-6)
        ).ended[0]
        for cores in (1, 2)
    }  # fmt: skip
    assert ended == {1: 16 * US, 2: 13 * US}


def test_an_end_in_another_process_interrupts_kernels_that_python_calls() -> None:
    lanes = [
        SimulatedLane("a", "a", shares_interpreter=True),
        SimulatedLane("b", "b", notice_s=2e-6),
    ]
    timeline = run(Workload(lanes, [0, 1], [10e-6, 4e-6], [(), ()]))
    assert timeline.ended == [12 * US, 4 * US]


def test_the_way_to_a_lane_depends_on_where_it_begins() -> None:
    lanes = [
        SimulatedLane("a", "a"),
        SimulatedLane("b", "b", wake_s=7e-6, wake_after_s={"a": 2e-6}),
    ]
    steps = Workload(lanes, [0, 1, 1], [10e-6, 1e-6, 1e-6], [(), (), (0,)])
    assert started_us(run(steps)) == [0, 7, 12]


def test_more_lanes_than_cores_slow_each_other_down() -> None:
    pair = workload(("a", 6, ()), ("b", 6, ()), on_host=True)
    assert makespan_us(run(pair, host=SimulatedHost(cores=2))) == pytest.approx(6)
    assert makespan_us(run(pair, host=SimulatedHost(cores=1))) == pytest.approx(12)


def test_a_lane_has_the_core_for_itself_again_when_the_other_one_ends() -> None:
    pair = workload(("a", 2, ()), ("b", 6, ()), on_host=True)
    timeline = run(pair, host=SimulatedHost(cores=1))
    assert timeline.ended == [4 * US, 8 * US]


def test_busy_cores_disturb_each_other() -> None:
    pair = workload(("a", 5, ()), ("b", 10, ()), on_host=True)
    timeline = run(pair, host=SimulatedHost(cores=2, contention=0.2))
    assert timeline.ended == [6 * US, 11 * US]


def quick_first(*steps: tuple[str, float, Sequence[int]], fixed: Sequence[int] = ()) -> Workload:
    """Return steps on lanes that take 9 us to wake up; those of "here" may run on any thread,
    but for those that are `fixed`."""
    found = workload(*steps)
    inline = [
        step
        for step, (lane, _, _) in enumerate(steps)
        if lane.startswith("here") and step not in fixed
    ]
    lanes = [replace(lane, wake_s=9e-6, here_s=2e-6) for lane in found.lanes]
    return replace(found, lanes=lanes, inline=inline)


def test_a_quick_step_begins_without_its_lane_being_woken() -> None:
    assert started_us(run(quick_first(("here", 5, ()), ("lane", 5, ())))) == [2, 9]


def test_a_step_that_is_not_quick_is_woken() -> None:
    slow = NOMINAL_NS / US
    assert started_us(run(quick_first(("here", slow, ())))) == [9]


def test_a_quick_step_that_may_run_on_its_own_thread_alone_is_woken() -> None:
    assert started_us(run(quick_first(("here", 5, ()), fixed=[0]))) == [9]


def test_a_quick_step_whose_lane_is_busy_waits_for_it() -> None:
    assert started_us(run(quick_first(("here", 5, ()), ("here", 5, ())))) == [2, 7 + 9]


def test_a_quick_step_may_run_on_the_thread_of_another_lane() -> None:
    steps = quick_first(("lane", 5, ()), ("here", 5, (0,)))
    timeline = run(steps, host=SimulatedHost(land_delay_s=3e-6, land_here_s=1e-6))
    assert started_us(timeline) == [9, 16]
    assert timeline.landed == [24 * US], "the loop is woken at the end"


def test_the_loop_lands_at_once_what_it_ran_itself() -> None:
    steps = quick_first(("here", 5, ()), ("here too", 4, (0,)))
    timeline = run(steps, host=SimulatedHost(land_delay_s=30e-6, land_here_s=1e-6))
    assert started_us(timeline) == [2, 9]
    assert timeline.landed == [14 * US]


def test_the_loop_feeds_the_next_item_when_it_has_run_the_quick_steps_of_one() -> None:
    steps = quick_first(("here", 5, ()))
    timeline = run(
        steps,
        items=2,
        max_in_flight=2,
        host=SimulatedHost(feed_s=1e-6, land_s=3e-6, land_here_s=1e-6),
    )
    assert timeline.landed == [9 * US, 21 * US]
    assert timeline.admitted == [0, 12 * US]
    assert started_us(timeline) == [3, 15]


def two_replicas(*durations_us: float) -> Workload:
    """Return one step on a lane of its own for each variant, and one on a lane of all."""
    lanes = [SimulatedLane(f"own {index}", f"own {index}") for index in range(len(durations_us))]
    common = len(lanes)
    others = [
        Placed([index, common], [duration / 1e6, 1e-6])
        for index, duration in enumerate(durations_us)
    ]
    first = others.pop(0)
    return Workload([*lanes, SimulatedLane("common", "common")], *first, [(), (0,)], others=others)


def test_items_go_to_the_replica_with_the_fewest_and_of_equals_to_the_next() -> None:
    timeline = run(two_replicas(10, 10, 10), items=7, max_in_flight=3)
    assert timeline.variant == [0, 1, 2, 0, 1, 2, 0]


def test_a_replica_that_is_free_sooner_gets_more_items() -> None:
    timeline = run(two_replicas(100, 10), items=20, max_in_flight=12)
    assert timeline.variant.count(1) > 2 * timeline.variant.count(0)


def test_each_replica_has_its_own_memory() -> None:
    between = Region("host", "between", 8, copies=1, claims=(0,), releases=(1,))
    timeline = run(two_replicas(10, 10), items=4, max_in_flight=4, regions=[between])
    assert timeline.started[::2] == [0, 0, 11 * US, 12 * US]
    assert timeline.bound[4] == 1, "the third item waits for memory of the first"


def test_a_graph_without_steps_passes_through() -> None:
    timeline = run(Workload([], [], [], []), items=3)
    assert timeline.landed == [0, 0, 0]


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    count = draw(st.integers(1, 10))
    names = ("a", "a in", "b", "c")
    steps = []
    for step in range(count):
        earlier = st.sets(st.integers(0, step - 1), max_size=3) if step else st.just(set[int]())
        steps.append((draw(st.sampled_from(names)), draw(st.integers(0, 9)), sorted(draw(earlier))))
    return workload(*steps, keeps_order=draw(st.booleans()), on_host=draw(st.booleans()))


def longest_path_us(steps: Workload) -> float:
    ends: list[float] = []
    for duration, waits in zip(steps.duration_s, steps.waits, strict=True):
        ends.append(max((ends[wait] for wait in waits), default=0.0) + duration * 1e6)
    return max(ends)


def busiest_us(steps: Workload) -> float:
    spent = [0.0] * len(steps.lanes)
    for lane, duration in zip(steps.lane, steps.duration_s, strict=True):
        spent[lane] += duration * 1e6
    return max(spent)


@given(workloads(), st.integers(1, 6), st.integers(1, 4))
def test_nothing_is_faster_than_the_longest_path_or_the_busiest_lane(
    steps: Workload, items: int, max_in_flight: int
) -> None:
    timeline = run(steps, items=items, max_in_flight=max_in_flight)
    least = max(longest_path_us(steps), items * busiest_us(steps))
    assert makespan_us(timeline) >= least - 1e-6
    assert makespan_us(timeline) <= items * sum(steps.duration_s) * 1e6 + 1e-6


@given(workloads(), st.integers(1, 6), st.integers(1, 4))
def test_steps_wait_for_each_other_and_take_turns_on_lanes(
    steps: Workload, items: int, max_in_flight: int
) -> None:
    timeline = run(steps, items=items, max_in_flight=max_in_flight)
    n = timeline.n_steps
    for entry, start in enumerate(timeline.started):
        item, step = divmod(entry, n)
        assert start >= timeline.admitted[item]
        assert all(start >= timeline.ended[item * n + wait] for wait in steps.waits[step])
        assert timeline.landed[item] >= timeline.ended[entry]
    for lane in range(len(steps.lanes)):
        taken = sorted(
            (timeline.started[entry], timeline.ended[entry])
            for entry in range(n * items)
            if steps.lane[entry % n] == lane
        )
        assert all(first[1] <= second[0] for first, second in pairwise(taken))


@given(workloads(), st.integers(1, 6), st.integers(1, 4))
def test_no_more_items_are_under_way_than_allowed(
    steps: Workload, items: int, max_in_flight: int
) -> None:
    timeline = run(steps, items=items, max_in_flight=max_in_flight)
    for item in range(max_in_flight, items):
        assert timeline.admitted[item] >= max(timeline.landed[: item - max_in_flight + 1])


@given(workloads(), st.integers(1, 5))
def test_one_item_in_flight_takes_that_many_times_as_long_as_one(
    steps: Workload, items: int
) -> None:
    alone = makespan_us(run(steps))
    assert makespan_us(run(steps, items=items)) == pytest.approx(items * alone)


@settings(max_examples=50)
@given(workloads(), st.integers(1, 6), st.integers(1, 4), st.integers(1, 3), st.data())
def test_two_items_never_hold_the_same_copy_of_a_region(
    steps: Workload, items: int, max_in_flight: int, copies: int, data: st.DataObject
) -> None:
    n = len(steps.lane)
    claim = data.draw(st.integers(0, n - 1))
    last = data.draw(st.sampled_from([claim, n]))
    region = Region("host", "r", 8, copies, claims=(claim,), releases=(last,))
    timeline = run(steps, items=items, max_in_flight=max_in_flight, regions=[region])
    for item in range(copies, items):
        before = item - copies
        freed = timeline.landed[before] if last == n else timeline.ended[before * n + last]
        assert timeline.started[item * n + claim] >= freed


@given(workloads(), st.integers(1, 4), st.integers(1, 3), st.floats(0, 0.5))
def test_shared_cores_make_nothing_faster(
    steps: Workload, items: int, cores: int, contention: float
) -> None:
    """No bound from above on what it costs: like all list schedules this has anomalies."""
    host = SimulatedHost(cores=cores, contention=contention)
    timeline = run(steps, items=items, max_in_flight=2, host=host)
    on_host = [lane.on_host for lane in steps.lanes]
    n = timeline.n_steps
    for entry, start in enumerate(timeline.started):
        duration = round(steps.duration_s[entry % n] * 1e9)
        assert timeline.ended[entry] - start >= duration
        if not on_host[steps.lane[entry % n]]:
            assert timeline.ended[entry] - start == duration
