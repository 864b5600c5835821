"""Hardware that is not present: models in files, and simulated devices made from them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TypeAlias

from ...devices.errors import DeviceError
from ...devices.model import DeviceModel
from ...devices.sim import SimDevice, SimModel
from ...graph.formats.files import read_file
from ...graph.formats.sources import decode_json
from ...graph.values.errors import ParseError
from ..costs.costs_file import decode

ModelSource: TypeAlias = DeviceModel | str | Path
"""A device's model, or a JSON file of one."""

_FIX = "write it with json.dump(model.to_dict(), file)"


def read_models(sources: Mapping[str, ModelSource]) -> dict[str, DeviceModel]:
    """Return models by device name from `sources`, and read those given as paths.

    Raises ParseError if a file cannot be read or does not contain a model.
    """
    return {
        name: source if isinstance(source, DeviceModel) else load_model(source, name)
        for name, source in sources.items()
    }


def load_model(path: str | Path, name: str) -> DeviceModel:
    """Read the model of a device from `path`, a JSON file.

    The file contains the result of `DeviceModel.to_dict`, or the costs of a machine with a device
    `name`. Raises ParseError if it contains neither or cannot be read.
    """
    if not isinstance(path, str | os.PathLike):
        raise ParseError(
            f"the model of {name!r} is {path!r}", fix="pass a DeviceModel, or the path of one"
        )
    data = bytes(read_file(path))
    values = decode_json(lambda: data, str(path), ParseError, _FIX)
    if isinstance(values, dict) and "format" in values:
        known = decode(data, str(path)).models
        if name not in known:
            raise ParseError(
                f"these costs say nothing of a device {name!r}",
                at=str(path),
                fix=f"they do of: {', '.join(known) or 'none'}",
            )
        return known[name]
    try:
        return DeviceModel.from_dict(values)
    except DeviceError as error:
        raise ParseError(error.what, at=str(path), fix=error.fix) from None


def modelled_device(name: str, model: DeviceModel) -> SimDevice:
    """Return a simulated device that behaves as `model`, to plan for hardware that is not present.

    Examples
    --------
    >>> import plait as pl
    >>> b = pl.GraphBuilder("relu")
    >>> b.output("y", b.op("Relu", b.input("x", "float32", (2,)), name="relu"))
    >>> gpu = pl.modelled_device("gpu", pl.DeviceModel(flops_per_s=1e13))
    >>> pl.plan(b.build(), [gpu]).assignment
    {'relu': 'gpu'}
    """
    if not isinstance(model, SimModel):
        values = {one.name: getattr(model, one.name) for one in fields(DeviceModel)}
        if model.memory_bytes is None:
            del values["memory_bytes"]
        model = SimModel(**values)
    return SimDevice(name, model)
