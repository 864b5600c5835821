"""The face of passes: rewrites of graphs, patterns and rules to write them with.

Examples
--------
>>> import plait as pl
>>> from plait.passes import PASSES, simplify
>>> b = pl.GraphBuilder("copy")
>>> x = b.input("x", "float32", (2,))
>>> b.output("y", b.op("Relu", b.op("Identity", x)))
>>> [node.op for node in simplify(b.build(), PASSES).nodes]
['Relu']
"""

from typing import TYPE_CHECKING

from .lazily import lazily

if TYPE_CHECKING:
    from .graph.building.editing import Editor, feed_constants
    from .graph.passes import OPTIONAL_PASSES, PASSES, select_passes, simplify
    from .graph.passes.making import combiner, expander, preprocess, schedule, subgraph
    from .graph.passes.matching import Match, Pattern, Rule, apply, matches
    from .graph.passes.pipeline import Applied, Pass, run_passes
    from .graph.passes.rewriting import MayMerge, Rewriter
    from .graph.passes.unneeded import dead_nodes

__all__ = [
    "OPTIONAL_PASSES",
    "PASSES",
    "Applied",
    "Editor",
    "Match",
    "MayMerge",
    "Pass",
    "Pattern",
    "Rewriter",
    "Rule",
    "apply",
    "combiner",
    "dead_nodes",
    "expander",
    "feed_constants",
    "matches",
    "preprocess",
    "run_passes",
    "schedule",
    "select_passes",
    "simplify",
    "subgraph",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        ".graph.building.editing": "Editor feed_constants",
        ".graph.passes": "OPTIONAL_PASSES PASSES select_passes simplify",
        ".graph.passes.making": "combiner expander preprocess schedule subgraph",
        ".graph.passes.matching": "Match Pattern Rule apply matches",
        ".graph.passes.pipeline": "Applied Pass run_passes",
        ".graph.passes.rewriting": "MayMerge Rewriter",
        ".graph.passes.unneeded": "dead_nodes",
    },
)
