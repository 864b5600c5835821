"""Programs: a subgraph's nodes bound to arrays, as a list of functions of no arguments.

Shared by every device that runs kernels from Python over arrays it can address.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from operator import sub
from typing import Any

import numpy as np

from ..graph.aliasing import Run, only_copies, runs_of
from ..graph.dtypes import TEXT, name_of
from ..graph.errors import PlaitError, is_ctrl_c, named_text, text_of
from ..graph.generators import Receive, RowWriter
from ..graph.ir import Graph, Node
from ..graph.operator import Call, Specs
from ..graph.operator_lifecycle import OperatorLifecycle
from ..graph.operators.bounded_call import BOUNDED_CALL, CALLS, calls_function
from ..graph.operators.control import CONTROL_FLOW
from ..graph.operators.reduce_rows import REDUCED_CALL
from ..graph.python import AsArray
from ..graph.python_options import CUDA, HOST
from ..graph.tensor import Array, TensorSpec
from . import nested
from .device import Support, scratch_name
from .errors import DeviceMemoryError, KernelError
from .event import CancelledWorkError
from .function_steps import (
    UNSTOPPED,
    AwaitedStep,
    GeneratorStep,
    Running,
    Step,
    array_of,
    bounded_step,
    function_of,
    function_step,
    reduced_step,
)
from .kernels import find_kernel
from .kernels.steps import in_order
from .memory import View


class BoundProgram:
    """Runs a subgraph's nodes in order on bound arrays.

    Attributes
    ----------
    graph : Graph
    node_ns : tuple of int or None
        Time spent in each node by the last run, where measuring was asked for.
    """

    __slots__ = (
        "_measure",
        "_names",
        "_nodes",
        "_steps",
        "_stoppable",
        "_timed",
        "device",
        "graph",
        "node_ns",
    )

    def __init__(
        self, device: str, graph: Graph, steps: list[tuple[Node, Step]], measure: bool
    ) -> None:
        self.device = device
        self.graph = graph
        self.node_ns: tuple[int, ...] | None = None
        self._nodes = [node for node, _ in steps]
        self._names = [node.name for node in graph.nodes]
        self._timed = [node.name for node in self._nodes]
        self._steps = [step for _, step in steps]
        # These look at the event while they run; all others are stopped between nodes alone.
        self._stoppable = [
            step for step in self._steps if isinstance(step, nested.Step | GeneratorStep)
        ]
        self._measure = measure

    @property
    def measures(self) -> bool:
        """True when each run yields `node_ns`."""
        return self._measure

    def rebound(self, views: Mapping[str, View]) -> BoundProgram | None:
        """Return it for other lengths, where nothing but calls of functions sees these; else None.

        Parameters
        ----------
        views : Mapping of str to View
            Of what these functions take and return, at least. What is as long as it was also lies
            where it did.
        """
        calls = find_calls(self.graph, views)
        if calls is None:
            return None
        steps = [
            (node, self._called(node, views) if node.name in calls else step)
            for node, step in zip(self._nodes, self._steps, strict=True)
        ]
        return BoundProgram(self.device, self.graph, steps, self._measure)

    def _called(self, node: Node, views: Mapping[str, View]) -> Step:
        constants = self.graph.constants
        if node.op == BOUNDED_CALL:
            return bounded_step(node, views, constants)
        assert node.operator.function is not None, "it is called"
        specs = [views[name].spec if name else None for name in node.outputs]
        return function_step(node, node.operator.function, views, constants, specs)

    def hand_rows(self, name: str, receive: Receive) -> None:
        """Have somebody receive the rows that a node's generator yields: see `RowWriter`."""
        for node, step in zip(self._nodes, self._steps, strict=True):
            target = step.target if isinstance(step, GeneratorStep | AwaitedStep) else None
            if node.name == name and isinstance(target, RowWriter):
                target.receivers.append(receive)

    async def fetch(self) -> None:
        """Await the async function of the only node; what it returned, `run` stores.

        Raises
        ------
        BaseException
            What it raises.
        """
        (step,) = self._steps
        assert isinstance(step, AwaitedStep)
        await step.fetch()

    def __call__(self) -> None:
        """Run all nodes; raise KernelError naming the node that failed."""
        self.run(UNSTOPPED)

    def run(self, event: Running) -> None:
        """Run the nodes of an event; it may be cancelled meanwhile, by another thread.

        Raises
        ------
        KernelError
            If a node fails; it is named.
        DeviceMemoryError
            If there was no memory for what a node makes on its way.
        CancelledWorkError
            If the event is cancelled; the node that runs then is the last one.
        """
        index = 0
        for stoppable in self._stoppable:
            stoppable.event = event
        try:
            # Two loops, as looking at the clock takes as long as a small node.
            if self._measure:
                stamps = [time.perf_counter_ns()]
                for index, step in enumerate(self._steps):
                    if event.cancelled:
                        raise self._cancelled_error(index)
                    step()
                    stamps.append(time.perf_counter_ns())
                self.node_ns = event.node_ns = self._times(stamps)
            else:
                for index, step in enumerate(self._steps):
                    if event.cancelled:
                        raise self._cancelled_error(index)
                    step()
        except CancelledWorkError:
            raise
        except BaseException as error:
            # The user's doing, not the node's.
            if is_ctrl_c(error):
                raise
            raise kernel_error(error, self._nodes[index], self.device) from error

    def _cancelled_error(self, index: int) -> CancelledWorkError:
        return CancelledWorkError(f"the work was cancelled before {self._nodes[index]}")

    def _times(self, stamps: list[int]) -> tuple[int, ...]:
        # Nodes without a step took no time: all of them are listed, in the order of the graph.
        times = dict.fromkeys(self._names, 0)
        times.update(zip(self._timed, map(sub, stamps[1:], stamps), strict=True))
        return tuple(times.values())


def find_calls(graph: Graph, views: Mapping[str, View]) -> dict[str, Node] | None:
    """Return the nodes that call functions, if no other one sees other lengths than the graph's.

    None, too, where a function owns something.
    """
    calls = {
        node.name: node
        for node in graph.nodes
        if calls_function(node) and node.op != REDUCED_CALL  # more nodes follow in that one
    }
    if any(node.operator.owns for node in calls.values()):
        return None
    tensors = graph.tensors
    varying = {name for name, view in views.items() if tensors.get(name) not in (view.spec, None)}
    for node in graph.nodes:
        if node.name not in calls and not varying.isdisjoint((*node.inputs, *node.outputs)):
            return None
    return calls


def kernel_error(
    error: BaseException, node: Node, device: str, when: str = ""
) -> KernelError | DeviceMemoryError:
    """Return what users see when a node's kernel or function raised."""
    if node.op in CALLS:
        node = node.attributes["body"].nodes[-1]
    at = f"{node}, on device {device!r}{when}"
    if node.op in CONTROL_FLOW and isinstance(error, PlaitError):
        at = error.at or at  # a node inside of it is named
    if isinstance(error, MemoryError):
        text = text_of(error)
        what = f"out of memory: {text}" if text else "out of memory"
        return DeviceMemoryError(what, at=at, fix="free memory, or lower max_in_flight")
    detail = error.what if isinstance(error, PlaitError) else named_text(error)
    fix = error.fix if isinstance(error, PlaitError) else None
    return KernelError(detail, at=at, fix=fix)


def supports(
    node: Node,
    kind: str,
    runs_python: bool,
    keeps_lives: bool = False,
    call: Call | None = None,
) -> Support:
    """Say whether a kind of device has a kernel for a node.

    Where the call is left out, one that serves for some calls only counts as one.
    """
    if node.operator.owns and not keeps_lives:
        return Support(False, f"operators that own something do not run on {kind!r} devices")
    if node.op in CONTROL_FLOW and kind == "cpu" and call is not None:
        return nested.supports(node, call, partial(_supports_inside, kind))
    if node.op in CALLS:
        return supports(node.attributes["body"].nodes[0], kind, runs_python)
    if node.operator.function is not None:
        if not runs_python:
            return Support(False, f"Python functions do not run on {kind!r} devices")
        return runs_function(node, CUDA if kind == CUDA else HOST)
    if call is not None and _has_text(node, call):
        return Support(False, f"text goes to Python functions alone on {kind!r} devices")
    found = find_kernel(node.op, kind, call)
    if found is None:
        # A kernel there may be that declines this call: then the reason is another one.
        other = " that serves here" if find_kernel(node.op, kind) is not None else ""
        return Support(False, f"no kernel for {node.op!r} on {kind!r} devices{other}")
    if found.is_usual:
        return Support(True, "has a kernel")
    return Support(True, f"has the kernel {getattr(found.function, '__name__', 'without a name')}")


def runs_function(node: Node, arrays: str) -> Support:
    """Say whether a node's Python function runs on a device that gives it such arrays."""
    wanted = node.operator.arrays
    if wanted == arrays:
        return Support(True, "runs Python functions")
    if wanted == CUDA:
        return Support(False, "the function takes arrays on a GPU: 'worker:cuda:0' gives it those")
    return Support(False, "the function takes numpy's arrays, unless declared with arrays='cuda'")


def _has_text(node: Node, call: Call) -> bool:
    """True when a node reads text, or is asked to make some."""
    is_read = any(spec is not None and spec.dtype == TEXT for spec in call.inputs)
    return is_read or name_of(TEXT) in node.attributes.values()


def _supports_inside(kind: str, node: Node, call: Call) -> Support:
    return supports(node, kind, runs_python=False, call=call)


def scratch(node: Node, kind: str, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
    """Return the scratch buffers of a node's kernel."""
    if node.op in CONTROL_FLOW:
        return nested.scratch(node, partial(_scratch_inside, kind))
    found = find_kernel(node.op, kind, call)
    return tuple(found.scratch(call, outputs)) if found and found.scratch else ()


def _scratch_inside(kind: str, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
    return scratch(node, kind, call, outputs)


def bind(
    xp: Any,
    device: str,
    graph: Graph,
    views: Mapping[str, View],
    constants: Mapping[str, Array],
    *,
    measure: bool = False,
    living: Mapping[str, OperatorLifecycle] | None = None,
) -> BoundProgram:
    """Bind a subgraph's nodes to arrays of the array module `xp`."""
    steps = bind_steps(xp, device.split(":")[0], graph, views, constants, living)
    return BoundProgram(device, graph, steps, measure)


def bind_steps(
    xp: Any,
    kind: str,
    graph: Graph,
    views: Mapping[str, View],
    constants: Mapping[str, Array],
    living: Mapping[str, OperatorLifecycle] | None = None,
    as_array: AsArray = np.asarray,
) -> list[tuple[Node, Step]]:
    """Return a function for each node, in order.

    `kind` is the kind of device whose kernels are taken, `living` what `OperatorInstances` has for
    the nodes, and `as_array` makes what functions return an array. Nodes whose outputs lie where
    they belong before they run need no step.
    """
    return [
        (node, bind_node(xp, kind, graph, node, views, constants, living, as_array))
        for node in graph.nodes
        if not is_in_place(graph, node, views)
    ]


def bind_node(
    xp: Any,
    kind: str,
    graph: Graph,
    node: Node,
    views: Mapping[str, View],
    constants: Mapping[str, Array],
    living: Mapping[str, OperatorLifecycle] | None = None,
    as_array: AsArray = np.asarray,
) -> Step:
    """Return the function that runs one node of a graph."""
    if node.op in CONTROL_FLOW:
        bind_graph = partial(_bind_inside, xp, kind)
        return nested.bind(node, views, constants, partial(_scratch_inside, kind), bind_graph)
    if node.op == BOUNDED_CALL:
        return bounded_step(node, views, constants)
    if node.op == REDUCED_CALL:
        return reduced_step(node, views, constants)
    runs = runs_of(graph, node)
    # Where the plan laid a part in its place already, only the rest is copied.
    left = [run for run in runs if not lies(run, views)]
    if len(left) < len(runs) and only_copies(node, runs):
        return in_order(_copy(xp, run, views, constants) for run in left)
    if node.operator.function is not None:
        specs = [graph.tensors.get(name) for name in node.outputs]
        return function_step(node, function_of(node, living), views, constants, specs, as_array)
    arrays = [array_of(name, views, constants) for name in node.inputs]
    outputs = [array_of(name, views, constants) for name in node.outputs]
    call = graph.call(node)
    found = find_kernel(node.op, kind, call)
    assert found is not None, node.op
    arguments: list[Any] = [xp, arrays, outputs, node.attributes]
    if found.scratch is not None:
        count = len(found.scratch(call, graph.output_specs(node)))
        arguments.append([views[scratch_name(node, i)].array for i in range(count)])
    return found.step(*arguments)


def _bind_inside(
    xp: Any,
    kind: str,
    graph: Graph,
    views: Mapping[str, View],
    constants: Mapping[str, Array],
) -> BoundProgram:
    return BoundProgram(kind, graph, bind_steps(xp, kind, graph, views, constants), measure=False)


def is_in_place(graph: Graph, node: Node, views: Mapping[str, View]) -> bool:
    """True when all of a node's outputs lie on its inputs' bytes, so that it needs no step."""
    runs = runs_of(graph, node)
    return only_copies(node, runs) and all(lies(run, views) for run in runs)


def lies(run: Run, views: Mapping[str, View]) -> bool:
    """True when the bytes that a node takes over lie where they belong before it runs."""
    source, target = views.get(run.source), views.get(run.target)
    if source is None or target is None or source.arena is not target.arena:
        return False
    return source.offset + run.start == target.offset + run.begin


def _copy(xp: Any, run: Run, views: Mapping[str, View], constants: Mapping[str, Array]) -> Step:
    source, target = array_of(run.source, views, constants), views[run.target].array
    assert source is not None
    start, begin, count = (n // target.itemsize for n in (run.start, run.begin, run.nbytes))
    cells = source.reshape(-1)[start : start + count]
    return partial(xp.copyto, target.reshape(-1)[begin : begin + count], cells)
