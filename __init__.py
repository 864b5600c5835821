"""plait: CPU and GPU work braided into one asynchronous dataflow."""

from . import devices
from .graph import Graph, GraphBuilder, Node, TensorSpec, check, operator, topological_layers

__version__ = "0.1.0"

__all__ = [
    "Graph",
    "GraphBuilder",
    "Node",
    "TensorSpec",
    "check",
    "devices",
    "operator",
    "topological_layers",
]
