from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from single_node import run_node

Int32s = np.ndarray[Any, np.dtype[np.int32]]

GONE = [-1] * 6
LARGE = 2**31 - 1


@settings(max_examples=30, deadline=None)
@given(
    x=hnp.arrays(
        np.int32,
        st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(2, 7)),
        elements=st.integers(-4, 4),
    ),
    threshold=st.integers(-4, 4),
)
def test_get_valid_counts_moves_boxes_that_score_to_the_front(x: Int32s, threshold: int) -> None:
    counts, y = run_node("cvm.get_valid_counts", [x], {"score_threshold": threshold}, n_outputs=2)
    for sample, count, found in zip(x.tolist(), counts.tolist(), y.tolist(), strict=True):
        kept = [box for box in sample if box[1] > threshold]
        assert count == len(kept)
        assert found == kept + [[-1] * len(sample[0])] * (len(sample) - len(kept))


def overlap(a: list[int], b: list[int]) -> int:
    """Return the hundredths of intersection over union, by trap 4 of the models' rules."""
    width = max(0, min(a[4], b[4]) - max(a[2], b[2]))
    height = max(0, min(a[5], b[5]) - max(a[3], b[3]))
    areas = (a[4] - a[2]) * (a[5] - a[3]) + (b[4] - b[2]) * (b[5] - b[3])
    shared = width * height
    union = areas - shared
    if areas <= 0 or union <= 0:
        return 0
    if shared > (2**63 - 1) // 100:
        return shared // (union // 100)
    return shared * 100 // union


def suppressed(boxes: list[list[int]], count: int, **attributes: Any) -> list[list[int]]:
    total = min(max(count, 0), len(boxes))
    ranked = sorted(boxes[:total], key=lambda box: box[1], reverse=True)
    top_k, most = attributes["top_k"], attributes["max_output_size"]
    kept: list[list[int]] = []
    for box in ranked[: total if top_k < 0 else top_k]:
        if len(kept) >= (total if most < 0 else most):
            break
        rivals = [k for k in kept if attributes["force_suppress"] or k[0] == box[0]]
        if box[0] >= 0 and all(overlap(k, box) < attributes["iou_threshold"] for k in rivals):
            kept.append(box)
    return kept + [GONE] * (len(boxes) - len(kept))


SMALL = st.integers(-2, 8)
HUGE = st.sampled_from([-(2**31), LARGE, -(2**30), 2**30, 2**30 - 1, 1 - 2**30, 0, 1])


def boxes(coordinates: st.SearchStrategy[int]) -> st.SearchStrategy[list[list[int]]]:
    box = st.tuples(st.integers(-1, 2), st.integers(0, 5), *[coordinates] * 4).map(list)
    return st.lists(box, min_size=1, max_size=9)


@pytest.mark.parametrize("coordinates", [SMALL, HUGE], ids=["small", "huge"])
@settings(max_examples=80, deadline=None)
@given(
    data=st.data(),
    count=st.integers(-1, 10),
    iou_threshold=st.integers(1, 101),
    max_output_size=st.integers(-1, 4),
    top_k=st.integers(-1, 6),
    force_suppress=st.booleans(),
)
def test_non_max_suppression_keeps_the_best_of_overlapping_boxes(
    coordinates: st.SearchStrategy[int], data: st.DataObject, count: int, **attributes: Any
) -> None:
    sample = data.draw(boxes(coordinates))
    (y,) = run_node(
        "cvm.non_max_suppression",
        [np.array([sample], np.int32), np.array([count], np.int32)],
        attributes,
    )
    assert y[0].tolist() == suppressed(sample, count, **attributes)


def suppress(sample: list[list[int]], count: int | None = None, **attributes: Any) -> list[Any]:
    (y,) = run_node(
        "cvm.non_max_suppression",
        [
            np.array([sample], np.int32),
            np.array([len(sample) if count is None else count], np.int32),
        ],
        attributes,
    )
    found: list[Any] = y[0].tolist()
    return found


A, NEAR_A, OTHER_CLASS = [0, 9, 0, 0, 10, 10], [0, 8, 0, 0, 10, 9], [1, 7, 0, 0, 10, 10]


def test_a_box_at_the_threshold_is_dropped() -> None:
    assert suppress([A, NEAR_A], iou_threshold=90) == [A, GONE]
    assert suppress([A, NEAR_A], iou_threshold=91) == [A, NEAR_A]


def test_boxes_of_other_classes_do_not_compete_unless_forced() -> None:
    assert suppress([OTHER_CLASS, A]) == [A, OTHER_CLASS]
    assert suppress([OTHER_CLASS, A], force_suppress=True) == [A, GONE]


def test_a_box_without_class_takes_a_place_among_the_top_but_suppresses_nobody() -> None:
    nobody = [-1, 10, 0, 0, 10, 10]
    assert suppress([nobody, A], top_k=1) == [GONE, GONE]
    assert suppress([nobody, A], top_k=2, force_suppress=True) == [A, GONE]


def test_an_output_size_of_zero_keeps_nothing() -> None:
    assert suppress([A], max_output_size=0) == [GONE]


def test_a_threshold_over_one_hundred_keeps_equal_boxes() -> None:
    assert suppress([A, A], iou_threshold=101) == [A, A]
    assert suppress([A, A], iou_threshold=100) == [A, GONE]


def test_of_equal_scores_the_first_box_wins() -> None:
    other = [0, 9, 1, 0, 10, 10]
    assert suppress([other, A]) == [other, GONE]


def test_a_sample_without_valid_boxes_leaves_later_ones_alone() -> None:
    x = np.array([[A, NEAR_A], [A, NEAR_A]], np.int32)
    (y,) = run_node("cvm.non_max_suppression", [x, np.array([0, 1], np.int32)])
    assert y.tolist() == [[GONE, GONE], [A, GONE]]
