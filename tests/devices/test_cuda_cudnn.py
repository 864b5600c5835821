"""Convolutions through cuDNN, against the `cpu` device; the library checks what it is given."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fake_cudnn
import numpy as np
import plait as pl
import pytest
import trio
from cupy_double import CupyDouble
from fake_cudnn import FakeCudnn
from fake_gpu import SEEDS
from plait.devices import cache_folder
from plait.devices.cuda import choosing
from plait.devices.cuda import device as cuda_device
from plait.devices.cuda.convolutions import StaticConvolution, match_convolution
from plait.devices.cuda.libraries import RefusedError
from plait.devices.cuda.lowering import Lowering
from plait.devices.cuda.parts import Execute, Multiply, Part, fits_in_queue
from plait.devices.cuda.trials import TrialRun
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array

from .rig import Rig
from .test_cuda_cublas import brief, graph_of, half, numbers

Make = Callable[[pl.GraphBuilder, str], str]


def conv(*weights: Array, **attributes: Any) -> Make:
    """Return what makes a convolution by weights, and a bias if there is one."""
    return lambda b, x: b.op("Conv", x, *weights, **attributes)


IMAGE = half(2, 4, 7, 6)
CONVOLUTIONS: dict[str, tuple[Array, Make]] = {
    "halves": (IMAGE, conv(half(5, 4, 3, 3))),
    "bfloat16": (brief(2, 4, 7, 6), conv(brief(5, 4, 3, 3))),
    "padded": (IMAGE, conv(half(5, 4, 3, 3), pads=[1] * 4)),
    "padded at one end": (IMAGE, conv(half(5, 4, 3, 3), pads=[1, 0, 0, 2])),
    "padded to the same": (IMAGE, conv(half(5, 4, 3, 3), auto_pad="SAME_LOWER")),
    "strided": (IMAGE, conv(half(5, 4, 3, 2), strides=[2, 3], pads=[1, 0, 1, 0])),
    "dilated": (IMAGE, conv(half(5, 4, 3, 2), dilations=[2, 1])),
    "grouped": (IMAGE, conv(half(6, 2, 3, 3), group=2)),
    "with a bias": (IMAGE, conv(half(5, 4, 3, 3), half(5))),
    "lines": (half(2, 3, 9), conv(half(4, 3, 4), half(4), pads=[2, 2], strides=[2])),
    "solids": (half(1, 2, 5, 4, 3), conv(half(3, 2, 2, 2, 2), pads=[1] * 6)),
}

LOPSIDED = "padded at one end"
"""The one that cuDNN does not take."""


def with_cudnn(double: CupyDouble, library: FakeCudnn, **options: Any) -> Any:
    return double.generating(cudnn=lambda: library, **options)


def computed(graph: Graph, x: Array, device: Any = None) -> Array:
    with Rig(device or pl.devices.find("cpu"), graph) as rig:
        return rig.run({"x": x})["y"]


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nothing measured."""
    monkeypatch.setenv("PLAIT_FIGURES", "off")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return where choices are kept, and have them made."""
    monkeypatch.delenv("PLAIT_FIGURES", raising=False)
    monkeypatch.setenv("PLAIT_KERNEL_CACHE", str(tmp_path))
    monkeypatch.setattr(choosing, "WORTH_MEASURING", 0)
    return tmp_path


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_is_right(double: CupyDouble, name: str) -> None:
    x, make = CONVOLUTIONS[name]
    graph, library = graph_of(x, make), FakeCudnn(double.gpu)
    found = computed(graph, x, with_cudnn(double, library))
    np.testing.assert_array_equal(found, computed(graph, x))
    assert (library.calls > 0) == (name != LOPSIDED)
    assert library.open == 0


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_measured_convolution_is_right(double: CupyDouble, name: str) -> None:
    x, make = CONVOLUTIONS[name]
    graph = graph_of(x, make)
    found = computed(graph, x, with_cudnn(double, FakeCudnn(double.gpu)))
    np.testing.assert_array_equal(found, computed(graph, x))


@pytest.mark.usefixtures("folder")
def test_where_nothing_computes_it_while_it_is_measured_a_kernel_is_generated(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch, {})
    library = FakeCudnn(double.gpu)
    computed(graph_of(IMAGE, conv(half(5, 4, 3, 3))), IMAGE, with_cudnn(double, library))
    assert library.calls == 0


@pytest.mark.usefixtures("unmeasured")
def test_what_follows_a_convolution_is_one_kernel_behind_it(double: CupyDouble) -> None:
    library = FakeCudnn(double.gpu)
    made = conv(half(4, 4, 3, 3), half(4), pads=[1] * 4)
    graph = graph_of(IMAGE, lambda b, x: b.op("Relu", b.op("Add", made(b, x), x)))
    with Rig(with_cudnn(double, library, graphs=False), graph) as rig:
        before = double.cuda.driver.launches, library.calls
        found = rig.run({"x": IMAGE})["y"]
        assert double.cuda.driver.launches - before[0] == 1
        assert library.calls - before[1] == 1
    np.testing.assert_array_equal(found, computed(graph, IMAGE))


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(
    ("x", "make", "engines"),
    [
        (IMAGE, conv(half(5, 4, 3, 3)), {11}),
        (IMAGE, conv(half(5, 4, 1, 1)), set()),  # cuBLAS's
        (IMAGE, conv(half(4, 1, 3, 3), group=4), set()),
        (numbers(2, 4, 7, 6), conv(numbers(5, 4, 3, 3)), set()),
        (numbers(2, 4, 7, 6, dtype="float64"), conv(numbers(5, 4, 3, 3, dtype="float64")), set()),
    ],
)
def test_without_measuring_cudnn_has_what_tensor_cores_are_good_at(
    double: CupyDouble, x: Array, make: Make, engines: set[int]
) -> None:
    library = FakeCudnn(double.gpu)
    computed(graph_of(x, make), x, with_cudnn(double, library))
    assert {engine for engine, _ in library.computed} == engines


@pytest.mark.usefixtures("unmeasured")
def test_tensor_cores_convolve_float32_when_that_is_asked_for(double: CupyDouble) -> None:
    library, x = FakeCudnn(double.gpu), numbers(2, 4, 7, 6)
    computed(graph_of(x, conv(numbers(5, 4, 3, 3))), x, with_cudnn(double, library, tf32=True))
    assert set(library.computed) == {(11, "float32")}


def told(monkeypatch: pytest.MonkeyPatch, times: Mapping[str, float]) -> list[str]:
    """Have ways of computing take so long; return those that are asked about, as they are."""
    asked: list[str] = []

    def time(self: TrialRun, parts: Sequence[Part]) -> float:
        asked.append(way_of(parts))
        if asked[-1] not in times:
            raise RefusedError("for this test")
        return times[asked[-1]]

    monkeypatch.setattr(TrialRun, "time", time)
    return asked


def way_of(parts: Sequence[Part]) -> str:
    """Return what computes a node."""
    (queued,) = (part.queued or () for part in parts)
    if isinstance(queued[0], Execute):
        return f"cudnn {queued[0].engine}"
    return "cublas" if any(isinstance(each, Multiply) for each in queued) else "generated"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("kernels", [{}, {11: 4}, {11: 4, 12: 4, 14: 4}])
def test_what_takes_more_time_is_not_chosen(double: CupyDouble, kernels: dict[int, int]) -> None:
    """On the fake GPU, each kernel takes as long; there is one of ours."""
    library = FakeCudnn(double.gpu, kernels)
    graph = graph_of(IMAGE, conv(half(5, 4, 3, 3)))
    with Rig(with_cudnn(double, library), graph) as rig:
        assert {engine for engine, _ in library.computed} == {11, 12, 14}  # timed
        library.computed.clear()
        rig.device.compile(graph, rig.views)
        assert library.computed == []
        rig.run({"x": IMAGE})


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("times", "engine"),
    [
        ({"generated": 2.0, "cudnn 0": 1.0, "cudnn 1": 1.5}, 11),
        ({"generated": 2.0, "cudnn 1": 1.5}, 12),
        ({"cudnn 2": 1.5}, 14),
        ({"generated": 1.0, "cudnn 0": 1.1}, None),
        ({"generated": 1.0}, None),
    ],
)
def test_the_fastest_computes(
    double: CupyDouble,
    monkeypatch: pytest.MonkeyPatch,
    times: dict[str, float],
    engine: int | None,
) -> None:
    library, asked = FakeCudnn(double.gpu), told(monkeypatch, times)
    graph = graph_of(IMAGE, conv(half(5, 4, 3, 3), half(5)))
    found = computed(graph, IMAGE, with_cudnn(double, library))
    np.testing.assert_array_equal(found, computed(graph, IMAGE))
    assert asked == ["generated", "cudnn 0", "cudnn 1", "cudnn 2"]
    assert {number for number, _ in library.computed} == ({engine} if engine else set())


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("size", "way"), [(3, "generated"), (1, "cublas")])
def test_small_ones_are_not_measured(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch, size: int, way: str
) -> None:
    """To load what cuDNN has for a shape takes longer than they do in thousands of items."""
    graph = graph_of(IMAGE, conv(half(5, 4, size, size)))
    (node,) = graph.nodes
    found = match_convolution(node, graph.call(node), graph.output_specs(node), tf32=False)
    assert found is not None
    sums = np.ones((2, 5, 8 - size, 7 - size)).size * 4 * size**2
    assert found.operations == 2 * sums
    monkeypatch.setattr(choosing, "WORTH_MEASURING", 2 * sums + 1)
    library, asked = FakeCudnn(double.gpu), told(monkeypatch, {"cudnn 0": 1.0})
    y = computed(graph, IMAGE, with_cudnn(double, library))
    np.testing.assert_array_equal(y, computed(graph, IMAGE))
    assert asked == []
    assert not library.computed
    monkeypatch.setattr(choosing, "WORTH_MEASURING", 2 * sums)
    computed(graph, IMAGE, with_cudnn(double, library))
    assert asked[0] == way


@pytest.mark.usefixtures("folder")
def test_products_are_among_the_choices(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, asked = FakeCudnn(double.gpu), told(monkeypatch, {"cublas": 2.0, "cudnn 0": 1.0})
    computed(graph_of(IMAGE, conv(half(5, 4, 1, 1))), IMAGE, with_cudnn(double, library))
    assert asked[:2] == ["cublas", "generated"]
    assert {number for number, _ in library.computed} == {11}


def test_a_choice_is_kept_for_the_hardware_and_the_versions(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    asked = told(monkeypatch, {"generated": 2.0, "cudnn 1": 1.0})
    graph = graph_of(IMAGE, conv(half(5, 4, 3, 3)))
    for _ in range(2):
        library = FakeCudnn(double.gpu)
        computed(graph, IMAGE, with_cudnn(double, library))
        assert {engine for engine, _ in library.computed} == {12}
    assert len(asked) == 4
    monkeypatch.setattr(fake_cudnn, "_version", lambda: 91901)
    computed(graph, IMAGE, with_cudnn(double, FakeCudnn(double.gpu)))
    assert len(asked) == 8
    monkeypatch.setattr(cuda_device, "hash_sources", lambda *_: "of another commit")
    computed(graph, IMAGE, with_cudnn(double, FakeCudnn(double.gpu)))
    assert len(asked) == 12


def test_the_digest_of_code_is_of_its_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cache_folder, "__file__", str(tmp_path / "cache_folder.py"))
    digests = list[str]()
    for text in ("one", "other", "one"):
        (tmp_path / "cuda").mkdir(exist_ok=True)
        (tmp_path / "cuda" / "kernels.py").write_text(text)
        cache_folder.hash_sources.cache_clear()
        digests.append(cache_folder.hash_sources("cuda"))
    cache_folder.hash_sources.cache_clear()
    assert digests[0] == digests[2] != digests[1]


@pytest.mark.usefixtures("folder")
def test_a_convolution_is_measured_once(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = told(monkeypatch, {"generated": 1.0})
    weights = conv(half(4, 4, 3, 3), pads=[1] * 4)
    graph = graph_of(IMAGE, lambda b, x: weights(b, weights(b, x)))
    computed(graph, IMAGE, with_cudnn(double, FakeCudnn(double.gpu)))
    assert len(asked) == 4


@pytest.mark.usefixtures("unmeasured")
def test_what_cudnn_refuses_is_generated(double: CupyDouble) -> None:
    library = FakeCudnn(double.gpu, refused={11})
    graph = graph_of(IMAGE, conv(half(5, 4, 3, 3), half(5)))
    found = computed(graph, IMAGE, with_cudnn(double, library))
    np.testing.assert_array_equal(found, computed(graph, IMAGE))
    assert library.calls == 0


@pytest.mark.usefixtures("unmeasured")
def test_what_needs_a_larger_workspace_is_generated(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_cudnn, "WORKSPACE", 1 << 30)
    library = FakeCudnn(double.gpu)
    computed(graph_of(IMAGE, conv(half(5, 4, 3, 3))), IMAGE, with_cudnn(double, library))
    assert library.calls == 0


@pytest.mark.usefixtures("unmeasured")
def test_what_is_slow_but_there_is_taken_where_the_best_guess_finds_nothing(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_cudnn, "ENGINES", {10: (1,)})
    library = FakeCudnn(double.gpu)
    computed(graph_of(IMAGE, conv(half(5, 4, 3, 3))), IMAGE, with_cudnn(double, library))
    assert {engine for engine, _ in library.computed} == {20}


def test_the_workspace_is_planned_with_room_for_all_tensors(double: CupyDouble) -> None:
    graph = graph_of(IMAGE, conv(half(5, 4, 3, 3)))
    (node,), device = graph.nodes, with_cudnn(double, FakeCudnn(double.gpu))
    (scratch,) = device.scratch(node, graph.call(node), graph.output_specs(node))
    cells = 2 * 8 * 7 * 6 + 5 * 8 * 3 * 3 + 2 * 8 * 5 * 4  # channels are a multiple of 8
    assert scratch.nbytes == 2 * cells + (1 << 20)


@pytest.mark.usefixtures("folder")
def test_nothing_is_left_behind(double: CupyDouble) -> None:
    library = FakeCudnn(double.gpu)
    computed(graph_of(IMAGE, conv(half(5, 4, 3, 3))), IMAGE, with_cudnn(double, library))
    gc.collect()
    assert (library.open, library.descriptors) == (0, 0)


def test_a_device_without_convolutions_makes_no_handle(double: CupyDouble) -> None:
    library, x = FakeCudnn(double.gpu), numbers(4)
    graph = graph_of(x, lambda b, name: b.op("Relu", name))
    with Rig(with_cudnn(double, library), graph) as rig:
        rig.run({"x": x})
        assert (library.open, library.descriptors) == (0, 0)


@pytest.mark.parametrize(("count", "fits"), [(70, True), (90, False)])
def test_calls_of_libraries_are_several_kernels_in_a_stream_that_is_held_up(
    count: int, fits: bool
) -> None:
    graph = graph_of(IMAGE, conv(half(5, 4, 3, 3)))
    (node,) = graph.nodes
    lowering = Lowering(generates=True, multiplies=True, convolves=True)
    found = lowering.undecided(node, graph.call(node), graph.output_specs(node))
    assert isinstance(found, StaticConvolution)
    part = Part((node,), (Execute(found, 0, ("x", "w", "y"), "workspace"),))
    assert fits_in_queue([part] * count) is fits


def test_the_device_names_cudnn_and_its_version(double: CupyDouble) -> None:
    device = with_cudnn(double, FakeCudnn(double.gpu))
    assert device.capabilities.software.endswith("cudnn 9.19.0")


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("seed", SEEDS[:3])
def test_items_in_flight_do_not_meet(seed: int) -> None:
    double = CupyDouble(seed)
    layer = conv(half(4, 4, 3, 3), half(4), pads=[1] * 4)
    graph = graph_of(IMAGE, lambda b, x: b.op("Relu", layer(b, b.op("Relu", layer(b, x)))))
    plan = pl.plan(graph, [with_cudnn(double, FakeCudnn(double.gpu))], max_in_flight=2)
    feeds = [{"x": IMAGE + np.float16(number)} for number in range(4)]
    wanted = [pl.run(graph, fed, devices=["cpu"])["y"] for fed in feeds]

    async def run() -> None:
        async with pl.Session(plan) as session:
            async with session.stream(feeds) as results:
                async for item in results:
                    np.testing.assert_allclose(item["y"], wanted[item.index], rtol=2e-3)

    trio.run(run)
