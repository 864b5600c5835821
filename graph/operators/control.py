"""Control flow: If, Loop and Scan, whose branches and bodies are graphs.

A node passes captured tensors of the surrounding graph to its branches or bodies: they are the last
of
the node's inputs, and of each nested graph's. A plan either inlines the nested graph's nodes, or a
device runs the whole node, or the session runs it. The attribute `whole` selects the second;
planning
decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core.attribute import Attribute, Kind
from ..core.infer import get_cost, infer_node
from ..core.ir import Graph, Node
from ..core.nested import infer_results, list_graphs, merge_specs, replace_shape
from ..core.operator import Call, CostRule, Specs, define
from ..core.traits import OF_GRAPHS, OWN_DTYPES
from ..core.whole import WHOLE
from ..values.dims import UNKNOWN, normalize_axis
from ..values.errors import ShapeError
from ..values.tensor import Dim, TensorSpec
from .each import EACH
from .inputs import BOOLS, INTEGERS, check_dtype, may_equal

CONTROL_FLOW = ("If", "Loop", "Scan")

_GRAPH = Attribute(Kind.GRAPH)
_CAPTURED = Attribute(Kind.INT, 0, minimum=0)
_AXES = Attribute(Kind.INTS, None)
_WHOLE = Attribute(Kind.BOOL, False)

_ROUNDS = 8
"""Shapes of states are widened in each; those that never settle are left unknown."""

ASSUMED_TRIPS = 8
"""Assumed iterations of a loop of unknown length, to predict its time."""


UNWRITTEN = ("captured", "whole")
"""Attributes that other formats than plait's own lack: they see the names of graphs around."""


def list_uncaptured(node: Node) -> tuple[str, ...]:
    """Return the inputs of `node` but for those that its nested graphs capture."""
    if node.op not in CONTROL_FLOW:
        return node.inputs
    return node.inputs[: 1 if node.op == "If" else len(node.inputs) - node.attributes["captured"]]


def list_deciding_inputs(node: Node) -> tuple[str, ...]:
    """Return the inputs of `node`, control flow, that decide which graph runs, or how often."""
    return node.inputs[: {"If": 1, "Loop": 2, "Scan": 0}[node.op]]


def waits(node: Node) -> bool:
    """Return whether the control flow `node` waits for a value, and is not run by a device."""
    return node.op in CONTROL_FLOW and not node.attributes["whole"]


def fits_whole(node: Node, call: Call) -> bool:
    """Return whether graphs in `node` have exactly the shapes that they get in `call` and yield."""
    if waits(node):
        return False
    results = infer_node(node, call)
    given = infer_nested_inputs(node.op, call, results)
    return all(spec.is_static for spec in results) and all(
        graph.is_static and [graph.tensors[name] for name in graph.inputs] == given
        for graph in list_graphs(node)
    )


def iterate_placed_nodes(graph: Graph, prefix: str = "") -> Iterator[tuple[str, Graph, Node]]:
    """Yield the nodes of `graph` with a place of their own, as `walk_nodes` does.

    It leaves out nodes inside of a node that a device runs whole, and of rows with their own plan.
    """
    for node in graph.nodes:
        yield prefix + node.name, graph, node
        if waits(node) or node.op not in (*CONTROL_FLOW, EACH, WHOLE):
            for nested in list_graphs(node):
                yield from iterate_placed_nodes(nested, f"{prefix}{node.name}/")


def expect_runs(op: str, call: Call) -> Iterator[tuple[Graph, int]]:
    """Yield the graphs that `op` runs in `call`, and how often; unknown numbers are assumed."""
    if op == "If":
        yield from ((call.attributes[name], 1) for name in ("then_branch", "else_branch"))
        return
    if op == "Loop":
        trips = call.value(0)
        count = ASSUMED_TRIPS if trips is None else max(int(trips.item()), 0)
    else:
        # Scanned inputs precede captured ones, which are last.
        scanned = call.attributes["captured"] + call.attributes["num_scan_inputs"]
        shape = call.spec(len(call.inputs) - scanned).static_shape
        count = shape[normalize_axis(get_axis(call, "scan_input_axes", 0), len(shape))]
    yield call.attributes["body"], count


def _make_cost_rule(op: str) -> CostRule:
    """Return the cost rule of `op`: a graph's cost times its runs, or that of the dearer branch."""

    def rule(call: Call, outputs: Specs) -> int:
        return max(count * _count_flops(graph) for graph, count in expect_runs(op, call))

    return rule


def _count_flops(graph: Graph) -> int:
    """Return the operations of a nested `graph`; 0 if its shapes are unknown."""
    return sum(get_cost(graph, node).flops for node in graph.nodes) if graph.is_static else 0


@define(
    "If",
    inputs="cond captured*",
    outputs="y+",
    attributes={"then_branch": _GRAPH, "else_branch": _GRAPH, "whole": _WHOLE},
    cost=_make_cost_rule("If"),
    float16=OWN_DTYPES,
    lacks=OF_GRAPHS,
)
def _if(call: Call) -> Sequence[TensorSpec]:
    """Infer the outputs of `call`: those of the branch that is selected. Source: ONNX If."""
    _check_scalar(call, 0, BOOLS, "the condition")
    specs, values = call.inputs[1:], call.values[1:]
    condition = call.value(0)
    # The other branch need not fit: it is never run.
    if condition is not None:
        return _check_outputs(
            infer_results(choose_branch(call, condition.item()), specs, values), call
        )
    # Without a known branch, only the facts common to both are known.
    then, other = (
        _check_outputs(infer_results(call.attributes[name], specs, values), call)
        for name in ("then_branch", "else_branch")
    )
    pairs = zip(then, other, strict=False)
    return [merge_specs(a, b, f"output {i} of the branches") for i, (a, b) in enumerate(pairs)]


def choose_branch(call: Call, condition: bool) -> Graph:
    branch: Graph = call.attributes["then_branch" if condition else "else_branch"]
    return branch


@define(
    "Loop",
    inputs="trip_count? cond? initial*",
    outputs="y+",
    attributes={"body": _GRAPH, "captured": _CAPTURED, "whole": _WHOLE},
    cost=_make_cost_rule("Loop"),
    float16=OWN_DTYPES,
    lacks=OF_GRAPHS,
)
def _loop(call: Call) -> Sequence[TensorSpec]:
    """Infer the outputs of `call`: the last states, then those of all iterations, stacked.

    The body's inputs are the iteration's number, the condition, the states and captured tensors;
    its outputs the condition, the states, and stacked tensors. `captured` counts the last inputs.
    Source: ONNX Loop.
    """
    _check_scalar(call, 0, INTEGERS, "the trip count")
    _check_scalar(call, 1, BOOLS, "the condition")
    body, given = call.attributes["body"], call.inputs[2:]
    count = len(given) - call.attributes["captured"]
    head = (TensorSpec("int64", ()), TensorSpec("bool", ()))
    if count < 0 or len(body.outputs) < 1 + count:
        raise ShapeError(
            f"the body has {len(body.outputs)} outputs, and {count} states",
            fix="let it put out the condition and each state",
        )
    states, results = _settle(body, head, given[:count], call, 2 + count, 1)
    _check_one(results[0], BOOLS, "the condition that the body puts out")
    stacked = results[1 + count :]
    length: Dim = UNKNOWN
    trips, condition = call.value(0), call.value(1)
    # A loop with a false initial condition stacks nothing, whatever its count.
    starts = not call.has(1) or (condition is not None and condition.item())
    if trips is not None and starts and repeats(body):
        length = max(int(trips.item()), 0)
    return [*states, *(replace_shape(spec, _stack(spec, length, 0)) for spec in stacked)]


def repeats(body: Graph) -> bool:
    """Return whether `body` never ends its Loop: the condition passes through or stays true."""
    name = body.outputs[0]
    # Exporters hand the condition through an Identity.
    while name in body.producers and body.producers[name].op == "Identity":
        name = body.producers[name].inputs[0]
    if name in body.constants:
        return bool(body.constants[name].item())
    return len(body.inputs) > 1 and name == body.inputs[1]


@define(
    "Scan",
    inputs="inputs+",
    outputs="y+",
    attributes={
        "body": _GRAPH,
        "num_scan_inputs": Attribute(Kind.INT, minimum=1),
        "scan_input_axes": _AXES,
        "scan_input_directions": _AXES,
        "scan_output_axes": _AXES,
        "scan_output_directions": _AXES,
        "captured": _CAPTURED,
        "whole": _WHOLE,
    },
    cost=_make_cost_rule("Scan"),
    float16=OWN_DTYPES,
    lacks=OF_GRAPHS,
)
def _scan(call: Call) -> Sequence[TensorSpec]:
    """Infer the outputs of `call`: the last states, then those of all steps over scanned inputs.

    The body's inputs are the states, a slice of each scanned input and captured tensors; its
    outputs the states, and stacked tensors. `captured` counts the last inputs. Source: ONNX Scan.
    """
    body, n_scanned = call.attributes["body"], call.attributes["num_scan_inputs"]
    count = len(call.inputs) - call.attributes["captured"] - n_scanned
    if count < 0 or len(body.outputs) < count:
        raise ShapeError(
            f"{len(call.inputs)} inputs are too few for {n_scanned} scanned ones, and the body's "
            f"{len(body.outputs)} outputs for {count} states",
            fix="pass the states, then what is scanned",
        )
    length: Dim = UNKNOWN
    slices: list[TensorSpec | None] = []
    for index in range(n_scanned):
        spec = call.spec(count + index)
        if spec.shape is None:
            slices.append(spec)
            continue
        axis = normalize_axis(get_axis(call, "scan_input_axes", index), len(spec.shape))
        if not may_equal(length, spec.shape[axis]):
            raise ShapeError(
                f"scanned inputs have lengths {length} and {spec.shape[axis]}",
                fix="scan tensors of one length",
            )
        # All have the same length, so a number resolves a symbol.
        length = spec.shape[axis] if isinstance(length, str) else length
        slices.append(_slice(call, count + index, index))
    states, results = _settle(body, (), call.inputs[:count], call, count + n_scanned, 0, slices)
    stacked = results[count:]
    axes = [get_axis(call, "scan_output_axes", i) for i in range(len(stacked))]
    shapes = (_stack(spec, length, axis) for spec, axis in zip(stacked, axes, strict=True))
    return [*states, *map(replace_shape, stacked, shapes)]


def infer_nested_inputs(
    op: str, call: Call, results: Sequence[TensorSpec | None]
) -> list[TensorSpec]:
    """Return specs that hold in every iteration of `op` for the inputs of the graphs in `call`.

    `results` are the specs of the node's outputs, which fix those of states.
    """
    given = [spec if spec is not None else TensorSpec("float32", None) for spec in call.inputs]
    if op == "If":
        return given[1:]
    n_scanned = call.attributes["num_scan_inputs"] if op == "Scan" else 0
    # A Loop's count and condition come before its states.
    first = 0 if op == "Scan" else 2
    end = len(given) - call.attributes["captured"]
    count = end - n_scanned - first
    settled = [*results[:count], *[None] * (count - len(results))]
    states = [
        TensorSpec(spec.dtype, None) if known is None else known
        for spec, known in zip(given[first:], settled, strict=False)
    ]
    if op == "Loop":
        return [TensorSpec("int64", ()), TensorSpec("bool", ()), *states, *given[end:]]
    slices = [_slice(call, count + index, index) for index in range(n_scanned)]
    return [*states, *slices, *given[end:]]


def _slice(call: Call, place: int, index: int) -> TensorSpec:
    spec = call.spec(place)
    if spec.shape is None:
        return spec
    axis = normalize_axis(get_axis(call, "scan_input_axes", index), len(spec.shape))
    return replace_shape(spec, spec.shape[:axis] + spec.shape[axis + 1 :])


def get_axis(call: Call, attribute: str, index: int) -> int:
    """Return the axis in `attribute` of `call` for Scan's input or output `index`, by default 0."""
    values = call.attributes[attribute]
    return values[index] if values is not None and index < len(values) else 0


def _settle(
    body: Graph,
    head: Sequence[TensorSpec],
    states: Sequence[TensorSpec | None],
    call: Call,
    first_captured: int,
    skipped: int,
    slices: Sequence[TensorSpec | None] = (),
) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Return specs of `states` that hold in every iteration, and specs of all outputs of `body`.

    The body's inputs are `head`, the states, `slices`, and the inputs of `call` from the index
    `first_captured`; `skipped` outputs precede the states.
    """
    captured, values = call.inputs[first_captured:], call.values[first_captured:]
    unknown = [None] * (len(head) + len(states) + len(slices))
    specs = [spec if spec is not None else TensorSpec("float32", None) for spec in states]
    # A state may grow from one iteration to the next, so that specs are widened until the body
    # keeps to them.
    for rounds_left in reversed(range(_ROUNDS + 1)):
        results = infer_results(body, [*head, *specs, *slices, *captured], [*unknown, *values])
        made = results[skipped : skipped + len(specs)]
        wider = [
            merge_specs(a, b, f"state {i}")
            for i, (a, b) in enumerate(zip(specs, made, strict=True))
        ]
        if wider == specs:
            break
        # They do not settle: the dtype is all that holds in every iteration.
        specs = wider if rounds_left > 1 else [TensorSpec(spec.dtype, None) for spec in specs]
    return specs, list(results)


def _stack(spec: TensorSpec, length: Dim, axis: int) -> tuple[Dim, ...] | None:
    if spec.shape is None:
        return None
    place = normalize_axis(axis, len(spec.shape) + 1)
    return (*spec.shape[:place], length, *spec.shape[place:])


def _check_outputs(specs: Sequence[TensorSpec], call: Call) -> Sequence[TensorSpec]:
    if len(specs) < call.n_outputs:
        raise ShapeError(
            f"a branch has {len(specs)} outputs, the node {call.n_outputs}",
            fix="give both branches as many outputs as the node",
        )
    return specs[: call.n_outputs]


def _check_scalar(call: Call, index: int, kinds: str, label: str) -> None:
    if call.has(index):
        _check_one(call.spec(index), kinds, label)


def _check_one(spec: TensorSpec, kinds: str, label: str) -> None:
    check_dtype(spec, kinds, label)
    if spec.is_static and spec.size != 1:
        raise ShapeError(f"{label} is {spec}, not one value", fix="reduce it to one")
