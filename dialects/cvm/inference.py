"""Exact integer inference: cvm models, loaded and run by the calls of cvm's own interface.

Bytes in, bytes out, the same bits on every device. Errors are raised instead of returned as a
status; `status` converts them to cvm's numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...devices.device import Device
from ...graph.values.errors import LogicError, PlaitError, RuntimeFailureError
from ...graph.values.tensor import Array
from ...scheduler.bridges.blocking_session import BlockingSession
from ...scheduler.planner.api import plan
from .files import CvmModel, Source, load_cvm, load_symbol
from .files.graph import DATA
from .gas import count_gas, count_operations

ARGMAX, DETECTION = "argmax", "detection"


def load_model(symbol: Source, params: Source, device: str | Device = "cpu") -> Model:
    """Load a model, ready to run on `device`.

    Parameters
    ----------
    symbol, params : bytes or path
        The content of the model's two files, or their paths.
    device : str or Device, default "cpu"
        Every device that runs the model's operators computes the same bits.

    Raises
    ------
    LogicError, GraphError
        If the model breaks a rule: code 1.
    RuntimeFailureError, DeviceError, PlanError
        If it cannot be read, or cannot run on that device: code 2.

    Examples
    --------
    ::

        with pl.cvm.load_model("symbol.json", "params.bin") as model:
            scores = np.frombuffer(model.inference(image.tobytes()), np.int8)
    """
    return Model(load_cvm(symbol, params), device)


def operations_from_graph_file(symbol: Source) -> int:
    """Count the operations of an inference of the model `symbol`; nothing is allocated.

    ``CVMAPIGetGasFromGraphFile`` returns the same number, despite its name.

    Raises
    ------
    LogicError, RuntimeFailureError, GraphError
        Like `load_model`.
    """
    return count_operations(load_symbol(symbol).graph)


def gas_from_graph_file(symbol: Source, *, array: bool = False) -> int:
    """Return a ledger's charge for an inference: one unit of gas per 20,000 operations.

    Parameters
    ----------
    symbol : bytes or path
        The symbol alone; nothing is allocated.
    array : bool, default False
        Whether the input is an array stored in the ledger, for which there is a minimum charge.

    Raises
    ------
    LogicError, RuntimeFailureError, GraphError
        Like `load_model`.
    """
    return count_gas(operations_from_graph_file(symbol), array=array)


def status(error: BaseException | None) -> int:
    """Return cvm's number for the outcome `error`; None means success.

    0 is success, 1 a mistake of the model or the caller (charged), and 2 any other error.
    """
    if error is None:
        return 0
    return error.code if isinstance(error, PlaitError) else 2


class Model:
    """A cvm model on a device.

    Attributes
    ----------
    operations, gas : int
        The operations of an inference, and the gas for them. cvm's own calls name the former gas.
    storage_size : int
        Bytes of its tensors, by the model's storage table.

    Notes
    -----
    A model owns its device, memory and a thread until it is closed. Any thread may call
    `inference`; calls run one by one.
    """

    def __init__(self, model: CvmModel, device: str | Device = "cpu") -> None:
        self.version = model.version
        self.postprocess_method = model.postprocess
        self.storage_size = model.storage_bytes
        self.operations = count_operations(model.graph)
        self.gas = count_gas(self.operations)
        self._heads = model.graph.outputs
        self._shapes = [model.graph.tensors[name].static_shape for name in self._heads]
        self._input_shape = model.graph.tensors[DATA].static_shape
        self._input_bits = model.precisions[DATA]
        # One size for all outputs, since their bytes are joined in one array.
        self._output_bits = max(model.precisions[name] for name in self._heads)
        # Before anything is opened, so that a refused model does not hold a device.
        self._check_rows()
        self._session: BlockingSession | None = BlockingSession(plan(model.graph, device))

    @property
    def input_type_size(self) -> int:
        """Bytes per value of the input: 1 if its precision is at most 8, else 4."""
        return 1 if self._input_bits <= 8 else 4

    @property
    def output_type_size(self) -> int:
        """Bytes per value of the output: 1 if all precisions are at most 8, else 4.

        Positions and detections always take 4.
        """
        narrow = self._output_bits <= 8 and self.postprocess_method not in (ARGMAX, DETECTION)
        return 1 if narrow else 4

    @property
    def input_length(self) -> int:
        return math.prod(self._input_shape) * self.input_type_size

    @property
    def output_length(self) -> int:
        per_row = self.postprocess_method == ARGMAX
        counts = (math.prod(shape[:-1] if per_row else shape) for shape in self._shapes)
        return sum(counts) * self.output_type_size

    def inference(self, data: bytes | bytearray | memoryview) -> bytes:
        """Return the output for `data`; numbers are little-endian, values too large are clipped.

        Raises
        ------
        LogicError
            If the input has another length than `input_length`.
        RuntimeFailureError
            If the model is closed, or the input is not bytes.
        """
        if self._session is None:
            raise RuntimeFailureError("the model is closed", fix="load it again")
        return self._output(self._session.run({DATA: self._input(data)}))

    def close(self) -> None:
        """Close the session. May be called twice."""
        # Taken first, so that only one of two threads closes it.
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _input(self, data: Any) -> Array:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise RuntimeFailureError(f"the input is a {type(data).__name__}", fix="pass bytes")
        # The length of a memoryview counts elements, which may have several bytes.
        raw = bytes(data)
        if len(raw) != self.input_length:
            raise LogicError(
                f"the input has {len(raw)} bytes, the model takes {self.input_length}",
                fix=f"pass {list(self._input_shape)} values of {self.input_type_size} bytes each",
            )
        values = np.frombuffer(raw, f"<i{self.input_type_size}").astype(np.int32)
        # Precisions are symmetric, so the dtype's least number is outside.
        bound = 2 ** (self._input_bits - 1) - 1
        return np.clip(values, -bound, bound).reshape(self._input_shape)

    def _output(self, results: Mapping[str, Array]) -> bytes:
        rows = [results[name].reshape(-1, results[name].shape[-1]) for name in self._heads]
        if self.postprocess_method == ARGMAX:
            values = np.concatenate([np.argmax(matrix, axis=1) for matrix in rows])
        else:
            # The rows of several outputs are joined; a single array stays as it is.
            values = np.concatenate(rows, axis=1)
        return values.astype(f"<i{self.output_type_size}").tobytes()

    def _check_rows(self) -> None:
        counts = {math.prod(shape[:-1]) for shape in self._shapes}
        if self.postprocess_method != ARGMAX and len(counts) > 1:
            listed = " and ".join(str(list(shape)) for shape in self._shapes)
            raise LogicError(
                f"the outputs {listed} cannot be put side by side",
                fix="make all lengths but the last multiply to the same number of rows",
            )
