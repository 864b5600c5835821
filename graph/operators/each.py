"""Each: a graph for the rows of tensors, which a session runs in batches with rows of other items.

Its function is awaited as an operator's: it passes the rows to the session's batch server,
and continues with their results. Elsewhere it is the graph itself, on all rows at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Protocol

from ..core.attribute import Attribute, Kind
from ..core.infer import get_cost, infer_shapes
from ..core.ir import ASSIGN, VARIABLE, Graph, Node
from ..core.nested import acts_outside, call_graph, draws, infer_results, list_graphs, walk_nodes
from ..core.operator import Call, Operator, Specs, register_operator
from ..core.traits import OWN_DTYPES, Part
from ..values.dims import UNKNOWN, evaluate_dim
from ..values.dtypes import hold_objects
from ..values.errors import GraphError, ShapeError
from ..values.tensor import Array, Dim, TensorSpec
from .inputs import may_equal
from .row_axes import find_mixing_node

EACH = "Each"

ROWS = "batch_rows"
"""How the length of a batch is called."""

ITEM, VALUE = ON_ERROR = ("item", "value")
"""A row that fails takes its item with it, or is alone zeros and not ok."""


OLDEST, NEWEST = DROPS = ("oldest", "newest")
"""Which rows go where more wait than are kept."""


class RowServer(Protocol):
    """Runs rows in batches, for the functions of a session."""

    async def run(
        self, values: Sequence[Array], attributes: Mapping[str, Any]
    ) -> tuple[Array, ...]:
        """Return the results for all rows of `values`, in their order."""


row_server: ContextVar[RowServer] = ContextVar("plait row server")
"""The server of the session that awaits the function."""


async def _run_rows(*values: Any, **attributes: Any) -> Any:
    held = [hold_objects(one) if type(one) is list else one for one in values]
    found = await row_server.get().run(held, attributes)
    return found if len(found) > 1 else found[0]  # a tuple would be a row of objects


def _infer(call: Call) -> Sequence[TensorSpec]:
    """Infer the outputs of `call`: the graph's results, with the first axis of its inputs.

    The last one, of booleans, says whether each row is ok, if errors are kept with rows.
    """
    body: Graph = call.attributes["body"]
    given = [call.spec(index) for index in range(len(call.inputs))]
    length, is_padded = find_common_rows(given), call.attributes["pad"]
    specs = infer_padded(body, given) if is_padded else infer_results(body, call.inputs)
    for name, spec in zip(body.outputs, specs, strict=True):
        if not may_equal(get_first_dim(spec, f"output {name!r} of the graph"), length):
            raise ShapeError(
                f"output {name!r} of the graph is {spec} for {length} rows",
                fix="let each output have a row for each row of the inputs",
            )
    rows = [TensorSpec(spec.dtype, spec.shape and (length, *spec.shape[1:])) for spec in specs]
    if call.attributes["on_error"] == VALUE:
        rows.append(TensorSpec("bool", (length,)))
    return rows


def infer_padded(body: Graph, inputs: Sequence[TensorSpec]) -> Sequence[TensorSpec]:
    """Return specs of results of `body` for `inputs`, with lengths that follow from one of theirs.

    Nested graphs have names of their own for lengths, which are unknown outside.
    """
    specs = infer_results(body, tuple(inputs))
    symbols = {dim for spec in inputs for dim in spec.shape or () if isinstance(dim, str)}
    given = dict(zip(body.inputs, inputs, strict=True))
    made = infer_shapes(replace(body, tensors={**body.tensors, **given})).tensors

    def find(dim: Dim, inside: Dim) -> Dim:
        is_known = any(evaluate_dim(inside, {symbol: 1}) is not None for symbol in symbols)
        return inside if dim == UNKNOWN and is_known else dim

    shapes = (made[name].shape or () for name in body.outputs)
    return [
        TensorSpec(spec.dtype, spec.shape and tuple(map(find, spec.shape, own)))
        for spec, own in zip(specs, shapes, strict=True)
    ]


def find_common_rows(specs: Sequence[TensorSpec]) -> Dim:
    """Return the number of rows of all `specs`; raise ShapeError if one has another, or none."""
    length: Dim = UNKNOWN
    for spec in specs:
        first = get_first_dim(spec, "a value")
        if not may_equal(length, first):
            raise ShapeError(
                f"the values have {length} and {first} rows", fix="pass tensors of as many rows"
            )
        length = first if length == UNKNOWN else length
    return length


def get_first_dim(spec: TensorSpec, label: str) -> Dim:
    """Return the first length of `spec`; for a scalar, raise a ShapeError about `label`."""
    if spec.shape is None:
        return UNKNOWN
    if not spec.shape:
        raise ShapeError(f"{label} is {spec}, and has no rows", fix="give it a first axis")
    return spec.shape[0]


def check_body(body: Graph, at: str, batch: int) -> None:
    """Raise GraphError unless `body` can run `batch` rows of any items at once."""
    firsts = {
        get_first_dim(body.tensors[name], f"input {name!r} of the graph") for name in body.inputs
    }
    if len(firsts) != 1 or not isinstance(next(iter(firsts)), str):
        listed = ", ".join(f"{name} {body.tensors[name]}" for name in body.inputs) or "none"
        raise GraphError(
            f"the graph is not one for any number of rows: its inputs are {listed}",
            at=at,
            fix='call the first axis of each alike, such as "rows", or leave batch out',
        )
    what = None
    if any(node.op in (VARIABLE, ASSIGN) for node in body.nodes):
        what = "has variables"
    elif any(draws(node) for node in body.nodes):
        what = "draws random numbers"
    elif any(acts_outside(node) for _, _, node in walk_nodes(body)):
        what = "has effects"
    if what is not None:
        raise GraphError(
            f"the graph {what}, and its rows are run with those of other items",
            at=at,
            fix="leave batch out: it is part of the graph around it then",
        )
    if batch != 1:
        check_rows(body, at)


def check_rows(body: Graph, at: str) -> None:
    """Raise GraphError, at `at`, if a node of `body` makes a row depend on others."""
    node = find_mixing_node(body, dict.fromkeys(body.inputs, 0))
    if node is not None:
        raise GraphError(
            f"what {node.op} makes of a row depends on the others that run with it",
            at=f"{at}: node {node.name!r} of the graph",
            fix="let it compute along other axes than that of rows, or use batch=1",
        )


def iterate_bodies(graph: Graph) -> Iterator[tuple[Node, Graph]]:
    """Yield nodes of `graph` that run graphs in batches, with these graphs for the rows they get.

    Not those inside of such graphs, which are looked at when these are planned.
    """
    for node in graph.nodes:
        if node.op == EACH:
            yield node, _get_body(graph, node)
        else:
            for inner in list_graphs(node):
                yield from iterate_bodies(inner)


def _get_body(graph: Graph, node: Node) -> Graph:
    """Return the graph in `node` of `graph` for any number of rows of its inputs' shapes."""
    body: Graph = node.attributes["body"]
    shapes = [graph.tensors[name].shape for name in node.inputs]
    rows, taken = ROWS, {dim for shape in shapes for dim in shape or ()}
    while rows in taken:
        rows += "_"
    given = {
        name: TensorSpec(body.tensors[name].dtype, shape and (rows, *shape[1:]))
        for name, shape in zip(body.inputs, shapes, strict=True)
    }
    return infer_shapes(replace(body, tensors={**body.tensors, **given}))


def _count_flops(call: Call, outputs: Specs) -> int:
    body = call_graph(call.attributes["body"], call.inputs)
    return sum(get_cost(body, node).flops for node in body.nodes) if body.is_static else 0


register_operator(
    Operator(
        EACH,
        "x+",
        "y+",
        {
            "body": Attribute(Kind.GRAPH),
            "batch": Attribute(Kind.INT, minimum=1),
            "max_delay_s": Attribute(Kind.FLOAT, 0.0, minimum=0, maximum=86_400),
            "on_error": Attribute(Kind.STRING, ITEM, choices=ON_ERROR),
            "keep": Attribute(Kind.INT, 0, minimum=0),
            "drop": Attribute(Kind.STRING, OLDEST, choices=DROPS),
            "queue": Attribute(Kind.STRING),
            # For each input and each output of the graph, its axis that is filled up, or 0.
            "pad": Attribute(Kind.INTS, (), minimum=0),
        },
        _infer,
        _count_flops,
        function=_run_rows,
        module=__name__,
        float16=OWN_DTYPES,
        lacks=dict.fromkeys(
            (Part.KERNEL, Part.DEFINITION, Part.CODEGEN), "its graph is run, not the node"
        ),
    )
)
