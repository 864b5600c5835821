"""Every reader of files and messages: sound samples, damage of its kind, and the call."""

from __future__ import annotations

import json
import socket
import struct
import zlib
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import numpy as np
import plait as pl
from cvm_models import convolution_graph, dense_graph
from fuzzers.mutation import (
    damaged_bytes,
    damaged_message,
    damaged_scalars,
    damaged_text,
    damaged_tree,
    json_bytes,
)
from nested_graphs import doubling_body
from plait import formats
from plait.devices.worker.wire import Channel, Done, Hello, WorkerRequest
from plait.dialects.cvm.files import load_cvm
from plait.dialects.cvm.files.writer import dump_cvm
from plait.dialects.lightnet.weights import read_weights as read_text_weights
from plait.dialects.lightnet.writer import dump_lightnet
from plait.graph.core.check import check
from plait.graph.core.operator import list_operators
from plait.graph.formats import checkpoints
from plait.graph.formats.container import align
from plait.graph.formats.safetensors import LENGTH, pack_weights, read_weights
from plait.graph.passes.rewriting import allow_any
from plait.scheduler.costs.costs_file import decode, encode
from plait.scheduler.packing.table import read_table
from plait.scheduler.reports.plan_file import dump_plan, read_plan

PREFIX = struct.Struct("<8sIIQ")


def network() -> pl.Graph:
    """Return a small convolutional network, such as LightNet has."""
    random = np.random.default_rng(0)
    b = pl.GraphBuilder("network")
    x = b.input("x", "float32", (1, 3, 8, 8))
    w = random.standard_normal((4, 3, 3, 3)).astype("float32")
    y = b.op("Conv", x, w, np.zeros(4, "float32"), pads=(1, 1, 1, 1), name="conv")
    y = b.op("MaxPool", b.op("Relu", y), kernel_shape=(2, 2), strides=(2, 2), name="pool")
    b.output("y", b.op("Softmax", b.op("Reshape", y, np.array([1, 64])), name="classes"))
    return b.build()


def mixture(*, nested: bool = True) -> pl.Graph:
    """Return a graph of many kinds of attributes, dtypes and shapes, with a graph inside or not."""
    b = pl.GraphBuilder("mixture")
    x = b.input("x", "float32", ("n", 4))
    h = b.op("Gemm", x, np.ones((4, 4), "float32"), np.ones(4, "float32"), alpha=0.5)
    h = b.op("Concat", h, b.op("Cast", b.op("Cast", x, to="int8"), to="float32"), axis=1)
    b.output("part", b.op("Slice", h, np.array([0]), np.array([3]), np.array([1])))
    b.output("sum", b.op("ReduceMean", h, keepdims=False))
    if nested:
        state = b.input("s", "float32", (3,))
        last, rows = b.op("Loop", np.array(3), None, state, body=doubling_body(), outputs=2)
        b.output("last", last)
        b.output("rows", rows)
    return b.build()


NESTED = """
<ir_version: 8, opset_import: ["" : 18, "own" : 1]>
nested (float[2, 3] x, bool c) => (float[M, N] y, float[L] z) {
    h = own.twice (x)
    y = If (c) <
        then_branch = positive () => (float[2, 3] p) { p = Relu (h) },
        else_branch = negative () => (float[2, 3] n) { n = Neg (h) }
    >
    s = Constant <value = int64[1] {6}> ()
    z = Reshape (h, s)
}
<domain: "own", opset_import: ["" : 18]>
twice (a) => (b) { two = Constant <value = float {2}> () b = Mul (a, two) }
"""


class Reader(ABC):
    """A reader under attack; its folder is the current one.

    Attributes
    ----------
    name : str
    """

    name: ClassVar[str]

    @cached_property
    @abstractmethod
    def samples(self) -> list[bytes]:
        """Sound files."""

    def make(self, random: Random) -> bytes:
        """Return a damaged file, one in four times without regard to what it holds."""
        sample = random.choice(self.samples)
        if random.random() < 0.25:
            return damaged_bytes(random, sample, random.choice(self.samples))
        return self.damaged(random, sample)

    def damaged(self, random: Random, sample: bytes) -> bytes:
        """Return a file that is wrong where its kind has something to say."""
        return damaged_bytes(random, sample)

    @abstractmethod
    def read(self, data: bytes) -> object:
        """Read a file."""


class Onnx(Reader):
    name = "onnx"

    @cached_property
    def samples(self) -> list[bytes]:
        from onnx.parser import parse_model

        made = (formats.to_onnx(graph) for graph in (network(), mixture(nested=False)))
        return [model.SerializeToString() for model in (*made, parse_model(NESTED))]

    def damaged(self, random: Random, sample: bytes) -> bytes:
        import onnx

        model = onnx.ModelProto()
        model.ParseFromString(sample)
        damaged_message(random, model, ("Conv", "Reshape", "Loop", "Concat", "x", "Resize"))
        content: bytes = model.SerializeToString()
        return content

    def read(self, data: bytes) -> object:
        return pl.load(data, format="onnx")


class Native(Reader):
    name = "plait"

    @cached_property
    def samples(self) -> list[bytes]:
        return [formats.dump_bytes(graph) for graph in (network(), mixture(), dense_graph())]

    def damaged(self, random: Random, sample: bytes) -> bytes:
        magic, version, _, nbytes = PREFIX.unpack_from(sample)
        end = PREFIX.size + nbytes
        header = self.damaged_header(random, sample[PREFIX.size : end])
        prefix = PREFIX.pack(magic, version, zlib.crc32(header), len(header))
        start = len(prefix) + len(header)
        return prefix + header + bytes(align(start) - start) + sample[align(end) :]

    def damaged_header(self, random: Random, header: bytes) -> bytes:
        return damaged_scalars(random, header, (random.choice(list_operators()), "x", "conv"))

    def read(self, data: bytes) -> object:
        return pl.load(data, format="plait")


class Plan(Native):
    name = "plan"

    @cached_property
    def samples(self) -> list[bytes]:
        pins = {"conv": "worker:0"}
        planned = (
            pl.plan(network(), ["cpu", "worker:0"], pin=pins, max_in_flight=2),
            pl.plan(mixture(), ["cpu"]),
            pl.plan(mixture(), ["cpu"], bounds={"n": 8}),
            pl.plan(network(), [pl.device("cpu", threads=2), pl.device("ort", spinning=False)]),
        )
        return [dump_plan(plan) for plan in planned]

    def damaged_header(self, random: Random, header: bytes) -> bytes:
        split = LENGTH.size + LENGTH.unpack_from(header)[0]
        graph, section = header[LENGTH.size : split], header[split:]
        if random.random() < 0.3:
            graph = super().damaged_header(random, graph)
        else:
            names = ("cpu", "worker:0", "host", "conv", "x", "threads", "cache", "settings")
            section = damaged_scalars(random, section, names)
        return LENGTH.pack(len(graph)) + graph + section

    def read(self, data: bytes) -> object:
        return read_plan(data, "plan", {})


class CvmSymbol(Reader):
    name = "cvm symbol"

    @cached_property
    def models(self) -> list[tuple[bytes, bytes]]:
        return [dump_cvm(dense_graph()), dump_cvm(convolution_graph())]

    @cached_property
    def samples(self) -> list[bytes]:
        return [symbol for symbol, _ in self.models]

    def damaged(self, random: Random, sample: bytes) -> bytes:
        return json_bytes(damaged_tree(random, json.loads(sample), ("conv2d", "dense", "data")))

    def read(self, data: bytes) -> object:
        return load_cvm(data, self.models[len(data) % 2][1])


class CvmParameters(CvmSymbol):
    name = "cvm parameters"

    @cached_property
    def samples(self) -> list[bytes]:
        return [params for _, params in self.models]

    def damaged(self, random: Random, sample: bytes) -> bytes:
        return damaged_bytes(random, sample)

    def read(self, data: bytes) -> object:
        return load_cvm(self.models[len(data) % 2][0], data)


class LightNet(Reader):
    name = "lightnet"
    as_text = False

    @cached_property
    def samples(self) -> list[bytes]:
        return [dump_lightnet(network(), as_text=self.as_text)[0]]

    def damaged(self, random: Random, sample: bytes) -> bytes:
        return json_bytes(damaged_tree(random, json.loads(sample), ("conv2d", "concat", "arange")))

    def read(self, data: bytes) -> object:
        return pl.load(data, format="lightnet")


class LightNetText(LightNet):
    name = "lightnet text"
    as_text = True

    def damaged(self, random: Random, sample: bytes) -> bytes:
        words = ("#define f(x) x x\n", "f(f(1))", "${", "}", "(", ")", "=", "**", "eval")
        return damaged_text(random, sample.decode(), words).encode(errors="surrogatepass")


class LightNetWeights(Reader):
    name = "lightnet weights"

    @cached_property
    def samples(self) -> list[bytes]:
        return [dump_lightnet(network())[1]]

    def damaged(self, random: Random, sample: bytes) -> bytes:
        return damaged_text(random, sample.decode()).encode(errors="surrogatepass")

    def read(self, data: bytes) -> object:
        return read_text_weights(data)


class Safetensors(Reader):
    name = "safetensors"

    @cached_property
    def samples(self) -> list[bytes]:
        arrays = {"w": np.ones((2, 3), "float32"), "empty": np.ones(0), "b": np.ones(3, bool)}
        return [b"".join(pack_weights(arrays, {"format": "pt"}))]

    def damaged(self, random: Random, sample: bytes) -> bytes:
        end = LENGTH.size + LENGTH.unpack_from(sample)[0]
        root = damaged_tree(random, json.loads(sample[LENGTH.size : end]), ("F32", "BOOL", "BF16"))
        header = json_bytes(root)
        return LENGTH.pack(len(header)) + header + sample[end:]

    def read(self, data: bytes) -> object:
        return read_weights(data)


class Checkpoint(Safetensors):
    name = "checkpoint"

    @cached_property
    def samples(self) -> list[bytes]:
        folder = pl.Checkpoints("sound")
        folder.save(1, {"w": np.ones((2, 3), "float32"), "step": np.array(1)}, {"epoch": 1})
        return [path.read_bytes() for path in Path("sound").iterdir()]

    def damaged(self, random: Random, sample: bytes) -> bytes:
        data = bytearray(super().damaged(random, sample))
        place = checkpoints._PLACE
        data[place] = b"0" * 8
        data[place] = f"{zlib.crc32(data):08x}".encode()
        return bytes(data)

    def read(self, data: bytes) -> object:
        Path("step-00000001.safetensors").write_bytes(data)
        return pl.Checkpoints(".").load(1)


class Shards(Reader):
    name = "shards"

    @cached_property
    def samples(self) -> list[bytes]:
        for name in ("a", "b"):
            pl.save_weights({name: np.ones(2)}, f"{name}.safetensors")
        places = {"a": "a.safetensors", "b": "b.safetensors"}
        return [json_bytes({"metadata": {"total_size": 32}, "weight_map": places})]

    def damaged(self, random: Random, sample: bytes) -> bytes:
        return json_bytes(
            damaged_tree(random, json.loads(sample), ("a.safetensors", "/etc/passwd"))
        )

    def read(self, data: bytes) -> object:
        Path("m.safetensors.index.json").write_bytes(data)
        return pl.load_weights("m.safetensors.index.json")


class Blocks(Reader):
    name = "blocks"

    @cached_property
    def samples(self) -> list[bytes]:
        rows = [f"b{i},{i},{i + 3},{(i % 3 + 1) * 64}" for i in range(8)]
        return ["\n".join(["# blocks", "id,lower,upper,size", *rows, ""]).encode()]

    def damaged(self, random: Random, sample: bytes) -> bytes:
        return damaged_text(random, sample.decode(), ("lower", '"', "1e3")).encode(
            "utf-8", "replace"
        )

    def read(self, data: bytes) -> object:
        return read_table(data.decode(errors="replace"), "blocks.csv")


class Costs(Reader):
    name = "costs"

    @cached_property
    def graph(self) -> pl.Graph:
        b = pl.GraphBuilder("costed")
        h = b.op("Relu", b.input("x", "float32", (8,)), name="first")
        b.output("y", b.op("Neg", h, name="second"))
        return b.build()

    @cached_property
    def samples(self) -> list[bytes]:
        plan = pl.plan(self.graph, ["cpu", "sim:a"])
        with pl.BlockingSession(plan, measure=True) as session:
            session.run({"x": np.ones(8, "float32")})
            measured = pl.Costs.from_profile(session.profile(), plan)
        return [json_bytes(encode(plan.costs.merged(measured)))]

    def damaged(self, random: Random, sample: bytes) -> bytes:
        return json_bytes(damaged_tree(random, json.loads(sample), ("cpu", "sim:a", "Relu")))

    def read(self, data: bytes) -> object:
        costs = pl.Costs(**vars(decode(data, "costs.json")))
        return pl.simulate(pl.plan(self.graph, ["sim:a", "cpu"], costs=costs), items=2)


class Rules(Reader):
    name = "rules"

    @cached_property
    def graph(self) -> pl.Graph:
        b = pl.GraphBuilder("replaced")
        h = b.op("Elu", b.input("x", "float32", (2, 3)), alpha=0.5)
        b.output("y", b.op("Elu", b.input("z", "float32", ("n", 3)), name="other"))
        b.output("h", b.op("Neg", h))
        return b.build()

    @cached_property
    def samples(self) -> list[bytes]:
        rule = {
            "cond": ["self.ins[x].dims[1] > 1 && len(self.ins) == 1", "self.params[alpha] < 2"],
            "replace": ["Exp e", "Sub s", "Mul m", "Max n"],
            "details": [
                "e.ins[0] = self.ins[x]",
                "s.ins[a] = e.outs[0]",
                "s.ins[b] = 1",
                "m.ins[0] = s.outs[0]",
                "m.ins[1] = self.params[alpha]",
                "n.ins[0] = m.outs[0]",
                "n.ins[1] = self.ins[x]",
                "n.outs[0] = self.outs[0]",
            ],
        }
        return [json_bytes({"ops": [{"optype": "Elu", "rules": [rule, {"replace": ["Relu"]}]}]})]

    def damaged(self, random: Random, sample: bytes) -> bytes:
        root = json.loads(sample)
        words = ("&&", "!", "(", "]", "self.params[alpha]", "**", "1e400", "%", "null", "Elu")
        lines = random.choice(list(root["ops"][0]["rules"][0].values()))
        place = random.randrange(len(lines))
        lines[place] = damaged_text(random, lines[place], words)
        return json_bytes(damaged_tree(random, root) if random.random() < 0.4 else root)

    def read(self, data: bytes) -> object:
        return check(formats.load_rules(data)(self.graph, allow_any))


class Wire(Reader):
    name = "wire"

    @cached_property
    def samples(self) -> list[bytes]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            for message in (
                Hello("1"),
                WorkerRequest("bind", 3, 4),
                Done(1, 2, 3, b"12345678", None),
            ):
                Channel(ours).send(message)
            return [theirs.recv(1 << 16)]

    def read(self, data: bytes) -> object:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.sendall(data)
            ours.shutdown(socket.SHUT_WR)
            channel = Channel(theirs, takes_fds=True)
            kinds: tuple[Any, ...] = (Hello, WorkerRequest, Done)
            return [channel.receive(kind) for kind in kinds]


READERS: dict[str, type[Reader]] = {
    kind.name: kind
    for kind in (
        Onnx, Native, Plan, CvmSymbol, CvmParameters, LightNet, LightNetText, LightNetWeights,
        Safetensors, Checkpoint, Shards, Blocks, Costs, Rules, Wire,
    )
}  # fmt: skip
