"""The registry of file formats: those of plait's dialects and of other packages."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from ..core.check import check
from ..core.ir import Graph
from ..values.errors import GraphError, ParseError, PlaitError, describe_error, is_ctrl_c
from ..values.installed import FORMATS, find_offers, list_own, list_prefixes, load, load_own
from ..values.registry import Registry
from .container import GRAPHS, PLANS
from .files import open_file, read_file, replace_file

Bytes: TypeAlias = bytes | Iterable[bytes]
Read: TypeAlias = Callable[[memoryview, Path | None], Graph]
ReadWith: TypeAlias = Callable[[memoryview, Path | None, Path], Graph]
Write: TypeAlias = Callable[[Graph], Bytes]
ReadObject: TypeAlias = Callable[[Any], Graph]
WriteFiles: TypeAlias = Callable[[Graph, Path], Mapping[Path, Bytes]]
Sniff: TypeAlias = Callable[[BinaryIO], bool]

_SHORTEST, LONGEST_MAGIC = 4, 64

BUILT_IN = {"plait": (".plait",), "onnx": (".onnx",)}
"""Formats that are not registered: names, and suffixes of their files."""

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
        Its name in ``load(source, format=name)``.
    suffixes : tuple of str
        The suffixes of its files: ``(".acme",)``.
    magic : bytes
        The first bytes of its files, if fixed; 4 to 64 bytes. They take precedence over the suffix.
    sniff : callable, optional
        Returns whether a file, open for reading, has the format. It is called if no magic decides,
        before the suffix does; among several formats the last registered comes first.
    read : callable, optional
        Makes a graph from a file's bytes, a memoryview, and its path, or None without a path.
    read_with : callable, optional
        The same for ``load(source, parameters=path)``: the path is the third argument.
    objects : mapping of str to callable, optional
        For classes by their full names, ``"acme.models.Model"``, functions that make a graph from
        an object of the class or a subclass.
    write : callable, optional
        Makes the bytes of a file, or their parts in order, from a graph.
    write_files : callable, optional
        Instead of `write`, if there are several files: makes their paths and bytes from a graph and
        the path to save it to. They are written in order, each atomically.

    Raises
    ------
    GraphError
        If one of these is invalid.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.formats import dump_bytes, load_bytes, unregister_format
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
    sniff: Sniff | None = None
    read_with: ReadWith | None = None
    write_files: WriteFiles | None = None
    objects: Mapping[str, ReadObject] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise GraphError(f"{self.name!r} is not the name of a format", fix="use some text")
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
        if not (self.read or self.objects or self.is_written):
            raise GraphError(
                "it is neither read nor written", at=at, fix="pass read=, objects= or write="
            )
        if self.write is not None and self.write_files is not None:
            raise GraphError("it is written in two ways", at=at, fix="pass write= or write_files=")
        for what in ("read", "write", "sniff", "read_with", "write_files"):
            function = getattr(self, what)
            if function is not None and not callable(function):
                raise GraphError(f"{what} is {function!r}", at=at, fix="pass a function")
        if not isinstance(self.objects, Mapping) or not all(map(callable, self.objects.values())):
            raise GraphError(
                f"objects is {self.objects!r}",
                at=at,
                fix='map names of classes to functions: {"acme.models.Model": read}',
            )

    @property
    def is_written(self) -> bool:
        """True if graphs can be saved in it."""
        return self.write is not None or self.write_files is not None

    def sniffs(self, source: bytes | Path, at: str) -> bool:
        """Return whether `source`, a file or bytes, has the format by content; errors name it `at`.

        Raises
        ------
        ParseError
            If the file cannot be read, or `sniff` fails.
        """
        if self.sniff is None:
            return False
        try:
            if isinstance(source, bytes):
                return bool(self.sniff(io.BytesIO(source)))
            with open_file(source) as file:
                return bool(self.sniff(file))
        except PlaitError:
            raise
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            raise ParseError(
                f"sniff of format {self.name!r} fails: {describe_error(error)}",
                at=at,
                fix="pass format=, or correct the function",
            ) from error

    def load(
        self, source: bytes | Path, path: Path | None, at: str, parameters: Path | None = None
    ) -> Graph:
        """Return the graph in `source`, a file or its bytes; errors name it `at`.

        `path` is that of the file, if any; `parameters` is the path of a separate file with these.

        Raises
        ------
        ParseError, GraphError
            If there is none, or the reader fails.
        """
        if self.read is None:
            said = "only written" if self.is_written else "not read"
            raise ParseError(f"files of format {self.name!r} are {said}", at=at)
        if parameters is not None and self.read_with is None:
            raise no_parameters_error(self.name, at)
        data = memoryview(source) if isinstance(source, bytes) else read_file(at)
        if parameters is not None and self.read_with is not None:
            return self._graph(at, self.read_with, data, path, parameters)
        return self._graph(at, self.read, data, path)

    def load_object(self, source: object) -> Graph:
        """Return the graph in `source`, an object of one of the format's classes.

        Raises
        ------
        ParseError, GraphError
            If there is no reader, or it fails.
        """
        # By names: a format is registered without importing the package of the class.
        read = next(self.objects[name] for name in _name_classes(source) if name in self.objects)
        return self._graph(type(source).__name__, read, source)

    def _graph(self, at: str, read: Callable[..., Graph], *given: object) -> Graph:
        try:
            made = read(*given)
        except PlaitError:
            raise
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            raise ParseError(
                f"the reader of format {self.name!r} fails: {describe_error(error)}",
                at=at,
                fix="correct the file, or the reader",
            ) from error
        if not isinstance(made, Graph):
            raise ParseError(
                f"the reader of format {self.name!r} made a {type(made).__name__} of it",
                at=at,
                fix="let it return a graph",
            )
        # Foreign readers may build it without a builder.
        return check(made)

    def save(self, graph: Graph, path: Path) -> None:
        """Write `graph` to the file `path` and its companion files, each atomically.

        Raises
        ------
        GraphError
            If the graph breaks an invariant, the writer fails, or a file cannot be written.
        """
        if not self.is_written:
            raise GraphError(f"files of format {self.name!r} are only read", at=str(path))
        try:
            # All are made before writing: if a writer fails, the old files stay.
            files = [(file, _to_chunks(made)) for file, made in self._made(check(graph), path)]
        except PlaitError:
            raise
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            raise GraphError(
                f"the writer of format {self.name!r} fails: {describe_error(error)}",
                at=str(path),
                fix="choose another format, or correct the writer: it returns bytes",
            ) from error
        for file, chunks in files:
            replace_file(file, chunks)

    def _made(self, graph: Graph, path: Path) -> Iterable[tuple[Path, Bytes]]:
        if self.write_files is not None:
            return self.write_files(graph, path).items()
        assert self.write is not None
        return ((path, self.write(graph)),)


def no_parameters_error(name: str, at: str) -> ParseError:
    return ParseError(
        f"files of format {name!r} have no parameters in another file",
        at=at,
        fix="leave parameters out",
    )


def _to_chunks(made: Bytes) -> list[memoryview]:
    parts = [made] if isinstance(made, bytes | bytearray | memoryview) else list(made)
    return [memoryview(part).cast("B") for part in parts]


def _register_own() -> None:
    for format in load_own(FORMATS):
        _register(format)


def _taken_error(name: str) -> GraphError:
    return GraphError("the name is taken", at=f"format {name!r}", fix="choose another one")


_formats: Registry[str, Format] = Registry(_taken_error, own=_register_own)


def register_format(format: Format) -> None:
    """Register the file format `format` for `load` and `save`.

    Raises
    ------
    GraphError
        If its name, a suffix or its magic is taken.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.formats import dump_bytes, load_bytes, unregister_format
    >>> def read(data, path):
    ...     return load_bytes(bytes(data[4:]))
    >>> pl.register_format(pl.Format(name="boxed", magic=b"BOX1", read=read))
    >>> b = pl.GraphBuilder("relu")
    >>> b.output("y", b.op("Relu", b.input("x", "float32", (2,))))
    >>> pl.load(b"BOX1" + dump_bytes(b.build())).name
    'relu'
    >>> unregister_format("boxed")
    """
    if not isinstance(format, Format):
        raise GraphError(
            f"expected a format, got {type(format).__name__}", fix="pass a plait.Format"
        )
    _formats.import_own()
    _register(format)


def _register(format: Format) -> None:
    at = f"format {format.name!r}"
    if format.name in BUILT_IN or format.name in _formats:
        raise _taken_error(format.name)
    taken = _TAKEN.union(*(known.suffixes for known in _formats.values()))
    for suffix in format.suffixes:
        if suffix in taken:
            raise GraphError(f"the suffix {suffix} is taken", at=at, fix="choose another one")
    for magic in (GRAPHS.magic, PLANS.magic, *(known.magic for known in _formats.values())):
        # Where one magic begins with another, a file could be of both.
        if (
            format.magic
            and magic
            and (format.magic.startswith(magic) or magic.startswith(format.magic))
        ):
            raise GraphError(
                f"files of another format begin with {magic!r}", at=at, fix="choose another magic"
            )
    _formats.register(format.name, format)


def unregister_format(name: str) -> None:
    """Remove the registered format `name`; raises GraphError for others."""
    if name not in _formats or name in list_own(FORMATS):
        raise GraphError(f"there is no format {name!r} to remove", fix=_list_known())
    del _formats[name]


def find_format(name: object) -> Format | None:
    if isinstance(name, str):
        if name in BUILT_IN:
            return None
        if found := _formats.find(name) or _load_installed(name):
            return found
    raise ParseError(f"there is no format {name!r}", fix=_list_known())


def find_format_of_file(head: memoryview | bytes, suffix: str) -> Format | None:
    """Return the format with the magic in `head`, or of `suffix` if it does not sniff, or None."""
    for known in _formats.values():
        if known.magic and bytes(head[: len(known.magic)]) == known.magic:
            return known
    found = find_format_of_suffix(suffix)
    # One that sniffs shares its suffix with others: content decides later.
    return None if found is None or found.sniff is not None else found


def detect_format(source: bytes | Path, at: str, suffix: str) -> Format | None:
    """Return the format that accepts `source` by content, or that of `suffix`; errors name `at`."""
    # The latest first: its author knew the others.
    for known in reversed(_formats.all().values()):
        if known.sniffs(source, at):
            return known
    return find_format_of_suffix(suffix)


def find_format_of_suffix(suffix: str) -> Format | None:
    if not suffix or suffix in _TAKEN:
        return None
    named = (known for known in _formats.all().values() if suffix in known.suffixes)
    return next(named, None) or _load_installed(suffix[1:])


def find_format_of_object(source: object) -> Format | None:
    """Return the registered or installed format that reads the class of `source`, or None.

    Installed formats are looked up by the module of the class, then by the packages around it.
    """
    names = set(_name_classes(source))
    for known in _formats.all().values():
        if not names.isdisjoint(known.objects):
            return known
    # From the module up to the package: the closest knows the class best.
    for module in list_prefixes(type(source).__module__):
        found = _load_installed(module)
        if found is not None and not names.isdisjoint(found.objects):
            return found
    return None


def _name_classes(source: object) -> Iterator[str]:
    for one in type(source).__mro__:
        yield f"{one.__module__}.{one.__qualname__}"


def list_written_suffixes() -> list[str]:
    first = [suffix for known in BUILT_IN.values() for suffix in known]
    written = (known.suffixes for known in _formats.all().values() if known.is_written)
    return [*first, *(suffix for suffixes in written for suffix in suffixes)]


def _load_installed(name: str) -> Format | None:
    """Return the format of an installed package by `name`, or suffix without its dot, or None."""
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


def _list_known() -> str:
    return f"known are {', '.join((*BUILT_IN, *_formats.all(), *find_offers(FORMATS)))}"


def _is_suffix(value: object) -> bool:
    return isinstance(value, str) and value == Path(f"x{value}").suffix != ""
