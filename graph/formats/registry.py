"""File formats of other packages, beside those that plait has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ..check import check
from ..errors import GraphError, ParseError, PlaitError, is_ctrl_c, named_text
from ..installed import FORMATS, load, offered
from ..ir import Graph
from .container import GRAPHS, PLANS
from .files import replace_file

Read: TypeAlias = Callable[[memoryview, Path | None], Graph]
Write: TypeAlias = Callable[[Graph], bytes | Iterable[bytes]]

_SHORTEST, LONGEST_MAGIC = 4, 64

BUILT_IN = {
    "plait": (".plait",),
    "onnx": (".onnx",),
    "lightnet": (".json", ".net"),
    "cvm": (),
}
"""The names of plait's own formats of graphs, and the suffixes by which they are written."""

_TAKEN = frozenset({suffix for known in BUILT_IN.values() for suffix in known}) | {
    ".safetensors",
    ".plan",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    r"""A file format of graphs.

    Attributes
    ----------
    name : str
        What ``load(source, format=name)`` calls it.
    suffixes : tuple of str
        With which names of its files end: ``(".acme",)``.
    magic : bytes
        With which its files begin, if they do; 4 to 64 bytes. What it says goes before the suffix.
    read : callable, optional
        Makes a graph of a file's bytes, a memoryview, and of its path, None where there is none.
    write : callable, optional
        Makes the bytes of a file, or parts of them in order, of a graph.

    Raises
    ------
    GraphError
        If one of these is not what it has to be.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.graph.formats import dump_bytes, load_bytes, unregister_format
    >>> def read(data, path):
    ...     return load_bytes(bytes(data[4:])[::-1])
    >>> def write(graph):
    ...     return b"back", dump_bytes(graph)[::-1]
    >>> pl.register_format(pl.Format(name="back", magic=b"back", read=read, write=write))
    >>> b = pl.GraphBuilder("double")
    >>> x = b.input("x", "float32", (2,))
    >>> b.output("y", b.op("Add", x, x))
    >>> pl.load(b"".join(write(b.build()))).name
    'double'
    >>> unregister_format("back")
    """

    name: str
    suffixes: tuple[str, ...] = ()
    magic: bytes = b""
    read: Read | None = None
    write: Write | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise GraphError(f"{self.name!r} is no name of a format", fix="use some text")
        at = f"format {self.name!r}"
        if not isinstance(self.suffixes, tuple) or not all(map(_is_suffix, self.suffixes)):
            raise GraphError(
                f"the suffixes are {self.suffixes!r}",
                at=at,
                fix='give a tuple of text that begins with a dot: (".acme",)',
            )
        if not isinstance(self.magic, bytes) or (
            self.magic and not _SHORTEST <= len(self.magic) <= LONGEST_MAGIC
        ):
            raise GraphError(
                f"the magic is {self.magic!r}",
                at=at,
                fix=f"give {_SHORTEST} to {LONGEST_MAGIC} bytes",
            )
        if self.read is None and self.write is None:
            raise GraphError(
                "it is neither read nor written", at=at, fix="pass read=, write=, or both"
            )
        for what, function in (("read", self.read), ("write", self.write)):
            if function is not None and not callable(function):
                raise GraphError(f"{what} is {function!r}", at=at, fix="pass a function")

    def load(self, data: memoryview, path: Path | None, at: str) -> Graph:
        """Return the graph in a file's bytes.

        Raises
        ------
        ParseError, GraphError
            If there is none, or the reader fails.
        """
        if self.read is None:
            raise ParseError(f"files of format {self.name!r} are only written", at=at)
        try:
            made = self.read(data, path)
        except PlaitError:
            raise
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            raise ParseError(
                f"the reader of format {self.name!r} fails: {named_text(error)}",
                at=at,
                fix="correct the file, or the reader",
            ) from error
        if not isinstance(made, Graph):
            raise ParseError(
                f"the reader of format {self.name!r} made a {type(made).__name__} of it",
                at=at,
                fix="let it return a graph",
            )
        return check(made)

    def save(self, graph: Graph, path: Path) -> None:
        """Write a graph to a file, wholly or not at all.

        Raises
        ------
        GraphError
            If it breaks an invariant, the writer fails, or the file cannot be written.
        """
        if self.write is None:
            raise GraphError(f"files of format {self.name!r} are only read", at=str(path))
        try:
            made = self.write(check(graph))
            parts = [made] if isinstance(made, bytes | bytearray | memoryview) else list(made)
            chunks = [memoryview(part).cast("B") for part in parts]
        except PlaitError:
            raise
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            raise GraphError(
                f"the writer of format {self.name!r} fails: {named_text(error)}",
                at=str(path),
                fix="choose another format, or correct the writer: it returns bytes",
            ) from error
        replace_file(path, chunks)


_formats: dict[str, Format] = {}


def register_format(format: Format) -> None:
    """Let `load` and `save` know a file format.

    Raises
    ------
    GraphError
        If its name, a suffix or its magic is taken.
    """
    if not isinstance(format, Format):
        raise GraphError(f"a {type(format).__name__} is no format", fix="pass a plait.Format")
    at = f"format {format.name!r}"
    if format.name in BUILT_IN or format.name in _formats:
        raise GraphError("the name is taken", at=at, fix="choose another one")
    taken = _TAKEN.union(*(known.suffixes for known in _formats.values()))
    for suffix in format.suffixes:
        if suffix in taken:
            raise GraphError(f"the suffix {suffix} is taken", at=at, fix="choose another one")
    for magic in (GRAPHS.magic, PLANS.magic, *(known.magic for known in _formats.values())):
        if (
            format.magic
            and magic
            and (format.magic.startswith(magic) or magic.startswith(format.magic))
        ):
            raise GraphError(
                f"files of another format begin with {magic!r}", at=at, fix="choose another magic"
            )
    _formats[format.name] = format


def unregister_format(name: str) -> None:
    """Remove a format that was registered; GraphError for others."""
    if name not in _formats:
        raise GraphError(f"there is no format {name!r} to remove", fix=_known())
    del _formats[name]


def format_named(name: object) -> Format | None:
    """Return the registered or installed format of a name; None for one of plait's own.

    Raises
    ------
    ParseError
        If there is none.
    """
    if isinstance(name, str):
        if name in BUILT_IN:
            return None
        if found := _formats.get(name) or _installed(name):
            return found
    raise ParseError(f"there is no format {name!r}", fix=_known())


def format_of(head: memoryview | bytes, suffix: str) -> Format | None:
    """Return the registered or installed format of a file; None if it is none of them."""
    for known in _formats.values():
        if known.magic and bytes(head[: len(known.magic)]) == known.magic:
            return known
    return format_for(suffix)


def format_for(suffix: str) -> Format | None:
    """Return the registered or installed format of a suffix; None if there is none."""
    if not suffix or suffix in _TAKEN:
        return None
    named = (known for known in _formats.values() if suffix in known.suffixes)
    return next(named, None) or _installed(suffix[1:])


def written_suffixes() -> list[str]:
    """Return the suffixes by which graphs are written."""
    own = [suffix for known in BUILT_IN.values() for suffix in known]
    written = (known.suffixes for known in _formats.values() if known.write is not None)
    return [*own, *(suffix for suffixes in written for suffix in suffixes)]


def _installed(name: str) -> Format | None:
    """Return the format that a package offers under a name, or a suffix without its dot."""
    found = load(FORMATS, name, ParseError)
    if found is None:
        return None
    if not isinstance(found, Format) or (name != found.name and f".{name}" not in found.suffixes):
        raise ParseError(
            f"an installed package offers {found!r} as format {name!r}",
            fix="let its entry point name a plait.Format of that name or suffix",
        )
    if found.name not in _formats:
        register_format(found)
    return _formats[found.name]


def _known() -> str:
    return f"known are {', '.join((*BUILT_IN, *_formats, *offered(FORMATS)))}"


def _is_suffix(value: object) -> bool:
    return isinstance(value, str) and value == Path(f"x{value}").suffix != ""
