"""Cases of generated kernels that move elements, or make them from shapes: see `generated_cases`.

Shapes are chosen for the ways in which elements are copied: by element, by wider words, by tiles
that are not full.
"""

from __future__ import annotations

import numpy as np
from generated_cases import Feeds, case, numbers
from generated_network_cases import Nodes
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array


def bits(*shape: int, dtype: str = "int32") -> Array:
    """Return all different numbers."""
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


@case
def transpositions() -> tuple[Graph, Feeds]:
    nodes = Nodes("transpositions")
    nodes.add("Transpose", bits(35, 41))
    nodes.add("Transpose", bits(3, 9, 33, dtype="uint8"), perm=[2, 0, 1])
    nodes.add("Transpose", bits(2, 9, 3, 12, dtype="int64"), perm=[0, 3, 2, 1])
    nodes.add("Transpose", bits(5, 7, 4, dtype="int16"), perm=[1, 0, 2])
    nodes.add("Transpose", numbers(4, 3, 2, dtype="float16"), perm=[2, 1, 0])
    nodes.add("DepthToSpace", numbers(2, 12, 5, 3), blocksize=2)
    nodes.add("DepthToSpace", bits(1, 8, 9, 8, dtype="int8"), blocksize=2, mode="CRD")
    nodes.add("SpaceToDepth", numbers(2, 3, 4, 6), blocksize=2)
    return nodes.build()


@case
def parts_and_repetitions() -> tuple[Graph, Feeds]:
    nodes = Nodes("parts")
    nodes.add("Expand", numbers(3, 1, 4), (2, 3, 5, 4))
    nodes.add("Expand", bits(5, dtype="uint8") > 2, (7, 5))
    nodes.add("Tile", bits(3, 4, dtype="int16"), (2, 3))
    nodes.add("Slice", bits(9, 10), (7, 1), (-10, 9), (0, 1), (-2, 3))
    nodes.add("Slice", bits(6, 16, dtype="uint8"), (8,), (16,), (1,))
    nodes.add("Split", bits(4, 10, dtype="int8"), (2, 8), outputs=2, axis=1)
    nodes.add("Concat", bits(3, 4), bits(3, 7), bits(3, 1), axis=1)
    nodes.add("Concat", bits(3, 4, dtype="uint8"), bits(3, 12, dtype="uint8"), axis=-1)
    return nodes.build()


@case
def borders() -> tuple[Graph, Feeds]:
    nodes = Nodes("borders")
    nodes.add("Pad", numbers(4, 5), (1, -2, 0, 3))
    nodes.add("Pad", numbers(4, 5), (1, 0, 2, 2), np.float32(7.5))
    for mode in ("reflect", "edge", "wrap"):
        nodes.add("Pad", bits(3, 5, dtype="int16"), (7, -1, 2, 9), mode=mode)
    nodes.add("Trilu", bits(2, 4, 6), (1,))
    nodes.add("Trilu", bits(5, 4, dtype="uint8"), np.int64(-1), upper=False)
    return nodes.build()


@case
def indexed_reads() -> tuple[Graph, Feeds]:
    nodes = Nodes("reads")
    nodes.add("Gather", bits(4, 5, 3), np.array([[0, -1], [4, 2]]), axis=1)
    nodes.add("Gather", bits(9, 6, dtype="uint8"), np.array([8, 0, -9], np.int32))
    nodes.add("GatherElements", bits(4, 5), np.array([[0, -4, 3], [1, 2, -1]]))
    nodes.add("GatherND", bits(3, 4, 2), np.array([[0, 1], [-1, -4]]))
    nodes.add("GatherND", bits(3, 4, 8, dtype="uint8"), np.array([[0, 1], [-1, -4]]))
    nodes.add("Gather", bits(3, 4, 5, dtype="int16"), np.array(-1), axis=1)
    nodes.add("GatherND", bits(2, 3, 4), np.array([[[1], [0]], [[-1], [2]]]), batch_dims=1)
    nodes.add("ReverseSequence", bits(5, 3, 2), np.array([5, 1, 3]))
    nodes.add("ReverseSequence", bits(3, 5), np.array([5, 0, 3]), batch_axis=0, time_axis=1)
    nodes.add("OneHot", np.array([[1, -1], [9, 0]]), (4,), np.array([2, 7], np.float32), axis=0)
    return nodes.build()


@case
def indexed_writes() -> tuple[Graph, Feeds]:
    nodes = Nodes("writes")
    index = np.array([[2, -3, 0], [1, 0, -1]])
    nodes.add("ScatterElements", bits(4, 3), index, -bits(2, 3))
    nodes.add(
        "ScatterElements",
        bits(3, 4, dtype="uint8"),
        index[:, :2],
        bits(2, 2, dtype="uint8"),
        axis=1,
    )
    nodes.add("ScatterND", bits(4, 6, dtype="int16"), index[:, :1], -bits(2, 6, dtype="int16"))
    nodes.add("ScatterND", bits(4, 5), np.array([[3], [-3]]), -bits(2, 5))
    nodes.add("ScatterND", bits(4, 5), np.array([[[3, 1]], [[-4, -1]]]), -bits(2, 1))
    cache, update = bits(2, 3, 7, 2), -bits(2, 3, 2, 2)
    nodes.add("TensorScatter", cache, update, np.array([5, 0]))
    nodes.add("TensorScatter", cache, update, np.array([6, 13]), mode="circular")
    nodes.add("TensorScatter", cache, update)
    return nodes.build()


@case
def made_from_shapes() -> tuple[Graph, Feeds]:
    nodes = Nodes("made")
    nodes.add("EyeLike", bits(4, 6), k=-1, dtype="float16")
    nodes.add("ConstantOfShape", (3, 5), value=-2.5)
    nodes.add("Dropout", numbers(3, 4), outputs=2)
    nodes.add("Shape", bits(3, 4, 5), start=1)
    nodes.add("Size", bits(3, 4, 5))
    return nodes.build()


@case
def random_numbers() -> tuple[Graph, Feeds]:
    nodes = Nodes("random")
    key = np.array([2**63 + 5, 2**40 + 3], np.uint64)
    for drawn in ("uniform", "normal"):
        for dtype in ("float32", "float64"):
            nodes.add("Philox", key, (70, 31), distribution=drawn, dtype=dtype, sequence=2**62)
    nodes.add("Philox", key, (5,), distribution="integer", dtype="uint64", seeded=True)
    return nodes.build()


@case
def scans() -> tuple[Graph, Feeds]:
    nodes = Nodes("scans")
    nodes.add("CumSum", numbers(3, 300), (1,))
    nodes.add("CumSum", bits(4, 270, dtype="int16"), (-1,), exclusive=True, reverse=True)
    nodes.add("CumSum", numbers(5, 4, 3, dtype="float16"), (1,), reverse=True)
    nodes.add("CumProd", bits(4, 6, 2), (1,), exclusive=True)
    nodes.add("CumSum", bits(4, 270, 2, dtype="int8"), np.array(-2))
    nodes.add("CumSum", bits(2, 5, dtype="uint64"), np.array([0], np.int32), reverse=True)
    return nodes.build()
