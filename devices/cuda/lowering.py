"""Lowering of nodes for a CUDA device: to cuBLAS or cuDNN, to generated kernels, or to CuPy's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from itertools import groupby, zip_longest
from typing import NamedTuple, TypeAlias

from ...graph.infer import infer_node
from ...graph.ir import Graph, Node
from ...graph.operator import Call, Specs
from ...graph.tensor import Array, TensorSpec
from .. import program as programs
from ..codegen import registry as generated
from ..codegen.attention_weights import attention_weights
from ..codegen.composition import Chain, compose
from ..codegen.formulas import Member, has_formula
from ..codegen.fusing import LEFT, fused
from ..codegen.kernel import Code
from ..codegen.pieces import Launch, Piece, Transfer, launches, working_nodes
from ..device import Support, scratch_name
from ..memory import View
from .attention import StaticAttention, attention_of
from .biases import biased, meets
from .byte_products import ByteProduct, PreparedConstants, byte_product_of
from .convolutions import StaticConvolution, convolution_of
from .parts import Execute, Multiply, Part, Queued
from .products import Product, product_of
from .support import why_no_array, why_not

Choosable: TypeAlias = StaticConvolution | StaticAttention | ByteProduct
"""What several can compute, of whom the fastest is chosen."""
ByProducts: TypeAlias = StaticAttention | ByteProduct
"""What cuBLAS computes with generated kernels around its products."""


class Way(NamedTuple):
    """What computes a convolution, an attention, or a product of bytes.

    Attributes
    ----------
    library : {"cudnn", "cublas", "generated"}
    engine : int, default 0
        Which one of cuDNN's.
    """

    library: str
    engine: int = 0


GENERATED, BY_CUBLAS, BY_CUDNN = map(Way, ("generated", "cublas", "cudnn"))


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
        self._refused: set[Product | Choosable] = set()
        self._chosen: dict[Choosable, Way] = {}
        self._prepared = PreparedConstants()

    def refuse(self, item: Multiply | Execute) -> None:
        """Leave what is like this to others from now on."""
        if isinstance(item, Execute):
            self._refused.add(item.work)
            self._chosen.pop(item.work, None)
        else:
            self._refused.add(item.product if item.product.is_biased else item.product.bare)

    def choose(self, found: Choosable, way: Way) -> None:
        """Have what is like this computed in a way from now on."""
        self._chosen[found] = way

    def choosing(self, found: Choosable, way: Way) -> Lowering:
        """Return what decides as this does, except for what is like this."""
        other = copy(self)
        other._chosen = {**self._chosen, found: way}
        return other

    def undecided(self, node: Node, call: Call, outputs: Specs) -> Choosable | None:
        """Return what a node is, while what computes it is still to be chosen."""
        found = self._convolution(node, call, outputs) or self._by_products(node, call, outputs)
        return None if found in self._chosen or found in self._refused else found

    def others(self, node: Node, call: Call, outputs: Specs) -> tuple[Way, ...]:
        """Return what computes a node besides cuDNN."""
        by_product = self._product(node, call, outputs) or self._by_products(node, call, outputs)
        products = () if by_product is None else (BY_CUBLAS,)
        return products if generated.why_not(node, call) else (*products, GENERATED)

    def supports(self, node: Node, call: Call) -> Support:
        """Say whether a node runs, and by what; its shapes may be symbolic."""
        has_arrays = why_no_array(node, call) is None
        if self.generates and has_arrays and generated.why_not(node, call) is None:
            return Support(True, self._library(node, call) or "has a generated kernel")
        support = programs.supports(node, "cuda", runs_python=False, call=call)
        reason = why_not(node, call) if support.ok else support.reason
        return Support(reason is None, reason or "CuPy has a kernel")

    def scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        """Return the scratch buffers of a node of static shapes."""
        # What libraries take comes last, whether they have refused the node or not: plans that were
        # made before have room for what takes its place, and plans made later fit other devices.
        own = self.own_scratch(node, call, outputs)
        product = product_of(node, call, outputs) if self.multiplies else None
        convolution = self._convolution(node, call, outputs)
        if convolution is None:
            library = product or self._by_products(node, call, outputs)
            return own if library is None else (*own, *library.scratch)
        nbytes = [each.workspace_nbytes for each in (product, convolution) if each is not None]
        return (*own, TensorSpec("uint8", (max(nbytes),)))  # for whichever it will be

    def parts(self, graph: Graph, views: Mapping[str, View]) -> tuple[Part, ...]:
        """Return what there is to do for a subgraph, in order."""
        if not self.generates:
            return tuple(Part((node,), None) for node in working_nodes(graph, views))

        return tuple(_Assembly(self, graph, views).parts())

    def constants(self, graph: Graph) -> dict[str, Array]:
        """Return the constants that the parts of a subgraph read, and what is made of them."""
        made: dict[str, Array] = {}
        readers = Counter(name for node in graph.nodes for name in node.inputs)
        for node in graph.nodes:
            found = self.work(node, graph.call(node), graph.output_specs(node))
            if isinstance(found, ByteProduct):
                for name, factor in found.constants(node):
                    made |= self._prepared.of(name, graph.constants[name], factor)
                    readers[name] -= factor.is_packed
        kept = graph.constants.items()
        return {n: one for n, one in kept if readers[n] or n in graph.fetched} | made

    def own_scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        """Return the scratch buffers of a node that no library computes."""
        if self.generates and generated.why_not(node, call) is None:
            return generated.scratch(node, call, outputs)
        return programs.scratch(node, "cuda", call, outputs)

    def work(self, node: Node, call: Call, outputs: Specs) -> Product | Choosable | None:
        """Return what a library has to do for a node; None where a kernel is generated."""
        found = self._by_products(node, call, outputs)
        if found is not None:
            way = self._chosen.get(found, BY_CUBLAS)
            is_refused = way == BY_CUBLAS and not self._refused.isdisjoint(found.products)
            return None if is_refused or way == GENERATED else found
        product = self._product(node, call, outputs)
        convolution = self._convolution(node, call, outputs)
        if convolution is None or convolution in self._refused:
            return product
        way = self._chosen.get(convolution) or _usual(convolution, product)
        return {GENERATED: None, BY_CUBLAS: product}.get(way, convolution)

    def engine(self, work: Choosable) -> int | None:
        """Return which of cuDNN's engines computes something; None where cuBLAS does."""
        usual = BY_CUDNN if isinstance(work, StaticConvolution) else BY_CUBLAS
        way = self._chosen.get(work, usual)
        return way.engine if way.library == BY_CUDNN.library else None

    def takes(self, product: Product) -> bool:
        """Say whether cuBLAS has not refused a product, with all that is added to it."""
        return product not in self._refused

    def _library(self, node: Node, call: Call) -> str | None:
        """Say which library computes a node, or may; None where that is none, or not known yet."""
        outputs = infer_node(node, call)
        if not all(spec.is_static for spec in (*call.inputs, *outputs) if spec is not None):
            return None
        found = self.work(node, call, outputs)
        if found is None or isinstance(found, Product):
            return None if found is None else "cuBLAS computes it"
        library = "cuDNN" if isinstance(found, StaticConvolution) else "cuBLAS"
        return f"{library} computes it, unless something else is faster"

    def _by_products(self, node: Node, call: Call, outputs: Specs) -> ByProducts | None:
        if not self.multiplies:
            return None
        attention = attention_of(node, call, outputs, tf32=self._tf32)
        return attention or byte_product_of(node, call, outputs)

    def _convolution(self, node: Node, call: Call, outputs: Specs) -> StaticConvolution | None:
        return convolution_of(node, call, outputs, tf32=self._tf32) if self.convolves else None

    def _product(self, node: Node, call: Call, outputs: Specs) -> Product | None:
        product = product_of(node, call, outputs) if self.multiplies else None
        return None if product is None or product.bare in self._refused else product


class _Assembly:
    """The parts of a subgraph, as they are put together."""

    def __init__(self, lowering: Lowering, graph: Graph, views: Mapping[str, View]) -> None:
        self._lowering = lowering
        self._graph = graph
        self._views = views
        self._items = fused(
            *(graph, views),
            epilogues=self._takes_epilogue,
            begun=self._rest,
            launching=self._finish,
        )
        pieces = [item for item in self._items if isinstance(item, Piece)]
        self._gone_on_with = {node.name for piece in pieces for node in piece.nodes[:-1]}

    def parts(self) -> Iterator[Part]:
        """Yield the parts in order."""
        is_done = False
        for item, following in zip_longest(self._items, self._items[1:]):
            if is_done:  # with the one before
                is_done = False
                continue
            node = item if isinstance(item, Node) else item.nodes[-1]
            behind = following.nodes if isinstance(following, Piece) else ()
            others = [each for each in behind if each is not node]
            joined = self._joined(node, others) if others else None
            is_done = joined is not None
            if joined is None and node.name not in self._gone_on_with:
                joined = self._joined(node, ())
            yield joined or self._part(item)

    def _work(self, node: Node) -> Product | Choosable | None:
        return self._lowering.work(node, *self._asked(node))

    def _takes_epilogue(self, node: Node) -> bool:
        found = self._work(node)
        return found is None or (isinstance(found, ByteProduct) and not found.is_final)

    def _rest(self, node: Node) -> Member | None:
        found = self._work(node)
        if isinstance(found, Product | StaticConvolution):
            return _added(self._graph, node, found)
        return None

    def _finish(self, node: Node, chain: Chain | None = None) -> tuple[Launch, ...] | None:
        """Return what goes on with the sums of bytes; None where a node is something else."""
        found, (call, outputs) = self._work(node), self._asked(node)
        if not isinstance(found, ByteProduct):
            return None
        return found.finish(node, call, outputs, self._scratch_from(node), chain)

    def _part(self, item: Piece | Node) -> Part:
        nodes, queued = item if isinstance(item, Piece) else ((item,), None)
        sums = self._sums(nodes)
        if sums is not None:
            behind = queued if len(nodes) > 1 else self._finish(nodes[0])
            return Part(nodes, (*sums, *(behind or ())))
        node, found = nodes[-1], self._work(nodes[-1])
        if found is None:
            return Part(nodes, None if queued is None else tuple(map(_in_place, queued)))
        is_begun, scratch = node.name in self._gone_on_with, self._scratch_from(node)
        if isinstance(found, Product):
            return Part(nodes, _multiply(node, found.bare if is_begun else found, scratch))
        engine = self._lowering.engine(found)
        if engine is None:
            assert isinstance(found, StaticAttention), "no other library convolves"
            return Part(nodes, tuple(_attend(node, self._graph.call(node), found, scratch)))
        workspace, y = scratch_name(node, scratch), node.outputs[0]
        if isinstance(found, StaticAttention):
            tensors = (*filter(None, node.inputs), y)
            return Part(nodes, (Execute(found, engine, tensors, workspace),))
        assert isinstance(found, StaticConvolution)
        # The bias is added by the kernel behind it.
        call = Execute(found, engine, (*node.inputs[:2], y), workspace)
        added = None if is_begun else _added(self._graph, node, found)
        return Part(nodes, (call,) if added is None else (call, _alone(added)))

    def _sums(self, nodes: Sequence[Node]) -> tuple[Queued, ...] | None:
        """Return what multiplies bytes for one of the nodes; None where none does."""
        for node in nodes:
            found, first = self._work(node), self._scratch_from(node)
            if isinstance(found, ByteProduct):
                return tuple(found.multiply(node, first))
        return None

    def _joined(self, node: Node, behind: Sequence[Node]) -> Part | None:
        """Return a product with what cuBLAS computes of the nodes behind it, if that is all."""
        product = self._work(node)
        if not isinstance(product, Product):
            return None
        found = biased(self._graph, node, product, behind)
        if found is None or not self._lowering.takes(found.product):
            return None
        (call,) = _multiply(node, found.product, self._scratch_from(node))
        assert isinstance(call, Multiply)
        # The last node's results are written sooner than planned.
        if meets(found.y, (call.a, call.b, found.bias, call.workspace), self._views):
            return None
        return Part(found.nodes, (call._replace(y=found.y, bias=found.bias),))

    def _scratch_from(self, node: Node) -> int:
        """Return how many scratch buffers of a node come before those of libraries."""
        return len(self._lowering.own_scratch(node, *self._asked(node)))

    def _asked(self, node: Node) -> tuple[Call, Specs]:
        return self._graph.call(node), self._graph.output_specs(node)


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
    a, b = (node.inputs[factor.operand] for factor in (product.a, product.b))
    before = () if product.fill is None else launches(node, Code((product.fill,)))
    workspace = scratch_name(node, scratch)
    return (*before, Multiply(product, a, b, node.outputs[0], workspace))


def _attend(
    node: Node, call: Call, attention: StaticAttention, scratch: int
) -> Iterator[Multiply | Launch]:
    """Yield what is queued for attention: the scores of some heads, their weights, the results."""
    q, k, v = node.inputs[:3]
    buffers = range(scratch, scratch + len(attention.scratch))
    workspace, scores, *apart = (scratch_name(node, number) for number in buffers)
    (weights,) = apart or (scores,)
    heads, by_keys, by_values = attention.at_once, attention.scores, attention.values
    for _, some in groupby(attention.blocks(), lambda block: block.head // heads):
        blocks = list(some)
        for block in blocks:
            starts = block.q, block.k, block.scores
            yield Multiply(by_keys, q, k, scores, workspace, starts=starts)
        first = blocks[0].head
        kernel = attention_weights(call, attention.shape, attention.row, first, heads)
        yield from launches(node, Code((kernel,)), {"scores": scores, "weights": weights})
        for block in blocks:
            starts = block.weights, block.v, block.y
            yield Multiply(by_values, weights, v, node.outputs[0], workspace, starts=starts)
