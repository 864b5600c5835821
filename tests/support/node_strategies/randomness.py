"""Keys, sequences and shapes of Philox."""

from __future__ import annotations

import numpy as np

from .drawing import Draw, NodeCase, Strategy, choose, flag, integer

_DRAWN = (
    ("integer", "uint64"),
    *((distribution, dtype) for distribution in ("uniform", "normal") for dtype in ("32", "64")),
)


def philox(draw: Draw) -> NodeCase:
    distribution, dtype = choose(draw, _DRAWN)
    key = np.array([integer(draw, 0, 2**64 - 1), integer(draw, 0, 2**64 - 1)], np.uint64)
    shape = np.array([integer(draw, 0, 9) for _ in range(integer(draw, 0, 3))], np.int64)
    given = {
        "distribution": distribution,
        "dtype": dtype if distribution == "integer" else f"float{dtype}",
        "sequence": integer(draw, 0, 2**63 - 1),
        "seeded": flag(draw),
    }
    return NodeCase([key, shape], given, constant={1})


STRATEGIES: dict[str, Strategy] = {"Philox": philox}
