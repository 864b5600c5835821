"""PyTorch's exported programs as a format: PyTorch's own exporter converts them to ONNX."""

from __future__ import annotations

import warnings
from typing import Any, NoReturn

from ...graph.core.ir import Graph
from ...graph.formats.onnx.load import load_onnx
from ...graph.formats.registry import Format
from ...graph.values.errors import ParseError
from ...graph.values.extras import get_install_command, import_extra


def _read(program: Any) -> Graph:
    """Convert a `torch.export.ExportedProgram`; names are PyTorch's.

    Raises ParseError if the exporter's packages are not installed, or it refuses the program.
    """
    fix = get_install_command("torch")
    import_extra("onnx", "reading exported programs takes the package 'onnx'", fix, ParseError)
    missing = "PyTorch's exporter takes the package 'onnxscript'"
    import_extra("onnxscript", missing, fix, ParseError)
    torch_onnx = import_extra("torch.onnx", "this takes the package 'torch'", fix, ParseError)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own parts
        made = torch_onnx.export(program, dynamo=True, verbose=False)
    return load_onnx(made.model_proto)


def _refuse(module: Any) -> NoReturn:
    raise ParseError(
        f"a {type(module).__name__} is not a model until it is exported",
        fix="pass torch.export.export(module, examples), examples a tuple of its inputs",
    )


TORCH = Format(
    name="torch",
    objects={
        "torch.export.exported_program.ExportedProgram": _read,
        "torch.nn.modules.module.Module": _refuse,
    },
)
