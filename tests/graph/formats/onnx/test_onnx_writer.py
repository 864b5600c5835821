from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import plait as pl
import pytest
from onnx import TensorProto, helper
from onnx_models import by_runtime
from onnx_suite import suite
from plait.graph.core.attribute import REQUIRED, Attribute, Kind
from plait.graph.core.ir import Graph
from plait.graph.core.operator import Call, define, find_operator, list_operators
from plait.graph.core.traits import RUNTIME
from plait.graph.formats.onnx import read_model
from plait.graph.formats.onnx import writer as onnx_writer
from plait.graph.formats.onnx.tensors import ELEMENT_TYPES
from plait.graph.formats.onnx.upgrade import NEWEST_OPSET
from plait.graph.formats.onnx.writer import OLDEST_WRITTEN, save_onnx, to_onnx
from plait.graph.values.dtypes import dtype_of
from plait.graph.values.errors import GraphError
from plait.graph.values.extras import get_install_command
from python_functions import fail
from releases import newest_onnx

OPSETS = range(OLDEST_WRITTEN, NEWEST_OPSET + 1)


def single(op: str, *inputs: Any, **attributes: Any) -> Graph:
    """Return a graph of one node; inputs are (dtype, shape), arrays or None."""
    b = pl.GraphBuilder(op)
    named = [b.input(f"x{i}", *x) if isinstance(x, tuple) else x for i, x in enumerate(inputs)]
    b.output("y", b.op(op, *named, **attributes))
    return b.build()


def dense() -> Graph:
    b = pl.GraphBuilder("dense")
    x = b.input("x", "float32", ("batch", 3))
    y = b.op("Gemm", x, np.arange(12, dtype=np.float32).reshape(3, 4), np.ones(4, np.float32))
    b.output("y", b.op("LeakyRelu", y, alpha=0.25))
    return b.build()


# There and back


@pytest.mark.extended
@newest_onnx
def test_every_graph_of_the_node_tests_comes_back_as_it_was() -> None:
    cases = [case for cases in suite().nodes.values() for case in cases] + suite().functions
    plain = [case for case in cases if not nests(case.graph)]
    assert len(plain) > 1000
    for case in plain:
        assert read_model(to_onnx(case.graph), "written") == case.graph, case.name


def nests(graph: Graph) -> bool:
    return any(isinstance(v, Graph) for node in graph.nodes for v in node.attributes.values())


@pytest.mark.parametrize("opset", OPSETS)
@newest_onnx
def test_a_graph_comes_back_from_every_opset(opset: int, tmp_path: Path) -> None:
    save_onnx(dense(), tmp_path / "dense.onnx", opset=opset)
    assert pl.load(tmp_path / "dense.onnx") == dense()


def test_the_name_decides_the_format(tmp_path: Path) -> None:
    pl.save(dense(), tmp_path / "dense.onnx")
    assert onnx.load(tmp_path / "dense.onnx").graph.name == "dense"
    assert pl.load(tmp_path / "dense.onnx") == dense()


def test_the_checker_of_onnx_has_no_objection() -> None:
    model = to_onnx(dense())
    onnx.checker.check_model(model, full_check=True)
    assert model.producer_name == "plait"


@newest_onnx
def test_the_oldest_opset_that_has_all_operators_is_written() -> None:
    newer = single("CumProd", ("float32", (2,)), np.int64(0))
    written = [to_onnx(graph).opset_import[0].version for graph in (dense(), newer)]
    assert written == [OLDEST_WRITTEN, 26]


def test_other_runtimes_compute_the_same() -> None:
    x = np.array([[1, -2, 3], [0.5, 0, -4]], np.float32)
    (found,) = by_runtime(to_onnx(dense()), {"x": x})
    np.testing.assert_allclose(found, pl.run(dense(), {"x": x})["y"], rtol=1e-6)


def test_inputs_of_unknown_rank_and_named_lengths_stay_so() -> None:
    b = pl.GraphBuilder("symbols")
    b.output("y", b.op("Add", b.input("a", "float32", ("h", 3)), 1.0))
    model = to_onnx(b.build())
    (a,) = model.graph.input
    assert [dim.dim_param or dim.dim_value for dim in a.type.tensor_type.shape.dim] == ["h", 3]
    del a.type.tensor_type.shape.dim[:]
    a.type.tensor_type.ClearField("shape")
    unranked = read_model(model, "written")
    assert not to_onnx(unranked).graph.input[0].type.tensor_type.HasField("shape")


def test_absent_inputs_keep_their_places() -> None:
    graph = single("Clip", ("float32", (2,)), None, np.float32(1))
    (node,) = to_onnx(graph).graph.node
    assert list(node.input) == ["x0", "", graph.nodes[0].inputs[2]]


@pytest.mark.parametrize("dtype", ["bool", "float16", "uint64", "complex64", "int8", "bfloat16"])
def test_constants_come_back_bit_for_bit(dtype: str) -> None:
    value = np.frombuffer(bytes(range(1, 65)), "uint8").copy()
    array = value > 8 if dtype == "bool" else value.view(dtype_of(dtype))
    b = pl.GraphBuilder("constants")
    b.output("y", b.op("Concat", b.input("x", dtype, (4,)), array, axis=0))
    assert read_model(to_onnx(b.build()), "written") == b.build()


def test_a_tensor_attribute_is_a_number_and_a_dtype() -> None:
    graph = single("ConstantOfShape", ("int64", (2,)), value=7, dtype="uint8")
    (attribute,) = to_onnx(graph).graph.node[0].attribute
    assert attribute.t.data_type == TensorProto.UINT8
    assert onnx.numpy_helper.to_array(attribute.t).tolist() == [7]


# Attributes


@pytest.mark.parametrize("opset", OPSETS)
def test_attributes_are_left_out_only_where_onnx_has_the_same_default(opset: int) -> None:
    for op in list_operators():
        if not onnx.defs.has(op) or RUNTIME in find_operator(op).traits:
            continue
        try:
            schema = onnx.defs.get_schema(op, opset)
        except onnx.defs.SchemaError:
            continue
        for name, attribute in schema.attributes.items():
            known = find_operator(op).attributes[name]
            if op != "ConstantOfShape" and known.default not in (REQUIRED, None):
                declared = declared_default(attribute, known.kind)
                assert known.default == pytest.approx(declared), (op, name)


def declared_default(attribute: Any, kind: Kind) -> Any:
    value = helper.get_attribute_value(attribute.default_value)
    if kind is Kind.DTYPE:
        return ELEMENT_TYPES[value]
    if kind is Kind.STRINGS:
        return tuple(text.decode() for text in value)
    return value.decode() if isinstance(value, bytes) else value


def test_a_default_is_left_out_and_comes_back_unrounded() -> None:
    graph = single("LeakyRelu", ("float32", (2,)))
    model = to_onnx(graph)
    assert not model.graph.node[0].attribute
    assert read_model(model, "written").nodes[0].attributes["alpha"] == 0.01


def test_dtypes_are_numbers_in_onnx() -> None:
    (attribute,) = to_onnx(single("Cast", ("float32", (2,)), to="int8")).graph.node[0].attribute
    assert attribute.i == TensorProto.INT8


# Domains of their own

KINDS: dict[Kind, Any] = {
    Kind.INT: -3,
    Kind.FLOAT: 0.5,
    Kind.BOOL: True,
    Kind.STRING: "añ",
    Kind.INTS: (1, 2),
    Kind.FLOATS: (0.5, -1.0),
    Kind.BOOLS: (True, False),
    Kind.STRINGS: ("a", "b"),
    Kind.DTYPE: "bfloat16",
}


@pytest.mark.usefixtures("forget_operators")
@pytest.mark.parametrize("domain", ["acme", "org.acme.nets"])
def test_operators_of_other_domains_come_back_with_all_their_attributes(domain: str) -> None:
    attributes = {kind.name.lower(): Attribute(kind) for kind in KINDS}

    @define(f"{domain}.Mix", inputs="x y?", outputs="a b?", attributes=attributes)
    def infer(call: Call) -> tuple[pl.TensorSpec, ...]:
        return call.spec(0), call.spec(0)

    b = pl.GraphBuilder("mixed")
    x = b.input("x", "float32", ("n", 2))
    given = {kind.name.lower(): value for kind, value in KINDS.items()}
    a, second = b.op(f"{domain}.Mix", b.op("Relu", x), x, outputs=2, **given)
    b.output("y", b.op("Add", a, second))
    graph = b.build()
    model = to_onnx(graph)

    onnx.checker.check_model(model)
    assert [(node.domain, node.op_type) for node in model.graph.node][1] == (domain, "Mix")
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": 21, domain: 1}
    assert read_model(model, "written") == graph


@pytest.mark.usefixtures("forget_operators")
def test_a_python_function_comes_back_by_its_name(tmp_path: Path) -> None:
    @pl.operator(name="acme.scaled")
    def scaled(x: Any, *, by: float = 0.1) -> Any:
        return x * np.float32(by)

    b = pl.GraphBuilder("scaling")
    b.output("y", b.call(scaled, b.call(scaled, b.input("x", "float32", (2,))), by=2.0))
    pl.save(b.build(), tmp_path / "scaling.onnx")
    graph = pl.load(tmp_path / "scaling.onnx")
    assert graph == b.build()
    np.testing.assert_allclose(pl.run(graph, {"x": np.ones(2, np.float32)})["y"], [0.2, 0.2])


def test_exact_operators_come_back() -> None:
    graph = single("cvm.clip", ("int32", (3,)), a_min=-1, a_max=1)
    assert read_model(to_onnx(graph), "written") == graph


@pytest.mark.usefixtures("forget_operators")
def test_a_graph_in_an_operator_of_another_domain_is_refused() -> None:
    define("acme.Map", inputs="x", attributes={"body": Attribute(Kind.GRAPH)})(
        lambda call: [call.spec(0)]
    )
    with pytest.raises(GraphError, match="its attribute 'body' is a graph"):
        to_onnx(single("acme.Map", ("float32", (3,)), body=dense()))


# What cannot be written


@newest_onnx
def test_everything_that_cannot_be_written_is_listed_with_the_reason() -> None:
    b = pl.GraphBuilder("mixed")
    x = b.input("x", "float32", (4,))
    b.output("y", b.call(fail, b.op("Relu", x), name="mine"))
    b.output("z", b.op("Mod", x, 2.0, name="floored"))
    with pytest.raises(GraphError) as raised:
        to_onnx(b.build(), opset=26)
    assert raised.value.what.splitlines() == [
        "2 parts of the graph cannot be written as ONNX:",
        "    'mine': Python functions travel in ONNX models by name: @operator(name='domain.Name')",
        "    'floored': Mod of opset 26 leaves open what becomes of remainders of floats that "
        "round down",
    ]
    assert raised.value.at == "graph 'mixed'"


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (single("CumProd", ("float32", (2,)), np.int64(0)), "it came with opset 26"),
        (single("SpaceToDepth", ("float32", (1, 1, 2, 2)), blocksize=2, mode="CRD"),
         "has no attribute 'mode'"),
        (single("BitShift", ("int8", (2,)), ("int8", (2,)), direction="LEFT"), "not take int8"),
        (single("BitShift", ("uint8", (2,)), ("uint8", (2,)), direction="LEFT"), "leaves open"),
        (single("MaxPool", ("float32", (1, 1, 5)), kernel_shape=(2,), ceil_mode=1), "leaves open"),
    ],
    ids=["operator", "attribute", "dtype", "meaning", "meaning of an attribute"],
)  # fmt: skip
@newest_onnx
def test_what_an_older_opset_lacks_is_refused(graph: Graph, reason: str) -> None:
    with pytest.raises(GraphError, match=reason):
        to_onnx(graph, opset=21)
    assert read_model(to_onnx(graph), "written") == graph


def test_a_newer_opset_is_advised_only_where_there_is_one() -> None:
    b = pl.GraphBuilder("own")
    b.output("y", b.call(fail, b.input("x", "float32", (4,)), name="mine"))
    advice = {21: "save to a .plait file, choose a newer opset, or leave these parts out",
              None: "save to a .plait file, or leave these parts out"}  # fmt: skip
    for opset, fix in advice.items():
        with pytest.raises(GraphError, match=r"^1 part of the graph cannot") as raised:
            to_onnx(b.build(), opset=opset)
        assert raised.value.fix == fix


def test_declared_precisions_have_no_place_in_onnx(tmp_path: Path) -> None:
    b = pl.GraphBuilder("precise")
    b.output("y", b.op("Identity", b.input("x", "int32", (4,), precision=5)))
    with pytest.raises(GraphError, match="no place for declared precisions: x") as raised:
        save_onnx(b.build(), tmp_path / "precise.onnx")
    assert raised.value.fix == "save to a .plait file"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("opset", [0, OLDEST_WRITTEN - 1, NEWEST_OPSET + 1])
@newest_onnx
def test_opsets_out_of_range_are_refused(opset: int) -> None:
    with pytest.raises(GraphError, match=f"does not write opset {opset}") as raised:
        to_onnx(dense(), opset=opset)
    assert raised.value.fix == f"choose one from {OLDEST_WRITTEN} to {NEWEST_OPSET}"


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(GraphError, match="takes the package 'onnx'") as raised:
        to_onnx(dense())
    assert raised.value.fix == get_install_command("onnx")


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="cannot write"):
        save_onnx(dense(), tmp_path / "gone" / "dense.onnx")
    assert not list(tmp_path.iterdir())


# Data beside the model


def test_much_data_goes_to_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_writer, "EMBEDDED_BYTES", 10)
    save_onnx(dense(), tmp_path / "dense.onnx")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["dense.onnx", "dense.onnx.data"]
    assert (tmp_path / "dense.onnx.data").stat().st_size == 2 * 64
    assert pl.load(tmp_path / "dense.onnx") == dense()
    onnx.checker.check_model(str(tmp_path / "dense.onnx"))


def test_constants_may_be_left_to_whoever_runs_the_model() -> None:
    graph = dense()
    name = graph.nodes[0].inputs[1]
    stand_in, _ = to_onnx(graph, outside=[name]).graph.initializer
    assert (stand_in.name, list(stand_in.dims), stand_in.raw_data) == (name, [3, 4], b"")
    assert stand_in.data_location == TensorProto.EXTERNAL
