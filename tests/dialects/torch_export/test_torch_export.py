"""Programs that torch.export made, read by way of PyTorch's own exporter."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("onnxscript")


def network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1),
        torch.nn.SiLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(4, 5),
    ).eval()


def test_an_exported_program_computes_what_its_module_does_at_any_length() -> None:
    module = network()
    count = torch.export.Dim("count", min=1, max=64)
    exported = torch.export.export(module, (torch.zeros(2, 3, 8, 8),), dynamic_shapes=({0: count},))
    graph = pl.load(exported)
    (name,), (output,) = graph.inputs, graph.outputs
    for length in (1, 5):
        images = torch.randn(length, 3, 8, 8)
        with torch.no_grad():
            expected = module(images).numpy()
        found = pl.run(graph, {name: images})[output]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_a_module_is_to_be_exported_first() -> None:
    with pytest.raises(pl.ParseError, match="a Sequential is no model until it is exported") as e:
        pl.load(network())
    assert "torch.export.export" in str(e.value.fix)
