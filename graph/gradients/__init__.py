"""Gradients as nodes of the graph: a rule for each operator, one file per family.

Importing this package registers the rules. A rule writes the gradients of a node's inputs, given
those of its outputs, with operators that have rules themselves: gradients have gradients. It gets
the node as `at`, and yields pairs of an input's index and gradient. A helper that reads the node
gets `at` too, as its first argument.
"""

from . import (  # noqa: F401 - each registers its own
    activation,
    attention,
    control,
    convolution,
    elementwise,
    indexing,
    linear_algebra,
    movement,
    normalization,
    pooling,
    recurrent,
    reduction,
    resize,
    sampling,
    signal,
)
