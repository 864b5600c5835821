"""Programs: a subgraph's nodes bound to arrays, as a list of functions without arguments.

Shared by all devices that run kernels from Python on arrays that it can address.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from operator import sub
from typing import Any

import numpy as np

from ..graph.core.aliasing import Run, find_runs, is_copy
from ..graph.core.ir import Graph, Node
from ..graph.core.operator import Call, Specs
from ..graph.functions.generators import Receive, RowWriter
from ..graph.functions.operator_lifecycle import OperatorLifecycle
from ..graph.functions.python import AsArray
from ..graph.functions.python_options import CUDA, HOST
from ..graph.operators.bounded_call import BOUNDED_CALL, CALLS, calls_function
from ..graph.operators.control import CONTROL_FLOW
from ..graph.operators.reduce_rows import REDUCED_CALL
from ..graph.values.dtypes import TEXT, name_of
from ..graph.values.errors import ErrorPlace, PlaitError, describe_error, get_text, is_ctrl_c
from ..graph.values.tensor import Array, TensorSpec
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
    bind_bounded,
    bind_function,
    bind_reduced,
    find_array,
    find_function,
)
from .kernels.indexing import PartialWrite
from .kernels.registry import find_kernel, run_in_order
from .memory import View


class BoundProgram:
    """Runs a subgraph's nodes in order on bound arrays.

    Attributes
    ----------
    node_ns : tuple of int or None
        Time spent in each node by the last run, if measured.
    """

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
        # These check the event while they run; others are stopped only between nodes.
        self._stoppable = [
            step for step in self._steps if isinstance(step, nested.Step | GeneratorStep)
        ]
        self._measure = measure

    @property
    def measures(self) -> bool:
        return self._measure

    def rebound(self, views: Mapping[str, View]) -> BoundProgram | None:
        """Return the program for other lengths, if only calls of functions see them; else None.

        Parameters
        ----------
        views : Mapping of str to View
            Includes at least the inputs and outputs of these functions. Tensors of unchanged length
            keep their places.
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
            return bind_bounded(node, views, constants)
        assert node.operator.function is not None, "it is called"
        specs = [views[name].spec if name else None for name in node.outputs]
        return bind_function(node, node.operator.function, views, constants, specs)

    def hand_rows(self, name: str, receive: Receive) -> None:
        """Call `receive` with the rows that generator node `name` yields; see `RowWriter`."""
        for node, step in zip(self._nodes, self._steps, strict=True):
            target = step.target if isinstance(step, GeneratorStep | AwaitedStep) else None
            if node.name == name and isinstance(target, RowWriter):
                target.receivers.append(receive)

    def follows(self, name: str) -> bool:
        """Return whether the kernel writing tensor `name` keeps the part in which arenas differ."""
        return any(
            isinstance(step, PartialWrite) and step.pair is not None and name in node.outputs
            for node, step in zip(self._nodes, self._steps, strict=True)
        )

    async def fetch(self) -> None:
        """Await the async function of the program's only node; `run` then stores its results.

        Raises BaseException: the function's error.
        """
        (step,) = self._steps
        assert isinstance(step, AwaitedStep)
        await step.fetch()

    def __call__(self) -> None:
        self.run(UNSTOPPED)

    def run(self, event: Running) -> None:
        """Run all nodes; `event` stops them if another thread cancels it.

        Raises KernelError if a node fails; the error names it; DeviceMemoryError if memory for
        intermediate results is missing; CancelledWorkError if the event is cancelled; the current
        node is the last to run.
        """
        index = 0
        for stoppable in self._stoppable:
            stoppable.event = event
        try:
            # Two loops: reading the clock takes as long as a small node.
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
            if is_ctrl_c(error):
                raise
            raise kernel_error(error, self._nodes[index], self.device) from error

    def _cancelled_error(self, index: int) -> CancelledWorkError:
        return CancelledWorkError(f"the work was cancelled before {self._nodes[index]}")

    def _times(self, stamps: list[int]) -> tuple[int, ...]:
        # Nodes without a step took no time; all are listed in the order of the graph.
        times = dict.fromkeys(self._names, 0)
        times.update(zip(self._timed, map(sub, stamps[1:], stamps), strict=True))
        return tuple(times.values())


def find_calls(graph: Graph, views: Mapping[str, View]) -> dict[str, Node] | None:
    """Return by name nodes of `graph` that call functions; None if others touch varying `views`.

    None also if a function owns resources.
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
    if node.op in CALLS:
        node = node.attributes["body"].nodes[-1]
    places = [one for one in getattr(error, "__notes__", ()) if isinstance(one, ErrorPlace)]
    at = ", ".join([*places, f"{node}, on device {device!r}{when}"])
    if node.op in CONTROL_FLOW and isinstance(error, PlaitError):
        at = error.at or at  # a node inside of it is named
    if isinstance(error, MemoryError):
        text = get_text(error)
        what = f"out of memory: {text}" if text else "out of memory"
        return DeviceMemoryError(what, at=at, fix="free memory, or lower max_in_flight")
    detail = error.what if isinstance(error, PlaitError) else describe_error(error)
    fix = error.fix if isinstance(error, PlaitError) else suggest_copy(error)
    return KernelError(detail, at=at, fix=fix)


def suggest_copy(error: BaseException) -> str | None:
    """Return the advice for `error` if a function has tried to change an array that it was lent."""
    if not (isinstance(error, ValueError) and str(error).endswith("read-only")):
        return None
    return "change a copy: y = y.copy(); arrays that come from models lie in planned memory"


def supports(
    node: Node, kind: str, runs_python: bool, keeps_lives: bool = False, call: Call | None = None
) -> Support:
    """Return whether devices of `kind` have a kernel for `node`, given `call`.

    They may run Python functions (`runs_python`) and keep instances (`keeps_lives`). Without a
    call, a kernel that serves only some calls counts.
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
        return check_function(node, CUDA if kind == CUDA else HOST)
    if call is not None and _has_text(node, call):
        return Support(False, f"text goes to Python functions alone on {kind!r} devices")
    found = find_kernel(node.op, kind, call)
    if found is None:
        # A kernel may exist that declines this call: the reason differs.
        other = " that serves here" if find_kernel(node.op, kind) is not None else ""
        return Support(False, f"no kernel for {node.op!r} on {kind!r} devices{other}")
    if found.is_usual:
        return Support(True, "has a kernel")
    return Support(True, f"has the kernel {getattr(found.function, '__name__', 'without a name')}")


def check_function(node: Node, arrays: str) -> Support:
    """Return whether the Python function of `node` runs on a device with this kind of `arrays`."""
    wanted = node.operator.arrays
    if wanted == arrays:
        return Support(True, "runs Python functions")
    if wanted == CUDA:
        return Support(False, "the function takes arrays on a GPU: 'worker:cuda:0' gives it those")
    return Support(False, "the function takes numpy's arrays, unless declared with arrays='cuda'")


def _has_text(node: Node, call: Call) -> bool:
    is_read = any(spec is not None and spec.dtype == TEXT for spec in call.inputs)
    return is_read or name_of(TEXT) in node.attributes.values()


def _supports_inside(kind: str, node: Node, call: Call) -> Support:
    return supports(node, kind, runs_python=False, call=call)


def scratch(node: Node, kind: str, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
    if node.op in CONTROL_FLOW:
        return nested.list_scratch(node, partial(_list_inner_scratch, kind))
    found = find_kernel(node.op, kind, call)
    return tuple(found.scratch(call, outputs)) if found and found.scratch else ()


def _list_inner_scratch(
    kind: str, node: Node, call: Call, outputs: Specs
) -> tuple[TensorSpec, ...]:
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
    """Return nodes of `graph`, in order, and steps on `views` and `constants`, by module `xp`.

    Kernels are those of `kind`; `living` are the instances from `OperatorInstances`; `as_array`
    converts results of functions. Nodes whose outputs are in place before they run get no step.
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
    if node.op in CONTROL_FLOW:
        bind_graph = partial(_bind_inside, xp, kind)
        return nested.bind(node, views, constants, partial(_list_inner_scratch, kind), bind_graph)
    if node.op == BOUNDED_CALL:
        return bind_bounded(node, views, constants)
    if node.op == REDUCED_CALL:
        return bind_reduced(node, views, constants)
    runs = find_runs(graph, node)
    # If the plan has put a part in its place already, only the rest is copied.
    left = [run for run in runs if not is_placed(run, views)]
    if len(left) < len(runs) and is_copy(node, runs):
        return run_in_order(_copy(xp, run, views, constants) for run in left)
    if node.operator.function is not None:
        specs = [graph.tensors.get(name) for name in node.outputs]
        return bind_function(node, find_function(node, living), views, constants, specs, as_array)
    arrays = [find_array(name, views, constants) for name in node.inputs]
    outputs = [find_array(name, views, constants) for name in node.outputs]
    call = graph.call(node)
    found = find_kernel(node.op, kind, call)
    assert found is not None, node.op
    arguments: list[Any] = [xp, arrays, outputs, node.attributes]
    if found.scratch is not None:
        count = len(found.scratch(call, graph.output_specs(node)))
        arguments.append([views[scratch_name(node, i)].array for i in range(count)])
    step = found.step(*arguments)
    # Other array modules may record the calls of one run, and repeat these.
    if isinstance(step, PartialWrite) and xp is np and node.inputs[0] in views:
        source, target = views[node.inputs[0]].arena, views[node.outputs[0]].arena
        step.undo = target.undo if source is target else None
        step.pair = target.pair if source.pair is target.pair and source is not target else None
    return step


def _bind_inside(
    xp: Any, kind: str, graph: Graph, views: Mapping[str, View], constants: Mapping[str, Array]
) -> BoundProgram:
    return BoundProgram(kind, graph, bind_steps(xp, kind, graph, views, constants), measure=False)


def is_in_place(graph: Graph, node: Node, views: Mapping[str, View]) -> bool:
    runs = find_runs(graph, node)
    return is_copy(node, runs) and all(is_placed(run, views) for run in runs)


def is_placed(run: Run, views: Mapping[str, View]) -> bool:
    """Return whether `run`, bytes that a node copies, is in its place in `views` before."""
    source, target = views.get(run.source), views.get(run.target)
    if source is None or target is None or source.arena is not target.arena:
        return False
    return source.offset + run.start == target.offset + run.begin


def _copy(xp: Any, run: Run, views: Mapping[str, View], constants: Mapping[str, Array]) -> Step:
    source, target = find_array(run.source, views, constants), views[run.target].array
    assert source is not None
    start, begin, count = (n // target.itemsize for n in (run.start, run.begin, run.nbytes))
    cells = source.reshape(-1)[start : start + count]
    return partial(xp.copyto, target.reshape(-1)[begin : begin + count], cells)
