"""Lowering of nodes for a CUDA device: to cuBLAS, to generated kernels, or to CuPy's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ...graph.ir import Graph, Node
from ...graph.operator import Call, Specs
from ...graph.tensor import TensorSpec
from .. import program as programs
from ..codegen import registry as generated
from ..codegen.formulas import Member, has_formula
from ..codegen.fusing import LEFT, fused
from ..codegen.kernel import Code
from ..codegen.pieces import Launch, Piece, Transfer, launches, working_nodes
from ..device import Support, scratch_name
from ..memory import View
from .products import Product, product_of
from .support import why_no_array, why_not

HELD_AT_MOST = 512
"""Kernels and marks in a stream that is held up: CUDA takes 1024 before it blocks the queue."""


class Multiply(NamedTuple):
    """A product, and the tensors and the workspace it is given, by name."""

    product: Product
    a: str
    b: str
    y: str
    workspace: str


Queued: TypeAlias = Transfer | Launch | Multiply


class Part(NamedTuple):
    """Nodes that are computed together.

    Attributes
    ----------
    nodes : tuple of Node
        The last one is the one that errors and times name.
    queued : tuple of Transfer, Launch or Multiply, or None
        What a stream is given, which can be captured; None where CuPy runs a kernel of its own.
    """

    nodes: tuple[Node, ...]
    queued: tuple[Queued, ...] | None

    @property
    def node(self) -> Node:
        """The last node."""
        return self.nodes[-1]

    @property
    def of_libraries(self) -> Part | None:
        """What is not queued by our own kernels, but by CuPy's or cuBLAS; None without any."""
        if self.queued is None:
            return self
        products = tuple(item for item in self.queued if isinstance(item, Multiply))
        return Part(self.nodes, products) if products else None


class Lowering:
    """Decides; planning and compiling ask the same one, so that they agree on scratch buffers.

    Parameters
    ----------
    generates : bool
        Whether there are generated kernels.
    multiplies : bool
        Whether there is cuBLAS.
    """

    def __init__(self, *, generates: bool, multiplies: bool) -> None:
        self.generates = generates
        self.multiplies = multiplies and generates
        self._refused: set[Product] = set()

    def refuse(self, product: Product) -> None:
        """Leave products like this one to generated kernels from now on."""
        self._refused.add(product.bare)

    def supports(self, node: Node, call: Call) -> Support:
        """Say whether a node runs, in one way or another; its shapes may be symbolic."""
        support = programs.supports(node, "cuda", runs_python=False, call=call)
        reason = why_not(node, call) if support.ok else support.reason
        if reason is None:
            return support
        has_arrays = why_no_array(node, call) is None
        if self.generates and has_arrays and generated.why_not(node, call) is None:
            return Support(True, "has a generated kernel")
        return Support(False, reason)

    def scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        """Return the scratch buffers of a node of static shapes."""
        # What cuBLAS takes comes last, whether it has refused the product or not: plans that were
        # made before have room for what takes its place, and plans made later fit other devices.
        own = self._own_scratch(node, call, outputs)
        product = product_of(node, call, outputs) if self.multiplies else None
        return own if product is None else (*own, *product.scratch)

    def parts(self, graph: Graph, views: Mapping[str, View]) -> tuple[Part, ...]:
        """Return what there is to do for a subgraph, in order."""
        if not self.generates:
            return tuple(Part((node,), None) for node in working_nodes(graph, views))

        def product(node: Node) -> Product | None:
            return self._product(node, graph.call(node), graph.output_specs(node))

        def rest(node: Node) -> Member | None:
            found = product(node)
            return None if found is None else _added(graph, node, found)

        def part(item: Piece | Node) -> Part:
            nodes, queued = item if isinstance(item, Piece) else ((item,), None)
            node, found = nodes[-1], product(nodes[-1])
            if found is None:
                return Part(nodes, None if queued is None else tuple(map(_in_place, queued)))
            if node.name in gone_on_with:
                found = found.bare
            own = self._own_scratch(node, graph.call(node), graph.output_specs(node))
            return Part(nodes, _multiply(node, found, len(own)))

        items = fused(graph, views, epilogues=lambda node: product(node) is None, begun=rest)
        pieces = [item for item in items if isinstance(item, Piece)]
        gone_on_with = {node.name for piece in pieces for node in piece.nodes[:-1]}
        return tuple(map(part, items))

    def _own_scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        """Return the scratch buffers of a node that cuBLAS does not compute."""
        if self.generates and generated.why_not(node, call) is None:
            return generated.scratch(node, call, outputs)
        return programs.scratch(node, "cuda", call, outputs)

    def _product(self, node: Node, call: Call, outputs: Specs) -> Product | None:
        product = product_of(node, call, outputs) if self.multiplies else None
        return None if product is None or product.bare in self._refused else product


def _added(graph: Graph, node: Node, product: Product) -> Member | None:
    """Return the addition that kernels behind a product can begin with; None where there is none.

    By cuBLAS itself, it would take a kernel that writes the output ahead of it, and cuBLAS would
    read that.
    """
    if product.added is None or product.beta != 1:
        return None
    y, bias = graph.tensors[node.outputs[0]], graph.tensors[node.inputs[2]]
    call = Call((y, TensorSpec(bias.dtype, product.added)), (None, None), {})
    inputs = (node.outputs[0] + LEFT, node.inputs[2])
    return Member("Add", call, inputs, node.outputs[0], y) if has_formula("Add", call) else None


def _in_place(item: Transfer | Launch) -> Transfer | Launch:
    """Return a launch whose buffers are tensors, where it goes on with what lies in one."""
    if isinstance(item, Transfer):
        return item
    return item._replace(buffers=tuple(name.removesuffix(LEFT) for name in item.buffers))


def _multiply(node: Node, product: Product, scratch: int) -> tuple[Queued, ...]:
    """Return what multiplies; its scratch buffers are those from a number on."""
    workspace, *turned = (scratch_name(node, scratch + i) for i in range(len(product.scratch)))
    a, b = (node.inputs[factor.operand] for factor in (product.a, product.b))
    before: tuple[Queued, ...] = ()
    if product.fill is not None:
        before += launches(node, Code((product.fill,)))
    if product.turn is not None:
        (b,) = turned
        before += launches(node, Code((product.turn,)), {"y": b})
    return (*before, Multiply(product, a, b, node.outputs[0], workspace))


def fits_in_queue(parts: Sequence[Part]) -> bool:
    """Say whether all of these parts, and a mark behind each, can be queued before any begins."""
    queued = [part.queued for part in parts]
    if None in queued:  # what CuPy computes may wait for the GPU meanwhile
        return False
    return sum(1 + len(items or ()) for items in queued) <= HELD_AT_MOST
