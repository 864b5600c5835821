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
    with pytest.raises(
        pl.ParseError, match="a Sequential is not a model until it is exported"
    ) as e:
        pl.load(network())
    assert "torch.export.export" in str(e.value.fix)


class Encoder(torch.nn.Module):  # type: ignore[misc]
    """A small transformer over words, some of which are padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 8)
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, words: Any, is_padding: Any) -> Any:
        return self.layers(self.embedding(words), src_key_padding_mask=is_padding)


def test_a_transformer_takes_any_number_of_sentences_of_any_length() -> None:
    torch.manual_seed(0)
    module = Encoder().eval()
    count, length = torch.export.Dim("count", min=1, max=16), torch.export.Dim("length", max=64)
    axes = {0: count, 1: length}
    words = torch.zeros(3, 7, dtype=torch.int64)
    exported = torch.export.export(module, (words, words > 0), dynamic_shapes=(axes, axes))
    graph = pl.load(exported)
    shapes = [(1, 4), (5, 4), (2, 9)]
    items = [(torch.randint(11, shape), torch.zeros(shape, dtype=torch.bool)) for shape in shapes]
    items[2][1][:, 6:] = True
    with pl.BlockingSession(pl.plan(graph, ["cpu", "ort"], max_in_flight=2)) as session:
        source = (dict(zip(graph.inputs, item, strict=True)) for item in items)
        found = [item[graph.outputs[0]].copy() for item in session.stream(source)]
    for item, y in zip(items, found, strict=True):
        with torch.no_grad():
            expected = module(*item).numpy()
        kept = ~item[1].numpy()
        np.testing.assert_allclose(y[kept], expected[kept], rtol=1e-4, atol=1e-5)


class Branches(torch.nn.Module):  # type: ignore[misc]
    """Control flow that follows values."""

    def forward(self, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))


@pytest.mark.parametrize("devices", [["cpu"], ["ort"]])
def test_branches_follow_values(devices: list[str]) -> None:
    graph = pl.load(torch.export.export(Branches().eval(), (torch.ones(3),)))
    for values, expected in (([1, 2, 3], [2, 4, 6]), ([-1, 0, -3], [-2, -1, -4])):
        fed = torch.tensor(values, dtype=torch.float32)
        found = pl.run(graph, {graph.inputs[0]: fed}, devices=devices)[graph.outputs[0]]
        assert found.tolist() == expected
