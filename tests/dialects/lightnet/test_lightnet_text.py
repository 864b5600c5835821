"""LightNet's text form: macros, statements, formulas; and graphs written in it."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import plait as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.dialects.lightnet import macros
from plait.dialects.lightnet.load import load_lightnet
from plait.dialects.lightnet.macros import preprocess
from plait.dialects.lightnet.text_form import read_text, write_text
from plait.dialects.lightnet.writer import dump_lightnet

X = "create(| dst=x | dtype=TL_FLOAT, dims=[2, 3], ran=[0, 1], data=[0], from_file=false);\n"

NET = """
#define DTYPE TL_FLOAT  // all of it
#define SIDE 3          /* of a
                           window */
#define conv 0
#undef conv
#define conv(in, out, in_c, out_c, group_)                                 \\
    create(| dst=out##_w | dtype=DTYPE, ran=[0, 0], data=[0], from_file=true, \\
           dims=[out_c, ${eval in_c/group_}, SIDE, SIDE]);                   \\
    create(| dst=out##_b | dtype=DTYPE, dims=[out_c], ran=[0, 0],            \\
           data=[0], from_file=true);                                      \\
    conv2d(src=in, weight=out##_w, bias=out##_b | dst=out | group=group_,  \\
           size=[SIDE, SIDE], stride=[1, 1], padding=[1, 1, 1, 1],         \\
           autopad="NOTSET", dilation=[1, 1])
#define conv_relu(in, out, in_c, out_c, group_)  \\
    conv(in, out##_conv, in_c, out_c, group_);   \\
    relu(src=out##_conv | dst=out |)

create(| dst=x | dtype=DTYPE, dims=[1, 4, 5, 5], ran=[0, 1], data=[0], from_file=false);
conv_relu(x, hidden, 4,
          ${eval 2 * (1 + 2)}, 2);
// conv_relu(hidden, more, 6, 6, 1);
conv_relu(hidden, y, 6, 2, 1);
"""


def words(text: str) -> str:
    return " ".join(token.text for token in preprocess(text, "here"))


def test_a_net_of_macros_is_the_graph_that_they_write() -> None:
    graph = load_lightnet(NET.encode())
    assert [node.name for node in graph.nodes] == ["conv2d0", "relu0", "conv2d1", "relu1"]
    assert graph.tensors["hidden_conv_w"].shape == (6, 2, 3, 3)
    assert graph.tensors["y"].shape == (1, 2, 5, 5)
    assert "x" in graph.inputs


def test_it_is_what_json_says() -> None:
    ops = read_text(NET, "here")
    assert load_lightnet(json.dumps({"ops": ops}).encode()) == load_lightnet(NET.encode())


# The wanted words are what `gcc -E` writes.
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("#define A B\n#define B A\nA B", "A B"),
        ("#define C f\n#define f(x) [x]\nC(3) f f (4) f()", "[ 3 ] f [ 4 ] [ ]"),
        ("#define f(a, b) x a##b a ## _c ## b\nf(, q) f(p, )", "x q _cq x p p_c"),
        ("#define f(x, y) x##_w = y + x\nf(g, f(a, b))", "g_w = a_w = b + a + g"),
        ("#define A 1\n#define f(x) x x##A\nf(A)", "1 AA"),
        ("#define f(x) x\nf((1, 2)) f(f(3))", "( 1 , 2 ) 3"),
        ("#define A 1 \\\n  2\nA \\\nA", "1 2 1 2"),
        ('#define A 1\n"A // A" A // A', '"A // A" 1'),
        ("#define g() 7\ng() g ( ) g", "7 7 g"),
        ("A\n#define A 1\nA\n#undef A\nA", "A 1 A"),
        ('# 7 "net.net" 2\nA\r\n#\r\nB', "A B"),
    ],
)
def test_macros_are_those_of_c(text: str, wanted: str) -> None:
    assert words(text) == wanted


DOUBLED = "#define f(a) a##a\n#define g(a) f(a)\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("#include <a>", "#include is not known"),
        ("\n#ifdef A\n#endif", "#ifdef is not known"),
        ("#define", "names nothing"),
        ("#define f(a, a) a", "are not names"),
        ("#define f(...) a", "are not names"),
        ("#define f(a) #a", "makes strings"),
        ("#define f(a) a ##", "## stands at an end"),
        ("#define f(a) +##a\nf(b)", "do not make one word"),
        ("#define f(a) a\nf(1, 2)", "takes 1 arguments, not 2"),
        ("#define f(a) a\nf(1", "has no end"),
        ("#define f(a) a\nf(\n#define A\n1)", "has no end"),
        ("".join(f"#define A{i} A{i + 1}\n" for i in range(400)) + "A0", "200 deep"),
        ("#define f(a) a\n" + "x " * 9000 + "f(" * 500 + ")" * 500, "too deeply"),
        ("#define f(a) a\n" + "f(" * 700 + ")" * 700, "macros write more than a text of"),
        (DOUBLED + "g(" * 30 + "a" + ")" * 30, "a word of 1024 characters"),
    ],
)
def test_macros_that_are_wrong_are_named(text: str, complaint: str) -> None:
    with pytest.raises(pl.ParseError, match=complaint) as caught:
        preprocess(text, "here")
    assert caught.value.fix == "run C's preprocessor over it first: gcc -E -P -x c FILE"


DOUBLING = "".join(f"#define A{i} A{i + 1} A{i + 1}\n" for i in range(40))
EMPTY = "#define f(x) " + "x " * 40 + "\n"
CHAIN = "".join(f"#define C{i} C{i + 1}\n" for i in range(150))
MANY = "#define C150 " + " ".join(f"D{i}" for i in range(90)) + "\n"
MANY += "".join(f"#define D{i} x\n" for i in range(90))


@pytest.mark.parametrize(
    "text",
    [
        DOUBLING + "A0",
        EMPTY + "f() " * 300,  # nothing, 12,000 times
        CHAIN + MANY + "C0",  # each word would hold the names of 150 macros, in a set of its own
    ],
    ids=["doubled", "nothing", "sets"],
)
def test_macros_without_end_are_stopped(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(macros, "MOST_WORK", 10_000)
    with pytest.raises(pl.ParseError, match="macros write more than a text of this length may"):
        preprocess(text, "here")


def test_an_argument_is_expanded_once_however_often_a_macro_writes_it() -> None:
    assert words("#define f(x) x x x x\n" + "f(" * 5 + "y" + ")" * 5) == " ".join("y" * 4**5)
    assert words(EMPTY + "f(" * 200 + ")" * 200) == ""


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ("relu(src=x)", r"'\)' stands where '\|' should"),
        ("relu(src=x | dst=y |", "breaks off"),
        ("relu src", "'src' stands where '\\(' should"),
        ("1(||)", "'1' stands where a name should"),
        ("relu(src=[1] | dst=y |)", "'\\[' stands where a name should"),
        ("relu(src=x | dst=y |) relu(||)", "'relu' stands where ';' should"),
        ("lrelu(src=x | dst=y | negslope=%)", "'%' is not a value"),
        ("lrelu(src=x | dst=y | negslope=$1)", "'1' stands where '{' should"),
        ("lrelu(src=x | dst=y | negslope=${run 1})", "only"),
        ("lrelu(src=x | dst=y | negslope=${eval f})", "'f' is not a number: no code is run"),
        ("lrelu(src=x | dst=y | negslope=${eval 1 < 2})", "is not a number"),
        ("lrelu(src=x | dst=y | negslope=${eval 1e300 * 1e300})", "is not a number"),
        ("lrelu(src=x | dst=y | negslope=${eval system(1)})", "out of place"),
        ("relu(src=x, src=x | dst=y |)", "'src' is given twice"),
        ("relu(src=x | dst=y |) /* ReLU", "a comment has no end"),
        ("relu(src=x | dst=y |) /*/", "a comment has no end"),
        ('conv2d(src=x | dst=y | autopad="VALID)', "is not a value"),
        ("lrelu(|| negslope=" + "${eval " * 5000 + "1" + "}" * 5000 + ")", "more than 30 deep"),
    ],
)
def test_statements_that_are_wrong_are_named(statement: str, complaint: str) -> None:
    with pytest.raises(pl.ParseError, match=complaint):
        load_lightnet((X + statement).encode())


@pytest.mark.parametrize("piece", ["/* ", '\\"', '"\\'])
@pytest.mark.parametrize("start", ["[", "f("])
def test_what_has_no_end_is_looked_for_once(start: str, piece: str) -> None:
    text = start + '"' * piece.startswith("\\") + piece * 100_000  # hours, if from each piece anew
    with pytest.raises(pl.ParseError):
        load_lightnet(text.encode())


def test_an_error_tells_the_line_of_the_call_that_wrote_it() -> None:
    with pytest.raises(pl.ParseError) as caught:
        load_lightnet(b"#define f(a) \\\n relu(a)\n\nf(x);")
    assert caught.value.at == "line 4, model"


def test_values_are_numbers_words_strings_and_arrays() -> None:
    (op,) = read_text('f(|| a=-2, b=+.5e1, c="d, e;", g=h, i=[1, -2,], j=true, k=null,);;', "here")
    values = {one["arg_name"]: one["value"] for one in op["params"]}
    assert values.pop("i") == [1, -2]
    assert values == {"a": -2, "b": 5.0, "c": "d, e;", "g": "h", "j": True, "k": None}


def test_evaluated_formulas_nest() -> None:
    text = "#define A ${eval 1 + 1}\nf(|| a=${eval A * 3}, b=[${eval 7 / 2}])"
    (op,) = read_text(text, "here")
    assert [one["value"] for one in op["params"]] == [6, [3.5]]


names = st.text("abc_0", min_size=1, max_size=4).map("n{}".format)
scalars = st.one_of(
    st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), names, st.none()
)
operators = st.builds(
    lambda optype, inputs, outputs, parameters: {
        "name": "",
        "optype": optype,
        "tensors_in": [{"arg_name": a, "name": n} for a, n in inputs.items()],
        "tensors_out": [{"arg_name": a, "name": n} for a, n in outputs.items()],
        "params": [{"arg_name": a, "value": v} for a, v in parameters.items()],
    },
    names,
    st.dictionaries(names, names, max_size=3),
    st.dictionaries(names, names, max_size=3),
    st.dictionaries(names, scalars | st.lists(scalars, max_size=3), max_size=3),
)


@given(st.lists(operators, max_size=3))
def test_what_is_written_reads_back(ops: list[dict[str, object]]) -> None:
    read = read_text(write_text(ops).decode(), "here")
    assert [{**op, "name": ""} for op in read] == ops


@given(st.text('#define fab(),;|=[]${}"\\\n/* 10.e-#', max_size=60))
def test_any_text_is_understood_or_refused(text: str) -> None:
    with suppress(pl.PlaitError):
        load_lightnet((X + text).encode())


def network(hidden: str, output: str = "y") -> pl.Graph:
    b = pl.GraphBuilder("net")
    x = b.input("x", "float32", (1, 2, 4, 4))
    weights = np.arange(18, dtype=np.float32).reshape(1, 2, 3, 3)
    bias = b.constant(np.ones(1, np.float32), "the bias")
    (h,) = b.op("Conv", x, weights, bias, outputs=[hidden])
    b.output(output, b.op("Relu", h, outputs=[output])[0])
    return b.build()


@pytest.mark.parametrize("hidden", ["h", "block/1.h", "the_bias", "2nd"])
def test_inner_tensors_get_names_that_the_form_has(hidden: str) -> None:
    graph = network(hidden)
    again = load_lightnet(*dump_lightnet(graph, as_text=True))
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 2, 4, 4)).astype(np.float32)}
    np.testing.assert_array_equal(pl.run(again, feeds)["y"], pl.run(graph, feeds)["y"])
    assert hidden in again.tensors or not hidden.isidentifier()


def test_what_is_fetched_keeps_its_name_or_is_refused() -> None:
    with pytest.raises(pl.GraphError, match="'out/y' is not a name in LightNet's text form"):
        dump_lightnet(network("h", "out/y"), as_text=True)


def test_save_and_load_go_by_the_suffix(tmp_path: Path) -> None:
    graph = network("h")
    pl.save(graph, tmp_path / "net.net")
    assert (tmp_path / "net.net").read_text().startswith("create(| dst=x | ")
    again = pl.load(tmp_path / "net.net")
    feeds = {"x": np.ones((1, 2, 4, 4), np.float32)}
    np.testing.assert_array_equal(pl.run(again, feeds)["y"], pl.run(graph, feeds)["y"])


DECODER = """
#define SIDE 6
#define up(in, out, in_c, out_c, h, w)                                        \\
    create(| dst=out##_w | dtype=TL_FLOAT, dims=[in_c, ${eval out_c/1}, 2, 2], \\
           ran=[-1, 1], data=[0], from_file=false);                           \\
    create(| dst=out##_b | dtype=TL_FLOAT, dims=[out_c], ran=[0, 0], data=[0], from_file=false); \\
    deconv2d(src=in, weight=out##_w, bias=out##_b | dst=out##_sum |            \\
             group=1, size=[2, 2], stride=[2, 2], output_dims=[1, out_c, h, w],\\
             padding=[0, 0, 0, 0], output_padding=[0, 0], dilation=[1, 1],     \\
             autopad="SAME_UPPER");                                            \\
    relu(src=out##_sum | dst=out |);

create(| dst=x | dtype=TL_FLOAT, dims=[1, 2, SIDE, SIDE], ran=[0, 1], data=[0], from_file=true);
maxpool2d(src=x | dst=small | size=[2, 2], stride=[2, 2], padding=[0, 0, 0, 0],
          autopad="SAME_UPPER");
up(small, y, 2, 3, ${eval SIDE*2**0},
   ${eval SIDE * 2 * 2**-1});
slice(src=y | dst=middle | axis=2, start=${eval 3/2}, len=${eval SIDE/4});
"""


def test_networks_may_halve_by_powers_and_start_at_half_a_cell() -> None:
    """What networks of LightNet's own do: a decoder's lengths, a crop from the middle."""
    graph = load_lightnet(DECODER.encode())
    assert graph.tensors["y"].shape == (1, 3, 6, 6)
    assert graph.tensors["middle"].shape == (1, 3, 1, 6)
    x, w = np.random.default_rng(3).random((1, 2, 6, 6)), np.ones((2, 3, 2, 2))
    feeds = {"x": x.astype(np.float32), "y_w": w.astype(np.float32)}
    pooled = x.reshape(2, 3, 2, 3, 2).max((2, 4)).sum(0)
    wanted = np.repeat(np.repeat(pooled, 2, 0), 2, 1)[1:2]
    np.testing.assert_allclose(pl.run(graph, feeds)["middle"][0, 0], wanted, rtol=1e-6)
