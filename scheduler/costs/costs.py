"""Costs: the times of nodes, subgraphs and copies on each device, measured or modelled.

Measurements take precedence. If an operator was measured at other shapes, its time is scaled by
the ratio of the model's times; without a measurement, the model gives the time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypeVar

from ...devices.device import Device
from ...devices.kinds import get_kernel_kind, get_kind, get_model, get_whole, guess, guess_memory
from ...devices.memory import CALLER, HOST, HOST_MEMORIES, SHARED
from ...devices.model import DeviceModel, name_family
from ...graph.core.infer import get_cost
from ...graph.core.ir import Graph, Node
from ...graph.core.nested import call_graph
from ...graph.operators.bounded_call import calls_function, get_called_op
from ...graph.operators.control import CONTROL_FLOW, expect_runs
from ...graph.operators.fused import FUSED
from ...graph.values.errors import ParseError
from ..errors import PlanError
from .figures import Figures, Measured
from .signature import Signature, make_digest, make_signature

if TYPE_CHECKING:
    from ..plans.plan import Plan
    from ..profile import Profile

Basis: TypeAlias = Literal["measured", "scaled", "model"]

_K = TypeVar("_K")
_V = TypeVar("_V")

PYTHON_S = 1e-4
"""The assumed time of a Python operator without measurements."""


@dataclass(frozen=True)
class Costs(Figures):
    """The times of nodes, subgraphs and copies; see `Figures` for their sources.

    Attributes
    ----------
    factors : Mapping of str to float
        Hypothetical factors by which operators, or nodes of that name, are slower.

    Examples
    --------
    >>> import plait as pl
    >>> b = pl.GraphBuilder("product")
    >>> x = b.input("x", "float32", (1000, 1000))
    >>> b.output("y", b.op("MatMul", x, x, name="product"))
    >>> graph = b.build()
    >>> costs = pl.Costs().with_models({"cpu": pl.DeviceModel(flops_per_s=1e9)})
    >>> f"{pl.simulate(pl.plan(graph, costs=costs)).makespan_s:.1f} s"
    '2.0 s'
    """

    factors: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, devices: Mapping[str, Device]) -> Costs:
        """Return costs without measurements, from the models of `devices`, or those of their kinds.

        Raises
        ------
        PlanError
            If these are not device objects.
        """
        if not isinstance(devices, Mapping) or isinstance(next(iter(devices.values()), None), str):
            raise PlanError(
                f"the costs of {devices!r} are asked for",
                fix="map names to device objects, such as {'cpu': plait.devices.find('cpu')}",
            )
        return cls(
            {name: get_model(device, name) for name, device in devices.items()},
            {name: device.capabilities.memory for name, device in devices.items()},
        )

    @classmethod
    def load(cls, path: str | Path) -> Costs:
        """Read costs from file `path`.

        Raises
        ------
        ParseError
            If the file is not a file of costs, or is damaged.
        """
        from .costs_file import read

        if not isinstance(path, str | os.PathLike):
            raise ParseError(
                f"expected a path, got {type(path).__name__}", fix="pass a file of costs"
            )
        return cls(**vars(read(Path(path))))

    @classmethod
    def from_profile(cls, profile: Profile, plan: Plan, wholes: Profile | None = None) -> Costs:
        """Return the times of nodes, subgraphs and copies in a profile of a plan with known shapes.

        Parameters
        ----------
        profile : Profile
            The profile, of a session with ``measure=True`` if times of nodes are needed.
        plan : Plan
        wholes : Profile, optional
            A profile without measuring nodes: it gives the times of subgraphs, which bound their
            nodes.
        """
        from ..profile.figures import derive_figures

        return cls(**vars(derive_figures(profile, plan, wholes)))

    def save(self, path: str | Path) -> None:
        """Write costs to file `path`, without `factors`.

        Raises
        ------
        PlanError
            If it cannot be written.
        """
        from .costs_file import write

        write(self, Path(path))

    def merged(self, other: Costs) -> Costs:
        """Return these costs updated with `other`, which takes precedence.

        Measurements there replace those here, unless they are noisier.

        Raises
        ------
        PlanError
            If the other is not Costs.
        """
        if not isinstance(other, Costs):
            raise PlanError(
                f"expected Costs, got {type(other).__name__}", fix="use Costs.load(path)"
            )
        return Costs(
            {**self.models, **other.models},
            {**self.memories, **other.memories},
            {**self.links, **other.links},
            _join(self.nodes, other.nodes, lambda one: one.distrust),
            _join(self.programs, other.programs, lambda one: one.is_noisy),
            {**self.hops, **other.hops},
            other.loop or self.loop,
            {**self.factors, **other.factors},
        )

    def with_models(self, models: Mapping[str, DeviceModel]) -> Costs:
        """Return costs with other hardware for some devices, without their measurements.

        Raises
        ------
        PlanError
            If one of the models is invalid.
        """
        for name, model in models.items():
            if not isinstance(model, DeviceModel):
                raise PlanError(
                    f"the model of {name!r} is {model!r}", fix="pass a plait.DeviceModel"
                )
        # Links between memories of the host stay as they are: another device does not change them.
        private = {self.memory_of(name) for name in models} - {HOST, SHARED}
        return replace(
            self,
            models={**self.models, **models},
            links={pair: link for pair, link in self.links.items() if not private & set(pair)},
            nodes=_drop(self.nodes, models),
            programs=_drop(self.programs, models),
            hops={pair: hop for pair, hop in self.hops.items() if models.keys().isdisjoint(pair)},
        )

    def scaled(self, name: str, factor: float) -> Costs:
        """Return costs in which the operator or node `name` is `factor` times as slow.

        Raises
        ------
        PlanError
            If the factor is not above zero.
        """
        if not isinstance(factor, int | float) or not 0 < factor < math.inf:
            raise PlanError(f"the factor of {name!r} is {factor!r}", fix="use a number above 0")
        return replace(self, factors={**self.factors, name: self.factors.get(name, 1.0) * factor})

    def model(self, device: str) -> DeviceModel:
        """Return the model of `device`: its own, that of its kind, or the built-in one.

        An unmeasured share of a GPU gets its fraction of the whole GPU's model.
        """
        own = self.models.get(device)
        if own is None or own.is_guess:
            whole, fraction = get_whole(device)
            if whole != device:
                return self.model(whole).scaled(fraction)
        return own or self.models.get(get_kind(device)) or guess(device)

    def is_guess(self, device: str) -> bool:
        """Return whether the costs of `device` are guessed from its kind alone."""
        return self.model(device).is_guess and not self._of(device, self.nodes)

    def memory_of(self, device: str) -> str:
        """Return the name of the device's memory."""
        return self.memories.get(device) or guess_memory(device)

    def node_s(self, device: str, graph: Graph, node: Node) -> float:
        """Return the seconds of the kernel of `node` on `device`; `graph` must be static.

        A node whose outputs are views of its inputs takes no time.
        """
        seconds = self._estimate(device, graph, node)[0]
        return seconds * self._factor(device, graph, node) if self.factors else seconds

    def program_s(self, device: str, graph: Graph) -> float:
        """Return the seconds of the whole subgraph `graph` on `device`, from submission to end."""
        submit_s = self.model(device).submit_s
        known = self._of(device, self.programs)
        # Factors make some nodes faster than measured: then the nodes are added up.
        if known and not self.factors:
            timing = known.get(make_digest(graph))
            if timing is not None:
                return submit_s + timing.trusted_s
        nbytes = sum(graph.tensors[name].nbytes for name in (*graph.inputs, *graph.outputs))
        # A measured whole includes this; the rest is for others.
        kernels = sum(self.node_s(device, graph, node) for node in graph.nodes)
        return submit_s + self.model(device).edge_s(nbytes) + kernels

    def copy_s(self, source: str, target: str, nbytes: int) -> float:
        """Return the seconds of a copy of `nbytes` from memory `source` to memory `target`."""
        link = self.links.get((source, target))
        if link is not None:
            return link.copy_s(nbytes)
        if CALLER in (source, target):
            (memory,) = {source, target} - {CALLER}
            return self.model(self._owner(memory)).inner_copy_s(nbytes)
        # The receiving one of two devices makes the copy.
        private = {source, target} - {HOST, SHARED}
        if len(private) > 1:
            return self.model(self._owner(target)).peer_copy_s(nbytes)
        return self.model(self._owner(private.pop()) if private else "cpu").copy_s(nbytes)

    def hop_s(self, source: str, target: str) -> float | None:
        """Return the measured seconds from a step on `source` to one on `target`, if known.

        Measurements of other devices of the same kinds are used if these were not measured.
        """
        if (source, target) in self.hops:
            return self.hops[source, target]
        if not (self._is_alike(source) and self._is_alike(target)):
            return None
        kinds = _list_kinds(source, target)
        # The least of them: other load of a machine only adds to it.
        return min(
            (s for ends, s in self.hops.items() if _list_kinds(*ends) == kinds), default=None
        )

    def basis(self, device: str, graph: Graph, node: Node) -> Basis:
        """Return the basis of the time of `node` of `graph` on `device`, such as ``"measured"``."""
        return self._estimate(device, graph, node)[1]

    def _factor(self, device: str, graph: Graph, node: Node) -> float:
        whole = self.factors.get(FUSED, 1.0) if node.op == FUSED else 1.0
        return whole * sum(
            share * self.factors.get(get_called_op(one), 1.0) * self.factors.get(one.name, 1.0)
            for _, one, share in split_members(graph, node, self.model(device))
        )

    def _estimate(self, device: str, graph: Graph, node: Node) -> tuple[float, Basis]:
        known = self._nodes_like(device)
        asked = make_signature(graph, node) if known else None
        if asked is not None and asked in known:
            found = known[asked]
            return found.seconds, "scaled" if found.is_share else "measured"
        operator, model = node.operator, self.model(device)
        if operator.views and len(operator.views) >= len([name for name in node.outputs if name]):
            return 0.0, "model"
        if node.op in CONTROL_FLOW:
            runs = expect_runs(node.op, graph.call(node))
            # The slower branch: which one runs is unknown.
            return max(count * self._nodes_s(device, inner) for inner, count in runs), "model"
        kernel = name_family(graph, node)
        modelled = model.kernel_s(kernel, get_cost(graph, node))
        if asked is not None:
            ratio = self._ratio(device, asked, kernel, modelled)
            if ratio is not None:
                return ratio * modelled, "scaled"
        return max(modelled, PYTHON_S) if calls_function(node) else modelled, "model"

    def _nodes_s(self, device: str, graph: Graph) -> float:
        return sum(self.node_s(device, graph, node) for node in graph.nodes)

    def _ratio(self, device: str, asked: Signature, kernel: str, modelled: float) -> float | None:
        """Return measured over modelled time of the run most like `asked` on `device`, or None."""
        model = self.model(device)
        alike = self._by_op(device).get(asked.op, ())
        # With equal attributes it is most likely the same kernel.
        same = [one for one in alike if one[0].attributes == asked.attributes] or alike
        pairs = [(model.kernel_s(kernel, measured.cost), measured.seconds) for _, measured in same]
        pairs = [pair for pair in pairs if min(pair) > 0]
        if not pairs or modelled <= 0:
            return None
        # By ratio: ten times the work is as far away as a tenth. Ties by value, independent of
        # order.
        nearest = min(pairs, key=lambda pair: (abs(math.log(pair[0]) - math.log(modelled)), pair))
        return nearest[1] / nearest[0]

    def _nodes_like(self, device: str) -> Mapping[Signature, Measured]:
        if device not in self._known:
            kind, kernels = get_kind(device), get_kernel_kind(device)
            alike = sorted(
                (name != device, name != kind, get_kind(name) != kind, name)
                for name in self.nodes
                if name == device or (kernels == get_kernel_kind(name) and self._is_alike(device))
            )
            known: dict[Signature, Measured] = {}
            # The nearest last: its figures replace others.
            for *_, name in reversed(alike):
                known.update(self.nodes[name])
            self._known[device] = known
        return self._known[device]

    def _by_op(self, device: str) -> Mapping[str, list[tuple[Signature, Measured]]]:
        if device not in self._grouped:
            found: dict[str, list[tuple[Signature, Measured]]] = {}
            for key, measured in self._nodes_like(device).items():
                found.setdefault(key.op, []).append((key, measured))
            self._grouped[device] = found
        return self._grouped[device]

    @cached_property
    def _known(self) -> dict[str, Mapping[Signature, Measured]]:
        return {}

    @cached_property
    def _grouped(self) -> dict[str, Mapping[str, list[tuple[Signature, Measured]]]]:
        return {}

    def _of(self, device: str, table: Mapping[str, Mapping[_K, _V]]) -> Mapping[_K, _V]:
        return table.get(self._found(device, table), {})

    def _found(self, device: str, table: Mapping[str, object]) -> str:
        kind = get_kind(device)
        if device in table or not table:
            return device
        alike = self._is_alike(device)
        others = sorted(name for name in table if get_kind(name) == kind and alike)
        return kind if kind in table else next(iter(others), device)

    def _is_alike(self, device: str) -> bool:
        """Return whether others of its kind are the same hardware as `device`: the host's CPU."""
        return self.memory_of(device) in HOST_MEMORIES

    def _owner(self, memory: str) -> str:
        return next((name for name, own in self.memories.items() if own == memory), memory)


def explain_bases(costs: Costs, devices: Sequence[str]) -> str:
    """Return a warning if only some of `devices` have figures that are not built in; else ""."""
    guesses = [n for n in devices if costs.model(n).is_guess and not costs._nodes_like(n)]
    known = [name for name in devices if name not in guesses]
    if not guesses or not known:
        return ""
    return (
        f"figures of {', '.join(known)} were measured or given, those of {', '.join(guesses)} are "
        f"built in, so comparing them may mislead; plait profile --devices {','.join(guesses)} "
        "--costs FILE adds the measured ones, plait tune --costs FILE measures all"
    )


def _list_kinds(source: str, target: str) -> tuple[str, str, bool]:
    return get_kind(source), get_kind(target), source == target


def _join(
    first: Mapping[str, Mapping[_K, _V]],
    second: Mapping[str, Mapping[_K, _V]],
    distrust: Callable[[_V], int],
) -> dict[str, dict[_K, _V]]:
    found = {name: dict(entries) for name, entries in first.items()}
    for name, entries in second.items():
        known = found.setdefault(name, {})
        for key, entry in entries.items():
            if key not in known or distrust(entry) <= distrust(known[key]):
                known[key] = entry
    return found


def _drop(
    table: Mapping[str, Mapping[_K, _V]], devices: Mapping[str, object]
) -> dict[str, Mapping[_K, _V]]:
    return {name: entries for name, entries in table.items() if name not in devices}


class MemberShare(NamedTuple):
    """A node that is timed alone, or one inside of a Fused node."""

    graph: Graph
    """The graph that contains it."""
    node: Node
    share: float
    """Its fraction of the time."""


def split_members(graph: Graph, node: Node, model: DeviceModel) -> list[MemberShare]:
    if node.op != FUSED:
        return [MemberShare(graph, node, 1.0)]
    inner = call_graph(node.attributes["body"], graph.call(node).inputs)
    seconds = [model.kernel_s(name_family(inner, one), get_cost(inner, one)) for one in inner.nodes]
    whole = sum(seconds)
    if whole <= 0:
        return [MemberShare(inner, one, 1 / len(seconds)) for one in inner.nodes]
    return [MemberShare(inner, one, s / whole) for one, s in zip(inner.nodes, seconds, strict=True)]
