"""Names of subgraphs: by functions, by the prefix of a model, else by place and device."""

from __future__ import annotations

import pytest
from plait.scheduler.plans.partition import name_subgraphs


@pytest.mark.parametrize(
    ("nodes", "name"),
    [
        (["decode"], "decode"),
        (["decode", "crop"], "decode + crop"),
        (["det/conv.0", "det/conv.1", "det/relu"], "det"),
        (["each/rec/conv.0", "each/rec/conv.1", "each/rec/relu"], "each/rec"),
        (["net//conv.0", "net//conv.1", "net//relu"], "net"),
        (["conv.0", "conv.1", "conv.2"], "conv"),
        (["conv", "relu", "add"], "0:ort:1"),
    ],
)
def test_a_subgraph_is_called_by_its_nodes(nodes: list[str], name: str) -> None:
    assert name_subgraphs([nodes], ["ort:1"], "model", 9) == [name]


def test_a_subgraph_of_all_nodes_is_called_by_the_graph() -> None:
    assert name_subgraphs([["conv", "relu", "add"]], ["ort"], "model", 3) == ["model"]


def test_two_subgraphs_of_one_name_are_numbered() -> None:
    parts = [["det/a", "det/b", "det/c"], ["x", "y", "z"], ["det/d", "det/e", "det/f"]]
    assert name_subgraphs(parts, ["ort", "cpu", "ort"], "g", 9) == ["det", "1:cpu", "det (2)"]
