"""Readers that need no class: each row has sound samples, a way to damage them, and the call."""

from __future__ import annotations

import io
import json
import shlex
import tarfile
from collections.abc import Callable
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
import numpy as np
import plait as pl
from click.testing import CliRunner
from fuzzers.mutation import damaged_bytes, damaged_text, damaged_tree, json_bytes
from fuzzers.readers import Reader, mixture, network
from media_files import write_sound, write_video
from ort_cases import CASES
from plait.cli import cli
from plait.cli.inputs import read_arrays
from plait.devices.worker.remote_errors import describe, rebuild
from plait.formats import load_operators
from plait.graph.core.operator import unregister_operator
from plait.scheduler.costs.first_use import _read_kept
from plait.scheduler.jobs.commits import show_status
from plait.scheduler.ray.remote.serving_devices import _read_command


class Row(NamedTuple):
    """A reader.

    Attributes
    ----------
    samples : callable
        Returns the files, in the reader's folder.
    read : callable
        Reads one.
    words : tuple of str
        Texts that damage puts in.
    form : {"bytes", "text", "json"}
    """

    samples: Callable[[], list[bytes]]
    read: Callable[[bytes], object]
    words: tuple[str, ...] = ()
    form: str = "bytes"


class ListedReader(Reader):
    """A reader made of a row."""

    def __init__(self, row: Row) -> None:
        self._row = row

    @cached_property
    def samples(self) -> list[bytes]:
        return self._row.samples()

    def damaged(self, random: Random, sample: bytes) -> bytes:
        words = self._row.words
        if self._row.form == "json":
            return json_bytes(damaged_tree(random, json.loads(sample), words))
        if self._row.form == "text":
            return damaged_text(random, sample.decode(), words).encode(errors="surrogatepass")
        return damaged_bytes(random, sample, random.choice(self.samples))

    def read(self, data: bytes) -> object:
        return self._row.read(data)


def read_json(read: Callable[[Any], object], data: bytes) -> object:
    """Call a reader of JSON values that other code has parsed; refuse other texts."""
    try:
        root = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise pl.ParseError("no JSON") from error
    return read(root)


def read_file(name: str, read: Callable[[Path], object], data: bytes) -> object:
    path = Path(name)
    path.write_bytes(data)
    return read(path)


def make_images() -> list[bytes]:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 255, (24, 32, 3), np.uint8)
    found = []
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "TGA", "PCX", "SGI", "QOI"):
        content = io.BytesIO()
        Image.fromarray(pixels).save(content, kind)
        found.append(content.getvalue())
    return found


def decode_image(data: bytes) -> object:
    array = np.frombuffer(data, np.uint8)
    return pl.sources.decode_image(array, height=16, width=16, max_pixels=1 << 20)


def make_sounds() -> list[bytes]:
    samples = np.sin(np.arange(900) / 10)[:, None] * [1, 0.5]
    return [write_sound(Path("sample.wav"), samples).read_bytes()]


def make_videos() -> list[bytes]:
    return [write_video(Path(f"v.{kind}"), (0, 99), (0, 40)).read_bytes() for kind in ("mkv",)]


def make_operators() -> list[bytes]:
    rules = [
        {
            "cond": ["self.params[by] > 1"],
            "replace": ["Mul m", "Add a"],
            "details": [
                *("m.ins[0] = self.ins[x]", "m.ins[1] = self.params[by]"),
                *("a.ins[0] = m.outs[0]", "a.ins[1] = self.ins[x]", "a.outs[0] = self.outs[y]"),
            ],
        },
        {
            "replace": ["Neg n"],
            "details": ["n.ins[0] = self.ins[x]", "n.outs[0] = self.outs[y]"],
        },
    ]
    attributes = {"by": {"kind": "float", "default": 2}}
    made = {"name": "fuzz.Scaled", "inputs": ["x"], "outputs": ["y"], "attributes": attributes}
    return [json_bytes({"operators": [{**made, "rules": rules}]})]


def read_operators(data: bytes) -> object:
    names = load_operators(data)
    try:
        b = pl.GraphBuilder("defined")
        b.output("y", b.op(names[0], b.input("x", "float32", (2,))) if names else "x")
        return pl.run(b.build(), {"x": np.ones(2, "float32")}, devices="cpu")
    finally:
        for name in names:
            unregister_operator(name)


def make_arrays(save: Callable[..., None], *arrays: Any, **named: Any) -> list[bytes]:
    content = io.BytesIO()
    save(content, *arrays, **named)
    return [content.getvalue()]


def make_counter() -> pl.Graph:
    b = pl.GraphBuilder("counter")
    count = b.variable("count", np.zeros(3, "float32"))
    b.assign(count, count + 1)
    b.output("y", count)
    return b.build()


def make_variables() -> list[bytes]:
    with pl.BlockingSession(pl.plan(make_counter(), "cpu")) as session:
        session.save_variables("v.safetensors")
        session.assign({"count": np.ones(3, "float32")}, key=("door", 1))
        session.save_variables("keyed.safetensors")
    return [Path(name).read_bytes() for name in ("v.safetensors", "keyed.safetensors")]


def load_variables(path: Path) -> object:
    with pl.BlockingSession(pl.plan(make_counter(), "cpu")) as session:
        session.load_variables(path)
        return session.run({})


def make_model_files() -> list[bytes]:
    return [json_bytes(pl.DeviceModel(operators={"Relu": 2.0}, memory_bytes=1 << 20).to_dict())]


def simulate_model(root: Any) -> object:
    device = pl.modelled_device("npu", pl.DeviceModel.from_dict(root))
    return pl.simulate(pl.plan(network(), [device, "cpu"]), items=2)


def make_errors() -> list[bytes]:
    error = pl.KernelError("it failed", at="node 'a'", fix="mend it")
    error.__cause__ = ValueError("not today")
    return [json_bytes(describe(error)), json_bytes(describe(OSError(2, "gone")))]


def make_external_model() -> list[bytes]:
    """Return a model with its weights in another file, which stays sound."""
    import onnx

    model = pl.formats.to_onnx(network())
    onnx.save_model(
        model, "outside.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    return [Path("outside.onnx").read_bytes()]


def make_foreign_models() -> list[bytes]:
    return [case.model().SerializeToString() for case in CASES[:6]]


def read_figures(path: Path) -> object:
    found = _read_kept(path)
    if found is None:
        raise pl.ParseError("measured again")
    return found


def make_figures() -> list[bytes]:
    pl.Costs({"npu": pl.DeviceModel()}).save("figures.json")
    return [Path("figures.json").read_bytes()]


COMMANDS = (
    "plan m.plait --devices cpu,ort --pin conv=cpu --max-in-flight 2",
    "plan n.plait --devices cpu --bounds n=1..8",
    "show m.plait --nodes",
    "simulate m.plait --devices cpu,sim:a",
    "run n.plait --input x=[[1,2,3,4]] --shape x=2,4 --devices cpu",
)


def make_commands() -> list[bytes]:
    pl.save(network(), "m.plait")
    pl.save(mixture(nested=False), "n.plait")
    return [line.encode() for line in COMMANDS]


def run_command(data: bytes) -> object:
    try:
        arguments = shlex.split(data.decode(errors="replace").replace("\0", ""))
    except ValueError as error:  # a quotation without an end, which a shell would refuse
        raise pl.ParseError("no command line") from error
    if any(word.startswith(("--out", "--html", "--save", "/", "..")) for word in arguments):
        raise pl.ParseError("it would write outside of this folder")
    result = CliRunner().invoke(cli, arguments, prog_name="plait")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code:
        raise pl.ParseError("refused")
    return result.output


def make_manifests() -> list[bytes]:
    names = tuple(f"parts/part-{n:012d}-{n + 9:012d}.jsonl" for n in (0, 9))
    status = pl.jobs.JobStatus(
        position=18, total=40, parts=names, items_per_second=2.5, digests={"model": "a"}
    )
    return [msgspec.json.encode(status)]


def read_manifest(data: bytes) -> object:
    """Read a damaged manifest under a right checksum."""
    content = {"sha256": sha256(data).hexdigest(), "manifest": msgspec.Raw(data)}
    Path("manifest.json").write_bytes(msgspec.json.encode(content))
    found = show_status(Path())
    return str(found), found.files


def make_shards() -> list[bytes]:
    found = []
    for mode in ("w", "w:gz", "w:xz"):
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode=mode) as shard:
            for name in ("a.txt", "a.png", "é/b.txt", f"{'c' * 120}.txt"):
                member = tarfile.TarInfo(name)
                member.size = 40
                shard.addfile(member, io.BytesIO(bytes(range(40))))
        found.append(content.getvalue())
    return found


def read_shard(path: Path) -> object:
    return list(pl.jobs.read_shards(path).open_at(0))


def make_queues() -> list[bytes]:
    pl.jobs.Queue("made.sqlite").put(*range(50))
    return [Path("made.sqlite").read_bytes()]


def read_queue(path: Path) -> object:
    return list(pl.jobs.Queue(path).open_at(0))


X = partial(read_arrays, name=None, graph=mixture(nested=False))
LISTED: dict[str, Row] = {
    "images": Row(make_images, decode_image),
    "sound": Row(
        make_sounds, partial(read_file, "s.wav", lambda path: list(pl.sources.read_sound(path, 99)))
    ),
    "video": Row(
        make_videos, partial(read_file, "s.mkv", lambda path: list(pl.sources.read_video(path)))
    ),
    "operators": Row(
        make_operators, read_operators, ("self.ins[x]", "Mul", "fuzz.Scaled", "**", "1e400"), "json"
    ),
    "npy": Row(
        partial(make_arrays, np.save, np.ones((2, 4), "float32")), partial(read_file, "a.npy", X)
    ),
    "npz": Row(
        partial(make_arrays, np.savez, x=np.ones((2, 4), "float32")), partial(read_file, "a.npz", X)
    ),
    "variables": Row(make_variables, partial(read_file, "w.safetensors", load_variables)),
    "models of devices": Row(
        make_model_files, partial(read_json, simulate_model), ("Relu", "host", "peers"), "json"
    ),
    "described errors": Row(
        make_errors,
        partial(read_json, lambda root: rebuild(root, "worker:0")),
        ("KernelError", "SystemExit", "plait.KernelError"),
        "json",
    ),
    "external data": Row(make_external_model, partial(read_file, "damaged.onnx", pl.load)),
    "foreign nodes": Row(make_foreign_models, partial(pl.load, format="onnx")),
    "commands of Ray": Row(
        lambda: [json_bytes([1, 0, "run", [], 3, None, None, None])],
        partial(read_json, _read_command),
        ("read", "write", "copy"),
        "json",
    ),
    "figures": Row(
        make_figures, partial(read_file, "f.json", read_figures), ("npu", "inf"), "json"
    ),
    "shards": Row(make_shards, partial(read_file, "s.tar", read_shard)),
    "queues": Row(make_queues, partial(read_file, "damaged.sqlite", read_queue)),
    "manifests": Row(make_manifests, read_manifest, ("parts/../x", "lock", "1e400"), "json"),
    "command lines": Row(make_commands, run_command, ("--pin", "worker:0", "=", ".."), "text"),
}
