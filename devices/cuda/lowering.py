"""Lowering of nodes for a CUDA device: to cuBLAS or cuDNN, to generated kernels, or to CuPy's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from itertools import groupby, zip_longest
from typing import NamedTuple, TypeAlias

from ...graph.core.infer import infer_node
from ...graph.core.ir import Graph, Node
from ...graph.core.operator import Call, Specs
from ...graph.values.recent import RecentItems
from ...graph.values.tensor import Array, TensorSpec
from .. import program as programs
from ..codegen import registry as generated
from ..codegen.attention_weights import make_attention_weights
from ..codegen.composition import Chain, compose
from ..codegen.formulas import Member, has_formula
from ..codegen.fusing import LEFT, fuse
from ..codegen.pieces import Launch, Piece, Transfer, list_working_nodes, make_launches
from ..codegen.registry import Code
from ..device import Support, scratch_name
from ..memory import View
from .attention import StaticAttention, match_attention
from .byte_products import ByteProduct, PreparedConstants, match_byte_product
from .convolutions import StaticConvolution, match_convolution
from .parts import Execute, Multiply, Part, Queued
from .products import Product, match_bias, match_product, overlaps
from .support import explain_missing_dtype, explain_refusal

Choosable: TypeAlias = StaticConvolution | StaticAttention | ByteProduct
"""Nodes with several implementations, of which the fastest is chosen."""
ByProducts: TypeAlias = StaticAttention | ByteProduct
"""Nodes that cuBLAS computes with generated kernels around its products."""


class Way(NamedTuple):
    """An implementation of a convolution, an attention, or a product of bytes."""

    library: str
    engine: int = 0
    """Index of cuDNN's engine."""


GENERATED, BY_CUBLAS, BY_CUDNN = map(Way, ("generated", "cublas", "cudnn"))


class Lowering:
    """Chooses implementations; planning and compiling share it, and so agree on scratch buffers.

    With `multiplies` there is cuBLAS, with `convolves` cuDNN.
    """

    def __init__(
        self, *, generates: bool, multiplies: bool, convolves: bool = False, tf32: bool = False
    ) -> None:
        self.generates = generates
        self.multiplies = multiplies and generates
        self.convolves = convolves and generates
        self._tf32 = tf32
        self._refused: RecentItems[Product | Choosable, bool] = RecentItems()
        self._chosen: RecentItems[Choosable, Way] = RecentItems()
        self._tried: dict[Choosable, Way] = {}
        self._prepared = PreparedConstants()

    def refuse(self, item: Multiply | Execute) -> None:
        """Exclude `item`, a library's refused work, from now on."""
        if isinstance(item, Execute):
            self._refused[item.work] = True
            self._chosen[item.work] = BY_CUBLAS  # for attention; `work` replaces convolutions
        else:
            self._refused[item.product if item.product.is_biased else item.product.bare] = True

    def choose(self, found: Choosable, way: Way) -> None:
        self._chosen[found] = way

    def choosing(self, found: Choosable, way: Way) -> Lowering:
        """Return a copy that computes nodes of the form `found` in the given `way`."""
        other = copy(self)
        other._tried = {found: way}
        return other

    def undecided(self, node: Node, call: Call, outputs: Specs) -> Choosable | None:
        """Return the form of `node` if its implementation is still to be chosen, or None.

        `call` and `outputs` are its inputs and outputs.
        """
        found = self._convolution(node, call, outputs) or self._by_products(node, call, outputs)
        is_decided = found is None or found in self._chosen or found in self._refused
        return None if is_decided else found

    def others(self, node: Node, call: Call, outputs: Specs) -> tuple[Way, ...]:
        by_product = self._product(node, call, outputs) or self._by_products(node, call, outputs)
        products = () if by_product is None else (BY_CUBLAS,)
        return products if generated.find_refusal(node, call) else (*products, GENERATED)

    def supports(self, node: Node, call: Call) -> Support:
        """Return whether `node` is supported, and the library; shapes in `call` may be symbolic."""
        has_arrays = explain_missing_dtype(node, call) is None
        if self.generates and has_arrays and generated.find_refusal(node, call) is None:
            return Support(True, self._library(node, call) or "has a generated kernel")
        support = programs.supports(node, "cuda", runs_python=False, call=call)
        reason = explain_refusal(node, call) if support.ok else support.reason
        return Support(reason is None, reason or "CuPy has a kernel")

    def scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        # Those of libraries come last, and stay after a refusal: earlier plans then have room for
        # the replacement, and later plans fit other devices.
        own = self.own_scratch(node, call, outputs)
        product = match_product(node, call, outputs) if self.multiplies else None
        convolution = self._convolution(node, call, outputs)
        if convolution is None:
            library = product or self._by_products(node, call, outputs)
            return own if library is None else (*own, *library.scratch)
        nbytes = [each.workspace_nbytes for each in (product, convolution) if each is not None]
        return (*own, TensorSpec("uint8", (max(nbytes),)))  # for either library

    def parts(self, graph: Graph, views: Mapping[str, View]) -> tuple[Part, ...]:
        if not self.generates:
            return tuple(Part((node,), None) for node in list_working_nodes(graph, views))

        return tuple(_Assembly(self, graph, views).parts())

    def constants(self, graph: Graph) -> dict[str, Array]:
        """Return the constants that the parts of `graph` read, with derived arrays."""
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
        if self.generates and generated.find_refusal(node, call) is None:
            return generated.scratch(node, call, outputs)
        return programs.scratch(node, "cuda", call, outputs)

    def work(self, node: Node, call: Call, outputs: Specs) -> Product | Choosable | None:
        found = self._by_products(node, call, outputs)
        if found is not None:
            way = self._get_way(found) or BY_CUBLAS
            is_refused = way == BY_CUBLAS and any(one in self._refused for one in found.products)
            return None if is_refused or way == GENERATED else found
        product = self._product(node, call, outputs)
        convolution = self._convolution(node, call, outputs)
        if convolution is None or convolution in self._refused:
            return product
        way = self._get_way(convolution) or _choose_default(convolution, product)
        return {GENERATED: None, BY_CUBLAS: product}.get(way, convolution)

    def engine(self, work: Choosable) -> int | None:
        """Return the index of cuDNN's engine for `work`; None if cuBLAS computes it."""
        usual = BY_CUDNN if isinstance(work, StaticConvolution) else BY_CUBLAS
        way = self._get_way(work) or usual
        return way.engine if way.library == BY_CUDNN.library else None

    def _get_way(self, found: Choosable) -> Way | None:
        return self._tried.get(found) or self._chosen.get(found)

    def takes(self, product: Product) -> bool:
        """Return whether cuBLAS has not refused `product`."""
        return product not in self._refused

    def _library(self, node: Node, call: Call) -> str | None:
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
        attention = match_attention(node, call, outputs, tf32=self._tf32)
        return attention or match_byte_product(node, call, outputs)

    def _convolution(self, node: Node, call: Call, outputs: Specs) -> StaticConvolution | None:
        return match_convolution(node, call, outputs, tf32=self._tf32) if self.convolves else None

    def _product(self, node: Node, call: Call, outputs: Specs) -> Product | None:
        product = match_product(node, call, outputs) if self.multiplies else None
        return None if product is None or product.bare in self._refused else product


class _Assembly:
    def __init__(self, lowering: Lowering, graph: Graph, views: Mapping[str, View]) -> None:
        self._lowering = lowering
        self._graph = graph
        self._views = views
        self._items = fuse(
            *(graph, views),
            epilogues=self._takes_epilogue,
            begun=self._match_rest,
            launching=self._finish,
        )
        pieces = [item for item in self._items if isinstance(item, Piece)]
        self._continued = {node.name for piece in pieces for node in piece.nodes[:-1]}

    def parts(self) -> Iterator[Part]:
        is_done = False
        for item, following in zip_longest(self._items, self._items[1:]):
            if is_done:  # with the previous one
                is_done = False
                continue
            node = item if isinstance(item, Node) else item.nodes[-1]
            following_nodes = following.nodes if isinstance(following, Piece) else ()
            others = [each for each in following_nodes if each is not node]
            joined = self._join(node, others) if others else None
            is_done = joined is not None
            if joined is None and node.name not in self._continued:
                joined = self._join(node, ())
            yield joined or self._part(item)

    def _work(self, node: Node) -> Product | Choosable | None:
        return self._lowering.work(node, *self._describe(node))

    def _takes_epilogue(self, node: Node) -> bool:
        found = self._work(node)
        return found is None or (isinstance(found, ByteProduct) and not found.is_final)

    def _match_rest(self, node: Node) -> Member | None:
        found = self._work(node)
        if isinstance(found, Product | StaticConvolution):
            return _match_addition(self._graph, node, found)
        return None

    def _finish(self, node: Node, chain: Chain | None = None) -> tuple[Launch, ...] | None:
        found, (call, outputs) = self._work(node), self._describe(node)
        if not isinstance(found, ByteProduct):
            return None
        return found.finish(node, call, outputs, self._scratch_from(node), chain)

    def _part(self, item: Piece | Node) -> Part:
        nodes, queued = item if isinstance(item, Piece) else ((item,), None)
        sums = self._sums(nodes)
        if sums is not None:
            following_nodes = queued if len(nodes) > 1 else self._finish(nodes[0])
            return Part(nodes, (*sums, *(following_nodes or ())))
        node, found = nodes[-1], self._work(nodes[-1])
        if found is None:
            return Part(nodes, None if queued is None else tuple(map(_read_in_place, queued)))
        is_begun, scratch = node.name in self._continued, self._scratch_from(node)
        if isinstance(found, Product):
            return Part(nodes, _multiply(node, found.bare if is_begun else found, scratch))
        engine = self._lowering.engine(found)
        if engine is None:
            assert isinstance(found, StaticAttention), "no other library convolves"
            return Part(
                nodes, tuple(_queue_attention(node, self._graph.call(node), found, scratch))
            )
        workspace, y = scratch_name(node, scratch), node.outputs[0]
        if isinstance(found, StaticAttention):
            tensors = (*filter(None, node.inputs), y)
            return Part(nodes, (Execute(found, engine, tensors, workspace),))
        assert isinstance(found, StaticConvolution)
        # The next kernel adds the bias.
        call = Execute(found, engine, (*node.inputs[:2], y), workspace)
        added = None if is_begun else _match_addition(self._graph, node, found)
        return Part(nodes, (call,) if added is None else (call, _launch_alone(added)))

    def _sums(self, nodes: Sequence[Node]) -> tuple[Queued, ...] | None:
        for node in nodes:
            found, first = self._work(node), self._scratch_from(node)
            if isinstance(found, ByteProduct):
                return tuple(found.multiply(node, first))
        return None

    def _join(self, node: Node, following_nodes: Sequence[Node]) -> Part | None:
        product = self._work(node)
        if not isinstance(product, Product):
            return None
        found = match_bias(self._graph, node, product, following_nodes)
        if found is None or not self._lowering.takes(found.product):
            return None
        (call,) = _multiply(node, found.product, self._scratch_from(node))
        assert isinstance(call, Multiply)
        # The last node's results are written earlier than planned.
        if overlaps(found.y, (call.a, call.b, found.bias, call.workspace), self._views):
            return None
        return Part(found.nodes, (call._replace(y=found.y, bias=found.bias),))

    def _scratch_from(self, node: Node) -> int:
        """Return the number of scratch buffers of `node` before those of libraries."""
        return len(self._lowering.own_scratch(node, *self._describe(node)))

    def _describe(self, node: Node) -> tuple[Call, Specs]:
        return self._graph.call(node), self._graph.output_specs(node)


def _choose_default(convolution: StaticConvolution, product: Product | None) -> Way:
    if product is not None:
        return BY_CUBLAS
    if convolution.is_by_channel or not convolution.on_tensor_cores:
        return GENERATED
    return BY_CUDNN


def _match_addition(graph: Graph, node: Node, found: Product | StaticConvolution) -> Member | None:
    """Return the bias add of `node` in `graph` as a kernel's epilogue, or None if `found` has none.

    In cuBLAS it would need a kernel that writes the output first, for cuBLAS to read. In cuDNN it
    takes as long as the epilogue, or longer.
    """
    y = graph.tensors[node.outputs[0]]
    shape = _get_bias_shape(node, y) if isinstance(found, StaticConvolution) else found.added
    if shape is None or (isinstance(found, Product) and found.beta != 1):
        return None
    call = Call((y, TensorSpec(graph.tensors[node.inputs[2]].dtype, shape)), (None, None), {})
    inputs = (node.outputs[0] + LEFT, node.inputs[2])
    return Member("Add", call, inputs, node.outputs[0], y) if has_formula("Add", call) else None


def _get_bias_shape(node: Node, y: TensorSpec) -> tuple[int, ...] | None:
    if len(node.inputs) < 3 or not node.inputs[2]:
        return None
    return (y.static_shape[1], *(1 for _ in y.static_shape[2:]))


def _launch_alone(member: Member) -> Launch:
    kernel, tensors = compose([member], [member.output])
    launch = _read_in_place(Launch(kernel, tensors))
    assert isinstance(launch, Launch)
    return launch


def _read_in_place(item: Transfer | Launch) -> Transfer | Launch:
    if isinstance(item, Transfer):
        return item
    return item._replace(buffers=tuple(name.removesuffix(LEFT) for name in item.buffers))


def _multiply(node: Node, product: Product, scratch: int) -> tuple[Queued, ...]:
    a, b = (node.inputs[factor.operand] for factor in (product.a, product.b))
    before = () if product.fill is None else make_launches(node, Code((product.fill,)))
    workspace = scratch_name(node, scratch)
    return (*before, Multiply(product, a, b, node.outputs[0], workspace))


def _queue_attention(
    node: Node, call: Call, attention: StaticAttention, scratch: int
) -> Iterator[Multiply | Launch]:
    """Yield the work of `node`, an `attention`: scores of some heads, their weights, then results.

    `call` has its inputs; scratch buffers begin with number `scratch`.
    """
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
        kernel = make_attention_weights(call, attention.shape, attention.row, first, heads)
        yield from make_launches(node, Code((kernel,)), {"scores": scores, "weights": weights})
        for block in blocks:
            starts = block.weights, block.v, block.y
            yield Multiply(by_values, weights, v, node.outputs[0], workspace, starts=starts)
