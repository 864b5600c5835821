"""Graphs for people: a listing to read, and a drawing for Graphviz."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import islice
from typing import Any

from ..values.errors import GraphError, escape_unprintable, join_lines
from ..values.tensor import Array
from .ir import Graph, Node
from .operator import is_operator

SHOWN_LINES = 60
"""Limit of a graph's lines in a notebook."""

SHOWN_ELEMENTS = 6
"""How much of a constant or a sequence is printed."""

COLOURS = ("#cfe8fc", "#fde3c4", "#d3f0dc", "#f8d3d8", "#e6dbf5", "#fbf3c0", "#d9dee3", "#c9f0ee")
"""Fills of the groups in a drawing, repeated when they run out; black text is legible on each."""


def to_text(graph: Graph) -> str:
    """Return a listing of `graph`: one line per input, constant, node and output.

    Attributes are shown where they differ from their defaults, constants by their first elements.

    Examples
    --------
    >>> import plait as pl
    >>> b = pl.GraphBuilder("affine")
    >>> x = b.input("x", "float32", ("batch", 2))
    >>> b.output("y", b.op("Add", x, 1.0, name="shift"))
    >>> print(b.build())
    graph 'affine': 1 node, 1 constant of 4 bytes
      input     x: float32[batch, 2]
      constant  constant.1: float32[] = 1
      y: float32[batch, 2] = Add(x, constant.1)  # shift
      output    y
    """
    return join_lines(_list_lines(graph))


def to_html(graph: Graph) -> str:
    """Return the first lines of the listing of `graph` as markup."""
    lines = list(islice(_list_lines(graph), SHOWN_LINES + 1))
    # Counted, as listing all lines of a large graph to leave most of them out would take seconds.
    left = len(graph.nodes) + len(graph.constants) + len(graph.inputs) + len(graph.outputs) + 1
    # One more line was read than is shown, to see whether there are more.
    if len(lines) > SHOWN_LINES:
        lines[SHOWN_LINES:] = [f"  ... {left - SHOWN_LINES:,} more lines: print(graph)"]
    return f"<pre>{escape(join_lines(lines))}</pre>"


def to_dot(graph: Graph, groups: Mapping[str, str] | None = None) -> str:
    r"""Return a drawing in the DOT language of Graphviz.

    Constants are written into the nodes that read them.

    Parameters
    ----------
    graph : Graph
    groups : Mapping of str to str, optional
        The group, such as a device, of each node by its name; a group gets a box and a colour.
        Nodes without one stay outside.

    Raises
    ------
    GraphError
        If a group is given for a node that is not there.

    Examples
    --------
    >>> import plait as pl
    >>> b = pl.GraphBuilder("relu")
    >>> b.output("y", b.op("Relu", b.input("x", "float32", (2,)), name="relu"))
    >>> print(pl.to_dot(b.build()).rstrip())
    digraph "relu" {
      node [shape=box, style="filled,rounded", fillcolor=white, fontname="sans-serif"];
      edge [fontname="sans-serif", fontsize=10];
      in0 [label="x\nfloat32[2]", shape=oval];
      out0 [label="y\nfloat32[2]", shape=oval, peripheries=2];
      n0 [label="Relu\nrelu"];
      in0 -> n0 [label="float32[2]", tooltip="x"];
      n0 -> out0 [label="float32[2]", tooltip="y"];
    }
    """
    groups = groups or {}
    names = {node.name for node in graph.nodes}
    strange = [repr(name) for name in groups if name not in names]
    if strange:
        listed = list_some(strange, SHOWN_ELEMENTS)
        raise GraphError(
            f"groups are given for nodes that are not in the graph: {listed}",
            at=graph.name,
            fix="use the names of graph.nodes",
        )
    lines = [
        f"digraph {_quote(graph.name)} {{",
        '  node [shape=box, style="filled,rounded", fillcolor=white, fontname="sans-serif"];',
        '  edge [fontname="sans-serif", fontsize=10];',
        *_draw_terminals(graph),
        *_draw_boxes(graph, groups),
        *_draw_arrows(graph),
        "}",
    ]
    return "\n".join(lines) + "\n"


def format_bytes(nbytes: float) -> str:
    """Describe `nbytes` bytes: ``"36.8 KB"``."""
    if nbytes < 1000:
        return format_count(int(nbytes), "byte")
    for unit in ("KB", "MB", "GB", "TB"):  # noqa: B007 - the last one stays
        nbytes /= 1000
        if nbytes < 1000:
            break
    return f"{nbytes:.3g} {unit}"


def format_seconds(seconds: float | None) -> str:
    """Describe `seconds`: ``"1.25 ms"``, or ``"-"`` for None."""
    if seconds is None:
        return "-"
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns" if seconds else "0 s"


def rate_text(per_second: float) -> str:
    """Describe a rate of `per_second` items: ``"1,850 items/s"``."""
    # Rounded before it is compared: 99.96 is 100 with three digits.
    rounded = float(f"{per_second:.3g}")
    return f"{rounded:,.0f} items/s" if rounded >= 100 else f"{rounded:g} items/s"


def _list_lines(graph: Graph) -> Iterator[str]:
    total = sum(array.nbytes for array in graph.constants.values())
    summary = [format_count(len(graph.nodes), "node")]
    if graph.constants:
        summary.append(f"{format_count(len(graph.constants), 'constant')} of {format_bytes(total)}")
    yield f"graph {graph.name!r}: {', '.join(summary)}"
    for name in graph.inputs:
        yield f"  input     {name}: {graph.tensors[name]}"
    for name, array in graph.constants.items():
        yield f"  constant  {name}: {graph.tensors[name]} = {_format_elements(array)}"
    for name in sorted(graph.prepared):
        yield f"  prepared  {name}: {graph.tensors[name]}"
    for node in graph.nodes:
        yield f"  {_describe_node(graph, node)}"
    for name in graph.outputs:
        yield f"  output    {name}"


def _describe_node(graph: Graph, node: Node) -> str:
    left = ", ".join(f"{name}: {graph.tensors[name]}" if name else "-" for name in node.outputs)
    arguments = [name or "-" for name in node.inputs]
    arguments += attribute_texts(node)
    note = "" if node.outputs == (node.name,) else f"  # {node.name}"
    return f"{left or '-'} = {node.op}({', '.join(arguments)}){note}"


def attribute_texts(node: Node) -> list[str]:
    """Return the attributes of `node` that differ from their defaults: ``axis=0``."""
    return [f"{name}={_format_value(value)}" for name, value in _list_attributes(node)]


def _list_attributes(node: Node) -> Iterator[tuple[str, Any]]:
    # Graphs are printed to find errors: the operator may be missing.
    known = node.operator.attributes if is_operator(node.op) else {}
    for name, value in node.attributes.items():
        if name not in known or known[name].default != value:
            yield name, value


def _format_value(value: Any) -> str:
    if isinstance(value, Graph):
        return f"<{value.name}: {format_count(len(value.nodes), 'node')}>"
    if isinstance(value, tuple | list):
        return f"[{list_some([*map(_format_value, value)], SHOWN_ELEMENTS)}]"
    return f"{value:g}" if isinstance(value, float) else repr(value)


def _format_elements(array: Array) -> str:
    """Format the first elements of `array`; most of a large constant is not read from disk."""
    shown = [_format_element(value) for value in array.flat[:SHOWN_ELEMENTS].tolist()]
    if array.ndim == 0:
        return shown[0]
    return f"[{', '.join(shown)}{', ...' if array.size > SHOWN_ELEMENTS else ''}]"


def _format_element(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float | complex) else str(value)


def _draw_terminals(graph: Graph) -> Iterator[str]:
    for index, name in enumerate(graph.inputs):
        label = _quote(f"{name}\n{graph.tensors[name]}")
        yield f"  in{index} [label={label}, shape=oval];"
    for index, name in enumerate(graph.outputs):
        label = _quote(f"{name}\n{graph.tensors[name]}")
        yield f"  out{index} [label={label}, shape=oval, peripheries=2];"


def _draw_boxes(graph: Graph, groups: Mapping[str, str]) -> Iterator[str]:
    members: dict[str | None, list[str]] = {None: []}
    for index, node in enumerate(graph.nodes):
        box = f"n{index} [label={_quote(_label_node(graph, node))}"
        members.setdefault(groups.get(node.name), []).append(box)
    # Those of no group stand outside of all clusters.
    yield from (f"  {box}];" for box in members.pop(None))
    for index, (group, boxes) in enumerate(members.items()):
        colour = COLOURS[index % len(COLOURS)]
        yield f"  subgraph cluster_{index} {{"
        yield f'    label={_quote(str(group))}; style="rounded"; fontname="sans-serif";'
        yield from (f'    {box}, fillcolor="{colour}"];' for box in boxes)
        yield "  }"


def _label_node(graph: Graph, node: Node) -> str:
    read = dict.fromkeys(name for name in node.inputs if name in graph.constants)
    constants = [f"{name}: {graph.tensors[name]}" for name in read]
    return "\n".join([node.op, node.name, *constants])


def _draw_arrows(graph: Graph) -> Iterator[str]:
    source = {name: f"in{index}" for index, name in enumerate(graph.inputs)}
    for index, node in enumerate(graph.nodes):
        source.update({name: f"n{index}" for name in node.outputs if name})
    for index, node in enumerate(graph.nodes):
        # An arrow for a tensor, however often the node reads it.
        for name in dict.fromkeys(node.inputs):
            if name in source:
                yield _draw_arrow(graph, source[name], f"n{index}", name)
    for index, name in enumerate(graph.outputs):
        if name in source:
            yield _draw_arrow(graph, source[name], f"out{index}", name)


def _draw_arrow(graph: Graph, source: str, target: str, name: str) -> str:
    label, tip = _quote(str(graph.tensors[name])), _quote(name)
    return f"  {source} -> {target} [label={label}, tooltip={tip}];"


def _quote(text: str) -> str:
    r"""Return `text` as a DOT string; `\` starts an escape in labels, so it is doubled first."""
    escaped = (
        escape_unprintable(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    )
    return f'"{escaped}"'


def format_count(count: int, noun: str) -> str:
    """Return `count` and its `noun`: ``"1 node"``, ``"2 nodes"``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def list_some(names: Sequence[str], most: int) -> str:
    """Join the first `names`, at most as many as `most`, and end with dots if there are more."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
