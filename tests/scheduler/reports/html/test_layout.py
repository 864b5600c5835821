from __future__ import annotations

from itertools import pairwise

from counted_work import calls_of
from hypothesis import given
from hypothesis import strategies as st
from plait.scheduler.reports.html.layout import Edge, place_vertices, spread_out


@st.composite
def edges(draw: st.DrawFn) -> tuple[int, list[Edge]]:
    count = draw(st.integers(1, 25))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    drawn = draw(st.lists(pairs, max_size=50))
    return count, [(min(a, b), max(a, b)) for a, b in drawn if a != b]


@given(edges())
def test_every_edge_leads_downward(drawn: tuple[int, list[Edge]]) -> None:
    count, pairs = drawn
    layers = place_vertices(count, pairs).layers
    assert all(layers[source] < layers[target] for source, target in pairs)


@given(edges())
def test_no_two_vertices_stand_in_one_place(drawn: tuple[int, list[Edge]]) -> None:
    layout = place_vertices(*drawn)
    rows: dict[int, list[float]] = {}
    for layer, x in zip(layout.layers, layout.xs, strict=True):
        rows.setdefault(layer, []).append(x)
    for row in rows.values():
        row.sort()
        assert all(b - a > 1 - 1e-6 for a, b in pairwise(row))


@given(edges())
def test_way_points_fill_the_layers_between_the_ends_of_an_edge(
    drawn: tuple[int, list[Edge]],
) -> None:
    count, pairs = drawn
    layout = place_vertices(count, pairs)
    for vertex, chain in enumerate(layout.chains):
        spans = [layout.layers[t] - layout.layers[s] - 1 for s, t in pairs if s == vertex]
        assert len(chain) in (0, max(spans, default=0))


def test_a_chain_stands_in_one_line() -> None:
    assert set(place_vertices(5, [(0, 1), (1, 2), (2, 3), (3, 4)]).xs) == {0.0}


def test_an_input_stands_above_its_first_reader() -> None:
    layout = place_vertices(4, [(0, 2), (2, 3), (1, 3)])
    assert layout.layers == (0, 1, 1, 2)


def test_crossings_are_undone_by_order() -> None:
    """Two chains that start in the wrong order."""
    layout = place_vertices(4, [(0, 3), (1, 2)])
    xs = layout.xs
    assert (xs[0] < xs[1]) == (xs[3] < xs[2])


def test_a_layout_is_the_same_each_time() -> None:
    pairs = [(i, j) for i in range(30) for j in range(i + 1, 30) if (i * j) % 7 == 1]
    assert place_vertices(30, pairs) == place_vertices(30, pairs)


def test_the_empty_graph_has_a_layout() -> None:
    assert place_vertices(0, []).xs == ()


@given(st.lists(st.tuples(st.floats(-50, 50), st.floats(0.1, 5)), min_size=1, max_size=12))
def test_spreading_is_the_nearest_arrangement_without_overlap(
    things: list[tuple[float, float]],
) -> None:
    wanted, widths = [one for one, _ in things], [one for _, one in things]
    places = spread_out(wanted, widths)
    pairs = pairwise(zip(places, widths, strict=True))
    assert all(b - a >= (wa + wb) / 2 - 1e-6 for (a, wa), (b, wb) in pairs)

    def far(arranged: list[float]) -> float:
        return sum((a - b) ** 2 for a, b in zip(arranged, wanted, strict=True))

    for shift in (-0.01, 0.01):  # moving any tail or head that stays apart makes it worse
        for cut in range(len(places)):
            tail = [*places[:cut], *(x + abs(shift) for x in places[cut:])]
            head = [*(x - abs(shift) for x in places[:cut]), *places[cut:]]
            assert far(tail) >= far(places) - 1e-6
            assert far(head) >= far(places) - 1e-6


def test_laying_out_vertices_with_skips_takes_work_in_proportion() -> None:
    def work(count: int) -> int:
        pairs = [(max(0, i - 1 - i % 7), i) for i in range(1, count)]
        pairs += [(i - 1, i) for i in range(1, count)]
        return calls_of(lambda: place_vertices(count, pairs))

    assert work(4000) < 1.3 * 4 * work(1000)
