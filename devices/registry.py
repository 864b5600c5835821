"""The registry of devices: names, factories, and the result of probing a machine.

A name is a kind (``cpu``) or a kind and an instance (``worker:0``, ``cuda:1``, ``sim:npu``). A
factory is registered for a whole kind or for one exact name, which takes precedence. For a name
that is not registered, an installed package may offer an entry point, which is then imported and
is the factory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..graph.core.ir import Graph, Node
from ..graph.values.errors import PlaitError, describe_error, get_text
from ..graph.values.installed import DEVICES, describe_package, find_offers, list_own, load
from ..graph.values.registry import Registry
from ..graph.values.tensor import TensorSpec
from .device import Device
from .errors import DeviceError, DeviceUnavailableError
from .kinds import get_kind
from .memory import ALIGNMENT, host_arena, host_view
from .options import Option, PortableOption, convert_options

SELF_CHECK_S = 60.0

_ALMOST_RANGE = re.compile(r"([^:]+(?::[A-Za-z]\w*)*):(\d+)(-|:|\.+)(\d+)", re.ASCII)
"""A range of devices, as plans take it, ``ort:0..1``, and misspellings of it."""

Factory: TypeAlias = Callable[..., Device]
"""Creates a device from its full name, with its options as keywords."""


Options: TypeAlias = Mapping[str, Option] | Callable[[str], Mapping[str, Option]]
"""Options by name, or a function that returns those of a device."""


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """The result of probing a device.

    Attributes
    ----------
    name : str
    found : bool
    reason : str
        Why the device is missing, or what was checked.
    memory_bytes : int or None
    software : str
        The software of its kernels, with versions and hardware as far as known; empty for numpy.

    Examples
    --------
    >>> import plait as pl
    >>> status = pl.devices.probe("cpu")
    >>> status.found, status.reason
    (True, 'self-check passed')
    """

    name: str
    found: bool
    reason: str
    memory_bytes: int | None = None
    software: str = ""


class _Registered(NamedTuple):
    factory: Factory
    instances: Callable[[], tuple[str, ...]]
    options: Options


_NAME = re.compile(r"[^\s:,=]+(:[^\s:,=]+)*:?")
"""Command lines separate devices by commas, and options by blanks and equal signs."""

_registered: Registry[str, _Registered] = Registry(
    lambda name: DeviceError(
        f"device {name!r} is registered already", fix=f"unregister({name!r}) first"
    ),
    group=DEVICES,
    counts=True,
)


def register(
    name: str,
    factory: Factory,
    *,
    instances: Callable[[], tuple[str, ...]] | None = None,
    options: Options | None = None,
) -> None:
    """Register `factory` as kind `name` (``"worker"``), or as one device (``"sim:npu"``).

    `instances` lists the names to show for a kind; by default the name itself. `options` are the
    options that `device` accepts: for each option a function that converts a value or its text, or
    raises a ValueError that describes accepted values; a `PortableOption` if saved plans carry it.
    Or a function that returns this mapping for a name. The factory gets the options as keyword
    arguments, and the device keeps them as the mapping `options`.

    Raises
    ------
    DeviceError
        If the name is taken or invalid, or the factory is not callable.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.devices import SimDevice, SimModel
    >>> pl.devices.register("npu", lambda name: pl.modelled_device(name, pl.DeviceModel()))
    >>> pl.device("npu:0").name
    'npu:0'
    >>> pl.devices.unregister("npu")
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DeviceError(
            f"{name!r} is not the name of a device",
            fix="use a kind, 'npu', or an exact name, 'npu:0', without blanks and commas",
        )
    for what, value in (("factory", factory), ("instances", instances or tuple)):
        if not callable(value):
            raise DeviceError(
                f"the {what} of {name!r} is {value!r}",
                fix="pass a function of the name that returns a device"
                if what == "factory"
                else "pass a function that returns names",
            )
    # A copy: the caller's may change after it was registered.
    takes = options if callable(options) else dict(options or {})
    _registered.register(name, _Registered(factory, instances or (lambda: (name,)), takes))


def import_later(place: str) -> Callable[..., Any]:
    """Return a caller of the function or class at `place`, imported on the first call.

    ``".cpu:CpuDevice"`` names the class in that module.
    """
    module, _, name = place.partition(":")

    def call(*given: Any, **options: Any) -> Any:
        return getattr(import_module(module, __package__), name)(*given, **options)

    return call


def unregister(name: str) -> None:
    """Remove kind or exact `name`; unknown ones raise DeviceUnavailableError.

    Examples
    --------
    >>> import plait as pl
    >>> pl.devices.register("npu", pl.device)
    >>> pl.devices.unregister("npu")
    >>> "npu" in pl.devices.names()
    False
    """
    if name not in _registered:
        raise _unknown_device_error(name)
    del _registered[name]


def device(name: str, **options: Any) -> Device:
    """Return the device `name` with options, to use in place of the name.

    Parameters
    ----------
    name : str
        A kind, or a kind and an instance, such as ``"worker:0"``.
    **options
        `threads`, of ``cpu``, ``compiled``, ``ort`` and ``worker``: the number of threads; by
        default the device's share of the cores. `affinity`, of the same kinds: the numbers of the
        cores to run on. `spinning`, of ``ort``: whether threads wait for each other in busy loops
        while a program runs. Other kinds have the options that were registered.

    Raises
    ------
    DeviceUnavailableError
        If the device is unknown.
    DeviceError
        If the device has no such option, or the option does not take the value.

    Examples
    --------
    >>> import plait as pl
    >>> pl.device("cpu", threads=2).options
    {'threads': 2}
    """
    return find(name, options)


def find(name: str, options: Mapping[str, object] = MappingProxyType({})) -> Device:
    """Return the device `name`, made with `options` if any are given.

    Raises
    ------
    DeviceError
        If the device has no such option, or the option does not take the value; or the name looks
        like a range of devices.
    DeviceUnavailableError
        If the kind is not registered; the message lists the kinds. Or if its package is broken.

    Examples
    --------
    >>> import plait as pl
    >>> pl.devices.find("cpu").name
    'cpu'
    """
    if not isinstance(name, str):
        raise DeviceError(f"{name!r} is not the name of a device", fix="use one such as 'cpu'")
    slip = _ALMOST_RANGE.fullmatch(name)
    # A device may have such a name, if it is registered.
    if slip is not None and name not in _registered:
        raise _range_error(name, slip)
    known = _list_keys(name)
    registered = _find_registered(known)
    installed = filter(None, map(_load_installed, known))
    factory = registered.factory if registered else next(installed, None)
    if factory is None:
        raise _unknown_device_error(name)
    chosen = convert_options(name, _get_options(name, registered), options) if options else {}
    try:
        return factory(name, **chosen)
    except PlaitError:
        raise
    except Exception as error:
        raise DeviceUnavailableError(
            f"device {name!r} cannot be made: {describe_error(error)}",
            at=_describe_origin(known),
            fix="repair the factory that it is registered with",
        ) from error


def split_options(name: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Split `options` of device `name` into those that saved plans carry and names of others."""
    known = _get_options(name, _find_registered(_list_keys(name)))
    carried = {
        option: value
        for option, value in options.items()
        if isinstance(known.get(option), PortableOption)
    }
    return carried, tuple(sorted(options.keys() - carried))


def _list_keys(name: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((name, get_kind(name), name.partition(":")[0])))


def _find_registered(names: Sequence[str]) -> _Registered | None:
    return next((_registered[one] for one in names if one in _registered), None)


def _get_options(name: str, registered: _Registered | None) -> Mapping[str, Option]:
    takes = registered.options if registered else {}
    return takes(name) if callable(takes) else takes


def names() -> tuple[str, ...]:
    """Return the names of devices to show: registered kinds in order, then installed ones.

    Examples
    --------
    >>> import plait as pl
    >>> "cpu" in pl.devices.names()
    True
    """
    # Of a copy: listing instances may import modules that register further kinds.
    listed = dict.fromkeys(name for one in list(_registered.values()) for name in one.instances())
    return tuple(
        dict.fromkeys((*listed, *(n for n in find_offers(DEVICES) if n not in _registered)))
    )


def probe(name: str) -> DeviceStatus:
    """Open device `name`, run one addition on it, close it, and return the result.

    Examples
    --------
    >>> import plait as pl
    >>> pl.devices.probe("cpu").found
    True
    """
    try:
        device = find(name)
        offers = device.capabilities
        device.open()
    except PlaitError as error:
        return DeviceStatus(name, False, f"{error.what}; {error.fix}" if error.fix else error.what)
    except Exception as error:  # of other packages' devices, and of systems that lack something
        return DeviceStatus(name, False, describe_error(error))
    try:
        with closing(device):
            _run_self_check(device)
    except Exception as error:
        failed = f"self-check failed: {get_text(error)}"
        return DeviceStatus(name, False, failed, offers.memory_bytes, offers.software)
    passed = "self-check passed"
    return DeviceStatus(name, True, passed, offers.memory_bytes, offers.software)


def _run_self_check(device: Device) -> None:
    """Check `device` with one Add node: upload, run, download, compare."""
    spec, slot = TensorSpec("float32", (4,)), max(ALIGNMENT, device.capabilities.alignment)
    node = Node("self-check", "Add", ("x", "x"), ("y",))
    graph = Graph("self-check", ("x",), ("y",), (node,), {"x": spec, "y": spec}, {})
    host = host_arena(2 * slot)
    # In its own memory, so that copies in both directions are checked as well.
    arena = device.arena(device.capabilities.memory, 2 * slot)
    try:
        outside = {"x": device.view(host, 0, spec), "y": device.view(host, slot, spec)}
        inside = {"x": device.view(arena, 0, spec), "y": device.view(arena, slot, spec)}
        there = np.arange(4, dtype=np.float32)
        np.copyto(host_view(host, 0, spec).array, there)
        device.copy(inside["x"], outside["x"]).wait(SELF_CHECK_S)
        device.submit(device.compile(graph, inside)).wait(SELF_CHECK_S)
        device.copy(outside["y"], inside["y"]).wait(SELF_CHECK_S)
        back = host_view(host, slot, spec).array
        if not np.array_equal(back, there + there):
            raise DeviceError(f"{there} + {there} came back as {back}")
    finally:
        arena.close()
        host.close()


def _load_installed(name: str) -> Factory | None:
    factory: Factory | None = load(DEVICES, name, DeviceUnavailableError)
    if factory is not None and not callable(factory):
        raise DeviceUnavailableError(
            f"device {name!r} of package {describe_package(DEVICES, name)} is a "
            f"{type(factory).__name__}, not a factory",
            fix="let its entry point name a class, or a function: package.module:Class",
        )
    return factory


def _describe_origin(known: Sequence[str]) -> str | None:
    """Return the package of a device with keys `known`; None if plait's or registered here."""
    if any(name in _registered or name in list_own(DEVICES) for name in known):
        return None
    offer = next(one for one in known if one in find_offers(DEVICES))
    return f"package {describe_package(DEVICES, offer)}"


def _range_error(name: str, slip: re.Match[str]) -> DeviceError:
    kind, first, between, last = slip.groups()
    if between == "..":
        return DeviceError(
            f"{name!r} is a range of devices, and one is asked for here",
            fix=f"name one of them: {f'{kind}:{first}'!r}",
        )
    return DeviceError(
        f"{name!r} is not the name of a device",
        fix=f"a range is written with two dots: {f'{kind}:{first}..{last}'!r}",
    )


def _unknown_device_error(name: str) -> PlaitError:
    ours = list_own(DEVICES)
    known = dict.fromkeys((*_registered, *ours, *find_offers(DEVICES)))
    told = f"known kinds and names: {', '.join(known)}"
    return _registered.unknown_error("device", name, told, DeviceUnavailableError, also=ours)
