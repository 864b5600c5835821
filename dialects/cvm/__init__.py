"""Exact integer networks: cvm's operators and models, and its calls as `plait.cvm`.

Examples
--------
>>> import plait as pl
>>> b = pl.GraphBuilder("doubled")
>>> x = b.input("x", "int32", (4,), precision=8)
>>> b.output("y", b.op("cvm.elemwise_add", x, x))
>>> pl.cvm.infer_precision(b.build())
{'x': 8, 'y': 9}
"""

from typing import TYPE_CHECKING

from ...lazily import lazily

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

__getattr__, __dir__ = lazily(
    __name__,
    {
        ".files": "dump_cvm load_cvm",
        ".inference": "Model gas_from_graph_file load_model operations_from_graph_file status",
        ".precision": "infer_precision",
    },
)
