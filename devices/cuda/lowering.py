"""Lowering of nodes for a CUDA device: to cuBLAS or cuDNN, to generated kernels, or to CuPy's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from itertools import zip_longest
from typing import NamedTuple, TypeAlias

from ...graph.ir import Graph, Node
from ...graph.operator import Call, Specs
from ...graph.tensor import TensorSpec
from .. import program as programs
from ..codegen import registry as generated
from ..codegen.composition import compose
from ..codegen.formulas import Member, has_formula
from ..codegen.fusing import LEFT, fused
from ..codegen.kernel import Code
from ..codegen.pieces import Launch, Piece, Transfer, launches, working_nodes
from ..device import Support, scratch_name
from ..memory import View
from .biases import biased, meets
from .convolutions import StaticConvolution, convolution_of
from .products import Product, product_of
from .support import why_no_array, why_not

HELD_AT_MOST = 512
"""Kernels and marks in a stream that is held up: CUDA takes 1024 before it blocks the queue."""


class Multiply(NamedTuple):
    """A product, and the tensors, the workspace and the bias it is given, by name."""

    product: Product
    a: str
    b: str
    y: str
    workspace: str
    bias: str = ""


class Convolve(NamedTuple):
    """A convolution, the number of cuDNN's engine, and its tensors and workspace, by name."""

    convolution: StaticConvolution
    engine: int
    x: str
    w: str
    y: str
    workspace: str


Queued: TypeAlias = Transfer | Launch | Multiply | Convolve


class Way(NamedTuple):
    """What computes a convolution.

    Attributes
    ----------
    library : {"cudnn", "cublas", "generated"}
    engine : int, default 0
        Which one of cuDNN's.
    """

    library: str
    engine: int = 0


GENERATED, BY_CUBLAS, BY_CUDNN = map(Way, ("generated", "cublas", "cudnn"))


class Part(NamedTuple):
    """Nodes that are computed together.

    Attributes
    ----------
    nodes : tuple of Node
        The last one is the one that errors and times name.
    queued : tuple of Transfer, Launch, Multiply or Convolve, or None
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
        """What is not queued by our own kernels, but by CuPy's or libraries; None without any."""
        if self.queued is None:
            return self
        calls = tuple(item for item in self.queued if isinstance(item, Multiply | Convolve))
        return Part(self.nodes, calls) if calls else None


class Lowering:
    """Decides; planning and compiling ask the same one, so that they agree on scratch buffers.

    Parameters
    ----------
    generates : bool
        Whether there are generated kernels.
    multiplies, convolves : bool
        Whether there is cuBLAS; whether there is cuDNN.
    tf32 : bool, default False
        Whether tensor cores may multiply float32.
    """

    def __init__(
        self, *, generates: bool, multiplies: bool, convolves: bool = False, tf32: bool = False
    ) -> None:
        self.generates = generates
        self.multiplies = multiplies and generates
        self.convolves = convolves and generates
        self._tf32 = tf32
        self._refused: set[Product | StaticConvolution] = set()
        self._chosen: dict[StaticConvolution, Way] = {}

    def refuse(self, item: Multiply | Convolve) -> None:
        """Leave what is like this to generated kernels from now on."""
        if isinstance(item, Convolve):
            self._refused.add(item.convolution)
            self._chosen.pop(item.convolution, None)
        else:
            self._refused.add(item.product if item.product.is_biased else item.product.bare)

    def choose(self, convolution: StaticConvolution, way: Way) -> None:
        """Have convolutions like this one computed in a way from now on."""
        self._chosen[convolution] = way

    def choosing(self, convolution: StaticConvolution, way: Way) -> Lowering:
        """Return what decides as this does, except for such convolutions."""
        other = copy(self)
        other._chosen = {**self._chosen, convolution: way}
        return other

    def undecided(self, node: Node, call: Call, outputs: Specs) -> StaticConvolution | None:
        """Return the convolution that a node is, while nobody has chosen what computes it."""
        found = self._convolution(node, call, outputs)
        return None if found in self._chosen or found in self._refused else found

    def others(self, node: Node, call: Call, outputs: Specs) -> tuple[Way, ...]:
        """Return what computes a convolution besides cuDNN."""
        products = () if self._product(node, call, outputs) is None else (BY_CUBLAS,)
        return products if generated.why_not(node, call) else (*products, GENERATED)

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
        # What libraries take comes last, whether they have refused the node or not: plans that were
        # made before have room for what takes its place, and plans made later fit other devices.
        own = self._own_scratch(node, call, outputs)
        product = product_of(node, call, outputs) if self.multiplies else None
        convolution = self._convolution(node, call, outputs)
        if convolution is None:
            return own if product is None else (*own, *product.scratch)
        nbytes = [each.workspace_nbytes for each in (product, convolution) if each is not None]
        return (*own, TensorSpec("uint8", (max(nbytes),)))  # for whichever it will be

    def parts(self, graph: Graph, views: Mapping[str, View]) -> tuple[Part, ...]:
        """Return what there is to do for a subgraph, in order."""
        if not self.generates:
            return tuple(Part((node,), None) for node in working_nodes(graph, views))

        def work(node: Node) -> Product | StaticConvolution | None:
            return self._work(node, graph.call(node), graph.output_specs(node))

        def rest(node: Node) -> Member | None:
            found = work(node)
            return None if found is None else _added(graph, node, found)

        def part(item: Piece | Node) -> Part:
            nodes, queued = item if isinstance(item, Piece) else ((item,), None)
            node, found = nodes[-1], work(nodes[-1])
            if found is None:
                return Part(nodes, None if queued is None else tuple(map(_in_place, queued)))
            is_begun, scratch = node.name in gone_on_with, self._scratch_from(graph, node)
            if isinstance(found, Product):
                return Part(nodes, _multiply(node, found.bare if is_begun else found, scratch))
            (x, w, *_), (y,) = node.inputs, node.outputs
            engine = self._chosen.get(found, BY_CUDNN).engine
            call = Convolve(found, engine, x, w, y, scratch_name(node, scratch))
            added = None if is_begun else _added(graph, node, found)
            return Part(nodes, (call,) if added is None else (call, _alone(added)))

        def joined(item: Piece | Node, behind: Sequence[Node]) -> Part | None:
            node = item.nodes[-1] if isinstance(item, Piece) else item
            product = work(node)
            found = biased(graph, node, product, behind) if isinstance(product, Product) else None
            if found is None or found.product in self._refused:
                return None
            (call,) = _multiply(node, found.product, self._scratch_from(graph, node))
            assert isinstance(call, Multiply)
            # The last node's results are written sooner than planned.
            if meets(found.y, (call.a, call.b, found.bias, call.workspace), views):
                return None
            return Part(found.nodes, (call._replace(y=found.y, bias=found.bias),))

        items = fused(graph, views, epilogues=lambda node: work(node) is None, begun=rest)
        pieces = [item for item in items if isinstance(item, Piece)]
        gone_on_with = {node.name for piece in pieces for node in piece.nodes[:-1]}
        parts = list[Part]()
        is_done = False
        for item, following in zip_longest(items, items[1:]):
            if not is_done:
                behind = _behind(item, following)
                whole = joined(item, behind) if behind else None
                is_done = whole is not None
                if whole is None and isinstance(item, Node) and item.name not in gone_on_with:
                    whole = joined(item, ())
                parts.append(whole or part(item))
            else:
                is_done = False
        return tuple(parts)

    def _scratch_from(self, graph: Graph, node: Node) -> int:
        """Return how many scratch buffers of a node come before those of libraries."""
        return len(self._own_scratch(node, graph.call(node), graph.output_specs(node)))

    def _own_scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        """Return the scratch buffers of a node that cuBLAS does not compute."""
        if self.generates and generated.why_not(node, call) is None:
            return generated.scratch(node, call, outputs)
        return programs.scratch(node, "cuda", call, outputs)

    def _work(self, node: Node, call: Call, outputs: Specs) -> Product | StaticConvolution | None:
        """Return what a library has to do for a node; None where a kernel is generated."""
        product = self._product(node, call, outputs)
        convolution = self._convolution(node, call, outputs)
        if convolution is None or convolution in self._refused:
            return product
        way = self._chosen.get(convolution) or _usual(convolution, product)
        return {GENERATED: None, BY_CUBLAS: product}.get(way, convolution)

    def _convolution(self, node: Node, call: Call, outputs: Specs) -> StaticConvolution | None:
        return convolution_of(node, call, outputs, tf32=self._tf32) if self.convolves else None

    def _product(self, node: Node, call: Call, outputs: Specs) -> Product | None:
        product = product_of(node, call, outputs) if self.multiplies else None
        return None if product is None or product.bare in self._refused else product


def _usual(convolution: StaticConvolution, product: Product | None) -> Way:
    """Return what should be fast, as long as nobody has measured it."""
    if product is not None:
        return BY_CUBLAS
    if convolution.is_by_channel or not convolution.on_tensor_cores:
        return GENERATED
    return BY_CUDNN


def _added(graph: Graph, node: Node, found: Product | StaticConvolution) -> Member | None:
    """Return the addition that kernels behind a product can begin with; None where there is none.

    By cuBLAS itself, it would take a kernel that writes the output ahead of it, and cuBLAS would
    read that. By cuDNN, it takes as long as this kernel, or longer.
    """
    y = graph.tensors[node.outputs[0]]
    shape = _bias_shape(node, y) if isinstance(found, StaticConvolution) else found.added
    if shape is None or (isinstance(found, Product) and found.beta != 1):
        return None
    call = Call((y, TensorSpec(graph.tensors[node.inputs[2]].dtype, shape)), (None, None), {})
    inputs = (node.outputs[0] + LEFT, node.inputs[2])
    return Member("Add", call, inputs, node.outputs[0], y) if has_formula("Add", call) else None


def _behind(item: Piece | Node, following: Piece | Node | None) -> tuple[Node, ...]:
    """Return the nodes that are computed together right behind a node."""
    node = item if isinstance(item, Node) else item.nodes[-1]
    if not isinstance(following, Piece):
        return ()
    return tuple(each for each in following.nodes if each is not node)


def _bias_shape(node: Node, y: TensorSpec) -> tuple[int, ...] | None:
    """Return the shape from which a convolution's bias is broadcast; None where it has none."""
    if len(node.inputs) < 3 or not node.inputs[2]:
        return None
    return (y.static_shape[1], *(1 for _ in y.static_shape[2:]))


def _alone(member: Member) -> Launch:
    """Return the kernel that goes on with what a library has left, where no nodes follow."""
    kernel, tensors = compose([member], [member.output])
    launch = _in_place(Launch(kernel, tensors))
    assert isinstance(launch, Launch)
    return launch


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
