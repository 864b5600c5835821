"""Graphs and feeds that make no sense: a plan all the same, or one of plait's errors, at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.devices.cpu import CpuDevice
from plait.graph.core.aliasing import find_joins, find_views
from plait.graph.core.infer import get_cost
from plait.graph.core.ir import Node
from plait.graph.core.operator import Call, Specs, define
from plait.graph.values.tensor import TensorSpec
from plait.scheduler.shapes.sync_points import make_bounded_form

Build = Callable[[pl.GraphBuilder], str]

IMAGE = np.ones((1, 1, 4, 4), np.float32)


def graph(build: Build) -> pl.Graph:
    b = pl.GraphBuilder("odd")
    b.output("y", build(b))
    return b.build()


def resized(rank: int | None, **attributes: Any) -> Build:
    """Return a Resize whose sizes are fed, as a list or as what no list is."""

    def build(b: pl.GraphBuilder) -> str:
        x = b.input("x", "float32", IMAGE.shape)
        shape: Any = None if rank is None else (4,) * rank
        sizes = b.input("s", "int64", shape)
        return str(b.op("Resize", x, None, None, sizes, **attributes))

    return build


# Too large for any machine

HUGE: dict[str, Build] = {
    "bytes beyond int64": lambda b: b.op("Selu", b.input("x", "float32", (2**61,))),
    "elements beyond int64": lambda b: b.op("Shape", b.input("x", "float32", (3, 4, 2**62))),
    "nothing, of lengths beyond int64": lambda b: b.op(
        "Neg", b.input("x", "float32", (0, 2**62, 2**62))
    ),
    "a chain of steps": lambda b: b.op("Exp", b.op("Neg", b.input("x", "float32", (10**12, 20)))),
    "a range": lambda b: b.op(
        "Cos", b.op("Range", np.float32(0), np.float32(2**40), np.float32(1))
    ),
    "a resized image": lambda b: b.op(
        "Resize", b.input("x", "float32", (1, 1, 2, 2)), None, None, np.array([1, 1, 2, 2**40])
    ),
}


@pytest.mark.parametrize("build", HUGE.values(), ids=HUGE)
def test_what_no_machine_has_memory_for_is_refused(build: Build) -> None:
    with pytest.raises(pl.DoesNotFitError) as caught:
        pl.plan(graph(build))
    assert caught.value.fix


def test_a_resized_image_of_a_size_that_is_fed_fits_or_is_refused() -> None:
    feeds = {"x": IMAGE, "s": np.array([1, 1, 2, 2**62])}
    with pytest.raises(pl.DoesNotFitError, match="alone takes"):
        pl.run(graph(resized(1)), feeds, devices=["cpu"])


def test_more_dimensions_than_arrays_have_are_refused_where_they_arise() -> None:
    with pytest.raises(pl.ShapeError, match="cannot have 71 dimensions"):
        graph(lambda b: b.op("Unsqueeze", b.input("x", "float32", (2,)), np.arange(1, 71)))


@pytest.mark.parametrize("op", ["Reshape", "Expand"])
def test_a_list_of_millions_of_lengths_is_refused_before_it_is_a_shape(op: str) -> None:
    def build(b: pl.GraphBuilder) -> str:
        return str(b.op(op, b.input("x", "float32", (2,)), b.input("s", "int64", (2**40,))))

    with pytest.raises(pl.ShapeError, match="cannot have 1099511627776 dimensions"):
        graph(build)


# Numbers that no rule expects


@pytest.mark.parametrize("rank", [0, 2])
def test_sizes_that_are_no_list_are_refused_though_they_are_fed(rank: int) -> None:
    with pytest.raises(pl.ShapeError, match="a list of 4 is needed"):
        graph(resized(rank))


@pytest.mark.parametrize("shape", [(), (4, 4)])
def test_sizes_of_any_rank_are_refused_when_they_are_fed(shape: tuple[int, ...]) -> None:
    feeds = {"x": IMAGE, "s": np.ones(shape, np.int64)}
    with pytest.raises(pl.ShapeError, match="a list of 4 is needed"):
        pl.run(graph(resized(None)), feeds, devices=["cpu"])


@pytest.mark.parametrize("device", ["cpu", "formal"])
def test_an_image_may_be_resized_to_nothing(device: str) -> None:
    feeds = {"x": IMAGE, "s": np.array([1, 1, 0, 3])}
    build = resized(1, mode="linear", antialias=True)
    assert pl.run(graph(build), feeds, devices=[device])["y"].shape == (1, 1, 0, 3)


def test_columns_of_no_block_are_refused() -> None:
    def build(b: pl.GraphBuilder) -> str:
        x, image = b.input("x", "float32", (1, 9, 4)), b.input("i", "int64", (2,))
        return str(b.op("Col2Im", x, image, b.input("k", "int64", (2,))))

    feeds = {"x": np.ones((1, 9, 4), np.float32), "i": np.array([4, 4]), "k": np.array([0, 3])}
    with pytest.raises(pl.ShapeError, match="no cells"):
        pl.run(graph(build), feeds, devices=["cpu"])


def test_a_convolution_without_window_is_refused() -> None:
    with pytest.raises(pl.ShapeError, match=r"a window of \[0, 3\] has no cells"):
        graph(lambda b: b.op("Conv", b.constant(IMAGE), np.ones((1, 1, 0, 3), np.float32)))


def test_regions_of_no_images_say_that_there_is_none() -> None:
    def build(b: pl.GraphBuilder) -> str:
        x, rois = b.input("x", "float32", (0, 1, 9, 9)), b.input("r", "float32", ("n", 4))
        return str(b.op("RoiAlign", x, rois, b.input("i", "int64", ("n",))))

    def feeds(n: int) -> dict[str, Any]:
        x, rois = np.ones((0, 1, 9, 9), np.float32), np.ones((n, 4), np.float32)
        return {"x": x, "r": rois, "i": np.zeros(n, np.int64)}

    assert pl.run(graph(build), feeds(0), devices=["cpu"])["y"].shape == (0, 1, 1, 1)
    with pytest.raises(pl.KernelError, match=r"are not in \[0, 0\)"):
        pl.run(graph(build), feeds(3), devices=["cpu"])


def test_a_dropout_with_a_mode_of_no_elements_is_refused() -> None:
    ratio, mode = np.float32(0.5), np.zeros(0, bool)
    with pytest.raises(pl.ShapeError, match="must be one number"):
        graph(lambda b: b.op("Dropout", b.input("x", "float32", (3,)), ratio, mode))


def test_a_graph_of_constants_alone_is_planned_for_throughput() -> None:
    built = graph(lambda b: b.op("Neg", b.constant(np.ones(3, np.float32))))
    plan = pl.plan(built, ["cpu", "formal"], objective="throughput")
    with pl.BlockingSession(plan) as session:
        np.testing.assert_array_equal(session.run({})["y"], -np.ones(3))


# Rules that fail

ASKED: dict[str, Callable[[pl.Graph, Node], object]] = {
    "cost": get_cost,
    "parts": find_views,
    "joins": find_joins,
    "bound": make_bounded_form,
}


@pytest.mark.usefixtures("forget_operators")
@pytest.mark.parametrize("rule", ASKED)
def test_a_rule_that_fails_names_its_node(rule: str) -> None:
    def fail(call: Call, *outputs: Any) -> Any:
        return [][len(call.inputs)]

    rules: Any = {rule: fail}

    @define("test.Odd", inputs="x", **rules)
    def infer(call: Call) -> tuple[TensorSpec, ...]:
        return (call.spec(0),)

    built = graph(lambda b: b.op("test.Odd", b.input("x", "float32", (2,)), name="culprit"))
    with pytest.raises(pl.ShapeError, match=r"test\.Odd cannot be understood: Index") as caught:
        ASKED[rule](built, built.nodes[0])
    assert "'culprit'" in str(caught.value.at)
    assert isinstance(caught.value.__cause__, IndexError)


@pytest.mark.usefixtures("forget_operators")
def test_a_rule_that_exits_names_its_node_and_ctrl_c_passes() -> None:
    raised: list[BaseException] = [SystemExit(3), KeyboardInterrupt()]

    @define("test.Leaving", inputs="x")
    def infer(call: Call) -> tuple[TensorSpec, ...]:
        raise raised.pop(0)

    def build(b: pl.GraphBuilder) -> str:
        return str(b.op("test.Leaving", b.input("x", "float32", (2,)), name="culprit"))

    with pytest.raises(pl.ShapeError, match=r"cannot be understood: SystemExit: 3") as caught:
        graph(build)
    assert "'culprit'" in str(caught.value.at)
    with pytest.raises(KeyboardInterrupt):
        graph(build)


def test_a_kernel_that_fails_when_it_is_asked_names_its_node() -> None:
    class Odd(CpuDevice):
        def scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
            return (call.spec(7),)

    built = graph(lambda b: b.op("Neg", b.input("x", "float32", (2,)), name="culprit"))
    with pytest.raises(pl.ShapeError, match="Neg cannot be understood: Index") as caught:
        pl.plan(built, [Odd("odd")])
    assert "'culprit'" in str(caught.value.at)
