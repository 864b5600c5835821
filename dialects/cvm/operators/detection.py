"""Exact operators on boxes: (batch, boxes, numbers), where number 1 of a box is its score."""

from __future__ import annotations

from collections.abc import Sequence

from ....graph.core.attribute import Attribute, Kind
from ....graph.core.operator import Call, Specs
from ....graph.operators.rules import per_input_element
from ....graph.values.errors import ShapeError
from ....graph.values.tensor import Shape
from .rules import INT32_MAX, check_like, declare, get_fixed_shape

BOX_NUMBERS = 6
"""A box of non_max_suppression: class id, score, and the corners x1, y1, x2, y2."""

FIRST_TOO_LARGE = (2**63 - 1) // 100 + 1
"""From here on 100 times an area would not fit, so the union is divided by 100 instead."""

_LAYOUT = "the boxes"


@declare(
    "get_valid_counts",
    outputs="counts y",
    attributes={
        "score_threshold": Attribute(Kind.INT, 0, minimum=-INT32_MAX - 1, maximum=INT32_MAX)
    },
    cost=per_input_element(1),
    batched=True,
)
def infer_get_valid_counts(call: Call) -> Sequence[Shape | None]:
    shape = get_fixed_shape(call, 0, 3, _LAYOUT)
    if not 2 <= shape[2] <= 31:
        raise ShapeError(
            f"a box has {shape[2]} numbers in {list(shape)}", fix="use 2 to 31; 1 is the score"
        )
    return (shape[:1], shape)


def _count_suppression(call: Call, outputs: Specs) -> int:
    batch, boxes, _ = call.spec(0).static_shape
    return 20 * batch * boxes * boxes


@declare(
    "non_max_suppression",
    inputs="boxes counts",
    attributes={
        "iou_threshold": Attribute(Kind.INT, 50, minimum=1, maximum=INT32_MAX),
        "max_output_size": Attribute(Kind.INT, -1, maximum=INT32_MAX),
        "top_k": Attribute(Kind.INT, -1, maximum=INT32_MAX),
        "force_suppress": Attribute(Kind.BOOL, False),
        "coord_start": Attribute(Kind.INT, 2, choices=(2,)),
        "score_index": Attribute(Kind.INT, 1, choices=(1,)),
        "id_index": Attribute(Kind.INT, 0, choices=(0,)),
        "return_indices": Attribute(Kind.BOOL, False, choices=(False,)),
        "invalid_to_bottom": Attribute(Kind.BOOL, True, choices=(True,)),
    },
    cost=_count_suppression,
)
def infer_non_max_suppression(call: Call) -> Sequence[Shape | None]:
    shape = get_fixed_shape(call, 0, 3, _LAYOUT)
    if shape[2] != BOX_NUMBERS:
        raise ShapeError(
            f"a box has {shape[2]} numbers in {list(shape)}, {BOX_NUMBERS} are needed",
            fix="pass class id, score, x1, y1, x2, y2",
        )
    check_like(call, 1, shape[:1], "the counts")
    return (shape,)
