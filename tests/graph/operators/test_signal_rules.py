from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from plait.graph.core.infer import infer_node
from plait.graph.core.ir import Node
from plait.graph.core.operator import Call, find_operator
from plait.graph.values.errors import ShapeError
from plait.graph.values.tensor import Dim, Shape, TensorSpec

COMPUTED = TensorSpec("int64", ())
"""An input whose value is not known before the run."""


def infer(op: str, *inputs: Any, **given: Any) -> Shape | None:
    """Return the output's shape; an input is a shape, a number, a spec or None."""
    attributes = find_operator(op).complete(given, op)
    specs = [_spec(x) for x in inputs]
    values = [np.array(x) if isinstance(x, int | float) else None for x in inputs]
    names = tuple("" if x is None else f"x{i}" for i, x in enumerate(specs))
    node = Node("node", op, names, ("y",), attributes)
    (y,) = infer_node(node, Call(tuple(specs), tuple(values), attributes))
    return y.shape


def _spec(x: Sequence[Dim] | TensorSpec | float | None) -> TensorSpec | None:
    if x is None or isinstance(x, TensorSpec):
        return x
    if isinstance(x, int | float):
        return TensorSpec(np.array(x).dtype, ())
    return TensorSpec("float32", x)


def test_dft_gives_pairs_for_one_or_two_parts() -> None:
    assert infer("DFT", ("n", 6, 1)) == ("n", 6, 2)
    assert infer("DFT", ("n", "t", "c")) == ("n", "t", 2)
    assert infer("DFT", TensorSpec("float32", None)) is None


def test_onesided_keeps_half_of_the_axis_and_its_inverse_gives_it_back() -> None:
    assert infer("DFT", (4, "t", 1), onesided=1) == (4, "(t+2)//2", 2)
    assert infer("DFT", (4, 7, 1), onesided=1) == (4, 4, 2)
    assert infer("DFT", (4, 4, 2), onesided=1, inverse=1) == (4, 6, 1)
    assert infer("DFT", (4, 4, 2), 7, onesided=1, inverse=1) == (4, 7, 1)


def test_a_length_and_an_axis_that_are_computed_leave_lengths_open() -> None:
    assert infer("DFT", (4, 7, 1), COMPUTED) == (4, "y.shape[1]", 2)
    assert infer("DFT", (4, 7, 1), COMPUTED, onesided=1) == (4, "y.shape[1]", 2)
    assert infer("DFT", (4, 7, 1), None, COMPUTED) == ("y.shape[0]", "y.shape[1]", 2)


def test_frames_are_as_long_as_asked_for_or_the_window_or_the_signal() -> None:
    assert infer("STFT", (1, 128, 1), 8, None, 16) == (1, 15, 9, 2)
    assert infer("STFT", (1, 128, 1), 8, (16,)) == (1, 15, 9, 2)
    assert infer("STFT", (1, 128, 1), 8) == (1, 1, 65, 2)
    assert infer("STFT", (1, 128, 2), 8, None, 16, onesided=0) == (1, 15, 16, 2)


def test_frames_of_a_signal_of_any_length_are_counted_with_its_symbol() -> None:
    assert infer("STFT", ("n", "t", 1), 8, None, 16) == ("n", "(t-8)//8", 9, 2)
    assert infer("STFT", ("n", "t", 1), 8, ("w",)) == ("n", "((t-w)+8)//8", "(w+2)//2", 2)
    assert infer("STFT", ("n", "t", 1), COMPUTED, (16,)) == ("n", "y.shape[1]", 9, 2)
    assert infer("STFT", ("n", "t", 1), 2, None, COMPUTED) == ("n", "y.shape[1]", "y.shape[2]", 2)


def test_mel_weights_have_a_row_for_each_frequency() -> None:
    assert infer("MelWeightMatrix", 8, 16, 8192, 0.0, 4096.0) == (9, 8)
    assert infer("MelWeightMatrix", COMPUTED, 16, 8192, 0.0, 1.0) == (9, "y.shape[1]")


REFUSED: dict[str, tuple[str, list[Any], dict[str, Any], str]] = {
    "parts": ("DFT", [(4, 3)], {}, "3 elements, not 1 or 2"),
    "onesided": ("DFT", [(4, 2)], {"onesided": 1}, "2 elements, not 1"),
    "inverse": ("DFT", [(4, 1)], {"onesided": 1, "inverse": 1}, "1 elements, not 2"),
    "axis": ("DFT", [(4, 4, 1), None, -1], {}, "real and imaginary parts"),
    "outside": ("DFT", [(4, 4, 1), None, 3], {}, "outside a tensor of rank 3"),
    "vector": ("DFT", [(2,)], {}, "at least 2 dimensions"),
    "length": ("DFT", [(4, 4, 1), 0], {}, "dft_length is 0"),
    "lengths": ("DFT", [(4, 4, 1), TensorSpec("int64", (2, 2))], {}, "list of integers"),
    "short": ("DFT", [(4, 1, 2)], {"onesided": 1, "inverse": 1}, "too short"),
    "signal": ("STFT", [(4, 4), 1], {}, "the signal must have the shape"),
    "step": ("STFT", [(1, 8, 1), 0, (4,)], {}, "frame_step is 0"),
    "window": ("STFT", [(1, 8, 1), 1, (4,), 5], {}, r"the window must have the shape \[5\]"),
    "frame": ("STFT", [(1, 8, 1), 1, None, 9], {}, "8 samples holds no frame of 9"),
    "complex": ("STFT", [(1, 8, 2), 1, None, 4], {}, "2 elements, not 1"),
    "bins": ("MelWeightMatrix", [0, 16, 8192, 0.0, 1.0], {}, "num_mel_bins is 0"),
    "edges": ("MelWeightMatrix", [8, 16, 8192, 0, 1.0], {}, "lower_edge_hertz is"),
}


@pytest.mark.parametrize(("op", "inputs", "given", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(
    op: str, inputs: list[Any], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        infer(op, *inputs, **given)
