"""The public pipelines of the benchmark give what the same functions give by hand."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("cv2")

from bench_public_pipelines import are_equal, count_lines, open_with
from public.cases import CASES, Case

ITEMS = 4


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_pipeline_gives_the_results_of_the_loop_in_fewer_lines(case: Case) -> None:
    try:
        work = case.by_hand(open_with(1))
    except SystemExit as missing:
        pytest.skip(str(missing))
    items: list[Any] = list(case.make_items(1)[:ITEMS])
    fed: Any = items if case.make_first is None else map(case.make_first(), items)
    wanted = [work(item) for item in fed]
    if case.make_last is not None:
        last = case.make_last()
        wanted = [last(one) for one in wanted]
    with case.with_plait(items[0]) as pipe:
        assert are_equal(wanted, pipe.map(items))
    assert count_lines(case.with_plait) < count_lines(case.by_hand) + 2
