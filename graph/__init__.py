"""The graph: what to compute. Knows no device, no trio, and runs no arrays but constants."""

from .builder import GraphBuilder
from .check import check
from .infer import infer_shapes
from .ir import Graph, Node, topological_layers
from .named_tensor import Tensor
from .python import operator
from .tensor import TensorSpec

__all__ = [
    "Graph",
    "GraphBuilder",
    "Node",
    "Tensor",
    "TensorSpec",
    "check",
    "infer_shapes",
    "operator",
    "topological_layers",
]
