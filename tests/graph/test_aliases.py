"""Other names for operators, as tinyflow has them. Row F12 of the seeds."""

from __future__ import annotations

import numpy as np
import plait as pl
import pytest
from plait.graph.core.operator import alias_operator, is_operator, remove_alias
from plait.graph.values.errors import GraphError, OperatorError


def test_builders_and_editors_take_an_alias() -> None:
    alias_operator("__mul_symbol__", "Mul")
    try:
        b = pl.GraphBuilder("aliased")
        b.output("y", b.op("__mul_symbol__", b.input("x", "float32", (2,)), 3.0, name="mul"))
        graph = b.build()
        assert graph.nodes[0].op == "Mul"
        assert pl.run(graph, {"x": np.ones(2, "float32")})["y"].tolist() == [3, 3]
        editor = graph.edit()
        assert editor.add("__mul_symbol__", "x", "x").op == "Mul"
        alias_operator("__mul_symbol__", "Mul")  # again, as when a cell is run again
        with pytest.raises(GraphError, match="a name already, of 'Mul'"):
            alias_operator("__mul_symbol__", "Add")
        assert not is_operator("__mul_symbol__")  # files have the operators' own names
    finally:
        remove_alias("__mul_symbol__")
    with pytest.raises(OperatorError, match="no operator '__mul_symbol__'"):
        pl.GraphBuilder("g").op("__mul_symbol__", "x")
    with pytest.raises(GraphError, match="not an alias"):
        remove_alias("__mul_symbol__")


@pytest.mark.parametrize(
    ("alias", "name", "message"),
    [("Add", "Mul", "a name already"), ("", "Mul", "not the name"), ("mul", "Mull", "Mull")],
)
def test_what_is_no_alias_is_refused(alias: str, name: str, message: str) -> None:
    with pytest.raises(pl.PlaitError, match=message):
        alias_operator(alias, name)
