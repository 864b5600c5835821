"""Exact integer networks: cvm's operators and models, and its calls as `plait.cvm`."""

from typing import TYPE_CHECKING

from ...graph.lazily import lazily

if TYPE_CHECKING:
    from .files import dump_cvm, load_cvm
    from .inference import (
        Model,
        gas_from_graph_file,
        load_model,
        operations_from_graph_file,
        status,
    )
    from .precision import infer_precision

__all__ = [
    "Model",
    "dump_cvm",
    "gas_from_graph_file",
    "infer_precision",
    "load_cvm",
    "load_model",
    "operations_from_graph_file",
    "status",
]

__getattr__ = lazily(
    __name__,
    {
        ".files": "dump_cvm load_cvm",
        ".inference": "Model gas_from_graph_file load_model operations_from_graph_file status",
        ".precision": "infer_precision",
    },
)
