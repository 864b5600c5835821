"""Lowering of nodes for a CUDA device: to cuBLAS, to generated kernels, or to CuPy's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from ...graph.ir import Graph, Node
from ...graph.operator import Call, Specs
from ...graph.tensor import TensorSpec
from .. import program as programs
from ..codegen import registry as generated
from ..codegen.fusing import fused
from ..codegen.kernel import Code
from ..codegen.pieces import Launch, Piece, Transfer, launches, working_nodes
from ..device import Support, scratch_name
from ..memory import View
from .products import Product, product_of
from .support import why_no_array, why_not


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
        product = self._product(node, call, outputs)
        if product is not None:
            return (TensorSpec("uint8", (product.workspace_nbytes,)),)
        if self.generates and generated.why_not(node, call) is None:
            return generated.scratch(node, call, outputs)
        return programs.scratch(node, "cuda", call, outputs)

    def parts(self, graph: Graph, views: Mapping[str, View]) -> tuple[Part, ...]:
        """Return what there is to do for a subgraph, in order."""
        if not self.generates:
            return tuple(Part((node,), None) for node in working_nodes(graph, views))

        def product(node: Node) -> Product | None:
            return self._product(node, graph.call(node), graph.output_specs(node))

        found = fused(graph, views, epilogues=lambda node: product(node) is None)
        return tuple(_part(item, product) for item in found)

    def _product(self, node: Node, call: Call, outputs: Specs) -> Product | None:
        return product_of(node, call, outputs) if self.multiplies else None


def _part(item: Piece | Node, find: Callable[[Node], Product | None]) -> Part:
    nodes, queued = item if isinstance(item, Piece) else ((item,), None)
    product = find(nodes[-1])
    return Part(nodes, queued if product is None else _multiply(nodes[-1], product))


def _multiply(node: Node, product: Product) -> tuple[Queued, ...]:
    a, b = (node.inputs[factor.operand] for factor in (product.a, product.b))
    multiply = Multiply(product, a, b, node.outputs[0], scratch_name(node, 0))
    fill = () if product.fill is None else launches(node, Code((product.fill,)))
    return (*fill, multiply)
