"""File formats of other packages, and models in memory (row T21)."""

from __future__ import annotations

import importlib
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import plait as pl
import pytest
from cvm_models import dense_symbol
from installed_packages import install
from onnx_models import model, node
from plait import formats
from plait.dialects.lightnet.writer import dump_lightnet
from plait.graph.formats import registry
from plait.graph.values import installed

MAGIC = b"acme\r\n"


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def fail(error: BaseException) -> Any:
    raise error


def graph() -> pl.Graph:
    b = pl.GraphBuilder("small")
    b.output("y", b.op("Relu", b.input("x", "float32", (1, 3)), name="a"))
    return b.build()


def read(data: memoryview, path: Path | None) -> pl.Graph:
    return formats.load_bytes(bytes(data[len(MAGIC) :])[::-1], str(path))


def write(made: pl.Graph) -> tuple[bytes, ...]:
    return MAGIC, formats.dump_bytes(made)[::-1]


def acme(**changed: Any) -> pl.Format:
    known: dict[str, Any] = {"name": "acme", "suffixes": (".acme",), "magic": MAGIC}
    return pl.Format(**{**known, "read": read, "write": write, **changed})


def known_formats() -> list[str]:
    registry.list_written_suffixes()  # registers those of plait's dialects
    return list(registry._formats)


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    before = set(known_formats())
    yield
    for name in set(known_formats()) - before:
        formats.unregister_format(name)
    installed._offers.clear()


def test_a_file_of_ones_own_format_is_written_and_read(tmp_path: Path) -> None:
    pl.register_format(acme())
    pl.save(graph(), tmp_path / "m.acme")
    assert (tmp_path / "m.acme").read_bytes().startswith(MAGIC)
    assert pl.load(tmp_path / "m.acme") == graph()
    assert pl.load((tmp_path / "m.acme").rename(tmp_path / "m.onnx")) == graph()


def test_a_format_without_magic_is_told_by_its_suffix_or_name(tmp_path: Path) -> None:
    pl.register_format(acme(magic=b""))
    pl.save(graph(), tmp_path / "m.acme")
    assert pl.load(tmp_path / "m.acme") == graph()
    data = (tmp_path / "m.acme").read_bytes()
    assert pl.load(data, format="acme") == graph()
    assert pl.load((tmp_path / "m.acme").rename(tmp_path / "m"), format="acme") == graph()


def test_readers_are_told_where_the_file_lies(tmp_path: Path) -> None:
    seen: list[Path | None] = []

    def noting(data: memoryview, path: Path | None) -> pl.Graph:
        seen.append(path)
        return read(data, path)

    pl.register_format(acme(read=noting))
    pl.save(graph(), tmp_path / "m.acme")
    pl.load(tmp_path / "m.acme")
    pl.load((tmp_path / "m.acme").read_bytes())
    assert seen == [tmp_path / "m.acme", None]


def native() -> bytes:
    return formats.dump_bytes(graph())


def onnx() -> bytes:
    pytest.importorskip("onnx")
    proto = model([node("Relu", "x", "y")], {"x": ("float32", (2,))})
    content: bytes = proto.SerializeToString()
    return content


def lightnet() -> bytes:
    return dump_lightnet(graph())[0]


def lightnet_text() -> bytes:
    return dump_lightnet(graph(), as_text=True)[0]


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, io.BytesIO])
@pytest.mark.parametrize(
    ("content", "format"),
    [
        (native, None),
        (native, "plait"),
        (onnx, None),
        (onnx, "onnx"),
        (lightnet, None),
        (lightnet, "lightnet"),
        (lightnet_text, "lightnet"),
    ],
)
def test_models_come_from_memory(
    content: Callable[[], bytes], format: str | None, wrap: Callable[[bytes], Any]
) -> None:
    found = pl.load(wrap(content()), format=format)
    assert [one.op for one in found.nodes] == ["Relu"]
    assert len(found.inputs) == 1


class Drawing:
    """A model in memory, of a class of one's own."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph


class Sketch(Drawing):
    pass


DRAWING = f"{__name__}.Drawing"


def test_objects_are_read_by_the_names_of_their_classes() -> None:
    pl.register_format(acme(objects={DRAWING: lambda drawing: drawing.graph}))
    assert pl.load(Sketch(graph())) == pl.load(Drawing(graph()), format="acme") == graph()
    with pytest.raises(pl.ParseError, match="a Drawing is of format 'acme'"):
        pl.load(Drawing(graph()), format="onnx")
    with pytest.raises(pl.ParseError, match="reader of format 'acme' made a NoneType"):
        pl.load(Drawing(None))
    with pytest.raises(pl.ParseError, match="no parameters in another file"):
        pl.load(Drawing(graph()), parameters="beside")
    formats.unregister_format("acme")
    with pytest.raises(pl.ParseError, match=r"expected a path, .*, got Drawing"):
        pl.load(Drawing(graph()))


def test_packages_are_asked_for_objects_of_their_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme_drawings.py").write_text(
        "import plait as pl\n"
        "class Drawing:\n"
        "    graph = None\n"
        "FORMAT = pl.Format(name='acme_drawings',\n"
        "    objects={'acme_drawings.Drawing': lambda drawing: drawing.graph})\n"
    )
    entries = {"plait.formats": {"acme_drawings": "acme_drawings:FORMAT"}}
    install(tmp_path, "acme-drawings", "1.0", entries)
    monkeypatch.syspath_prepend(tmp_path)
    drawing = importlib.import_module("acme_drawings").Drawing()
    drawing.graph = graph()
    assert pl.load(drawing) == graph()
    with pytest.raises(pl.ParseError, match="files of format 'acme_drawings' are not read"):
        pl.load(b"whatever", format="acme_drawings")


def test_models_come_from_open_files(tmp_path: Path) -> None:
    pl.save(graph(), tmp_path / "m.plait")
    with (tmp_path / "m.plait").open("rb") as file:
        assert pl.load(file) == graph()
    pl.register_format(acme())
    pl.save(graph(), tmp_path / "m.acme")
    with (tmp_path / "m.acme").open("rb") as file:
        assert pl.load(file) == graph()


def test_cvm_models_need_their_parameters() -> None:
    with pytest.raises(pl.RuntimeFailureError, match="a symbol has parameters"):
        pl.load(json.dumps(dense_symbol()).encode())


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "empty": (b"", {}, "the file is empty"),
    "number": (3, {}, "a model of a known package, got int"),
    "none": (None, {}, "a model of a known package, got NoneType"),
    "foreign": (b"PK\x03\x04" + bytes(99), {}, "neither a .plait file nor an ONNX model"),
    "unknown": (b"x", {"format": "tf"}, "there is no format 'tf'"),
    "no name": (b"x", {"format": 3}, "there is no format 3"),
    "cut": (MAGIC, {}, "not a .plait file"),
}


@pytest.mark.parametrize(("source", "options", "message"), BAD.values(), ids=BAD)
def test_what_is_no_model_is_refused(source: Any, options: dict[str, Any], message: str) -> None:
    pl.register_format(acme())
    with pytest.raises(pl.ParseError, match=message) as caught:
        pl.load(source, **options)
    assert caught.value.fix


def test_a_file_that_is_open_as_text_is_refused() -> None:
    with pytest.raises(pl.ParseError, match="open as text"):
        pl.load(io.StringIO("{}"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"read": lambda data, path: 1 / 0}, "reader of format 'acme' fails: ZeroDivisionError"),
        ({"read": lambda data, path: None}, "reader of format 'acme' made a NoneType"),
        (
            {"read": lambda data, path: fail(UnprintableError())},
            "'acme' fails: UnprintableError: <unprint",
        ),
        ({"read": lambda data, path: fail(SystemExit(3))}, "'acme' fails: SystemExit: 3"),
        ({"read": None}, "files of format 'acme' are only written"),
        ({"read": lambda data, path: _broken()}, "is read before|not defined|no node"),
    ],
)
def test_readers_that_fail_are_named(changed: dict[str, Any], message: str) -> None:
    pl.register_format(acme(**changed))
    with pytest.raises(pl.GraphError, match=message) as caught:
        pl.load(MAGIC)
    assert not isinstance(caught.value, pl.InternalError)


def _broken() -> pl.Graph:
    whole = graph()
    return pl.Graph("broken", whole.inputs, ("z",), whole.nodes, whole.tensors, {})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"write": lambda graph: 1 / 0}, "writer of format 'acme' fails: ZeroDivisionError"),
        ({"write": lambda graph: "text"}, "writer of format 'acme' fails: TypeError"),
        (
            {"write": lambda graph: fail(UnprintableError())},
            "'acme' fails: UnprintableError: <unprintable",
        ),
        ({"write": lambda graph: fail(SystemExit(3))}, "'acme' fails: SystemExit: 3"),
        ({"write": lambda graph: [np.zeros((4, 4))[:, ::2]]}, "'acme' fails: TypeError"),
        ({"write": lambda graph: None}, "writer of format 'acme' fails: TypeError"),
        ({"write": None}, "files of format 'acme' are only read"),
    ],
)
def test_writers_that_fail_leave_nothing(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    pl.register_format(acme(**changed))
    with pytest.raises(pl.GraphError, match=message):
        pl.save(graph(), tmp_path / "m.acme")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": ""}, "'' is not the name of a format"),
        ({"name": None}, "None is not the name of a format"),
        ({"suffixes": ".acme"}, "the suffixes are"),
        ({"suffixes": ("acme",)}, "the suffixes are"),
        ({"suffixes": (".a.b",)}, "the suffixes are"),
        ({"magic": "acme"}, "the magic is 'acme'"),
        ({"magic": b"{"}, "the magic is"),
        ({"read": "read"}, "read is 'read'"),
        ({"sniff": b"{"}, "sniff is b'{'"),
        ({"objects": {"acme.Model": "read"}}, "objects is {'acme.Model': 'read'}"),
        ({"write_files": lambda graph, path: {}}, "written in two ways"),
        ({"read": None, "write": None}, "neither read nor written"),
    ],
)
def test_a_format_that_cannot_be_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(pl.GraphError, match=message):
        acme(**changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({}, "the name is taken"),
        ({"name": "onnx"}, "the name is taken"),
        ({"name": "lightnet"}, "the name is taken"),
        ({"name": "other"}, "the suffix .acme is taken"),
        ({"name": "other", "suffixes": (".onnx",)}, "the suffix .onnx is taken"),
        ({"name": "other", "suffixes": (".net",)}, "the suffix .net is taken"),
        ({"name": "other", "suffixes": (), "magic": MAGIC[:4]}, "another format begin"),
        ({"name": "other", "suffixes": (), "magic": b"\x89plait\r\n"}, "another format begin"),
    ],
)
def test_what_is_taken_is_refused(changed: dict[str, Any], message: str) -> None:
    before = known_formats()
    pl.register_format(acme())
    with pytest.raises(pl.GraphError, match=message):
        pl.register_format(acme(**changed))
    assert known_formats() == [*before, "acme"]


def test_a_format_that_is_removed_is_unknown_again(tmp_path: Path) -> None:
    pl.register_format(acme())
    formats.unregister_format("acme")
    with pytest.raises(pl.GraphError, match=r"plait does not write \.acme"):
        pl.save(graph(), tmp_path / "m.acme")
    with pytest.raises(pl.GraphError, match="there is no format 'acme' to remove"):
        formats.unregister_format("acme")
    with pytest.raises(pl.GraphError, match="expected a format, got dict"):
        pl.register_format({})  # type: ignore[arg-type]


def test_formats_of_dialects_stay() -> None:
    with pytest.raises(pl.GraphError, match="there is no format 'cvm' to remove"):
        formats.unregister_format("cvm")


def begins_so(file: BinaryIO) -> bool:
    return file.read(len(MAGIC)) == MAGIC


def test_content_that_a_format_knows_goes_before_the_suffix(tmp_path: Path) -> None:
    pl.register_format(acme(magic=b"", sniff=begins_so))
    pl.save(graph(), tmp_path / "m.acme")
    assert pl.load((tmp_path / "m.acme").read_bytes()) == graph()
    assert pl.load((tmp_path / "m.acme").rename(tmp_path / "m.json")) == graph()


def test_of_formats_that_know_a_file_the_last_registered_reads_it() -> None:
    pl.register_format(acme(magic=b"", suffixes=(), sniff=lambda file: file.read(1) == b"{"))
    with pytest.raises(pl.ParseError, match=r"not a \.plait file"):
        pl.load(lightnet())
    assert len(pl.load(lightnet(), format="lightnet").nodes) == 1


def test_a_suffix_decides_where_nobody_knows_the_content(tmp_path: Path) -> None:
    pl.register_format(acme(magic=b"", sniff=lambda file: False))
    pl.save(graph(), tmp_path / "m.acme")
    assert pl.load(tmp_path / "m.acme") == graph()


def test_a_sniff_that_fails_is_named() -> None:
    pl.register_format(acme(magic=b"", sniff=lambda file: 1 / 0))
    with pytest.raises(pl.ParseError, match="sniff of format 'acme' fails: ZeroDivisionError"):
        pl.load(b"unknown")


def test_parameters_may_lie_in_a_file_elsewhere(tmp_path: Path) -> None:
    def joined(data: memoryview, path: Path | None, parameters: Path) -> pl.Graph:
        return read(memoryview(bytes(data) + parameters.read_bytes()), path)

    head, rest = write(graph())
    (tmp_path / "rest").write_bytes(rest)
    pl.register_format(acme(read_with=joined))
    assert pl.load(head, parameters=tmp_path / "rest") == graph()
    with pytest.raises(pl.ParseError, match="'plait' have no parameters in another file"):
        pl.load(native(), parameters=tmp_path / "rest")
    formats.unregister_format("acme")
    pl.register_format(acme())
    with pytest.raises(pl.ParseError, match="'acme' have no parameters in another file"):
        pl.load(head, parameters=tmp_path / "rest")


def test_a_format_may_have_several_files(tmp_path: Path) -> None:
    def files(made: pl.Graph, path: Path) -> dict[Path, bytes]:
        head, rest = write(made)
        return {path.with_suffix(".rest"): rest, path: head}

    pl.register_format(acme(write=None, write_files=files))
    pl.save(graph(), tmp_path / "m.acme")
    assert sorted(os.listdir(tmp_path)) == ["m.acme", "m.rest"]
    assert (tmp_path / "m.acme").read_bytes() == MAGIC


PACKAGE = """
import plait as pl
from plait.formats import dump_bytes, load_bytes

ACME = pl.Format(
    name="acme",
    suffixes=(".acme",),
    read=lambda data, path: load_bytes(bytes(data)),
    write=dump_bytes,
)
WRONG = 3
"""


@pytest.mark.parametrize("offered", ["acme", "packed"])
def test_an_installed_package_offers_a_format(
    offered: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from installed_packages import install

    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "acme_files.py").write_text(PACKAGE.replace('"acme"', f'"{offered}"'))
    entries = {"acme": "acme_files:ACME", "wrong": "acme_files:WRONG", "gone": "acme_gone:X"}
    install(tmp_path, "acme", "1.0", {installed.FORMATS: entries})
    installed._offers.clear()
    monkeypatch.delitem(__import__("sys").modules, "acme_files", raising=False)
    pl.save(graph(), tmp_path / "m.acme")
    assert pl.load(tmp_path / "m.acme") == graph()
    assert pl.load((tmp_path / "m.acme").read_bytes(), format="acme") == graph()
    with pytest.raises(pl.ParseError, match="offers 3 as format 'wrong'"):
        pl.load(b"x", format="wrong")
    with pytest.raises(pl.ParseError, match=r"'gone' of package acme 1\.0 cannot be loaded"):
        pl.load(b"x", format="gone")
    monkeypatch.delitem(__import__("sys").modules, "acme_files", raising=False)


def test_arrays_of_a_file_in_memory_are_used_where_they_lie() -> None:
    b = pl.GraphBuilder("g")
    b.output("y", b.op("Add", b.input("x", "float32", (4,)), np.ones(4, "float32"), name="a"))
    (constant,) = pl.load(formats.dump_bytes(b.build())).constants.values()
    assert not constant.flags.owndata
    assert not constant.flags.writeable
