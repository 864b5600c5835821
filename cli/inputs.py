"""Inputs on the command line: items of files, folders, values or random numbers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from glob import escape, glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph.core.ir import Graph
from ..graph.operators.randomness import RANDOM_KEY
from ..graph.values.dtypes import TEXT, has_objects, is_extension, kind_of, name_of
from ..graph.values.errors import OperatorError, suggest_names
from ..graph.values.extras import get_install_command, import_extra
from ..graph.values.tensor import Array, Dim, TensorSpec, is_bytes, to_exact
from .output import from_member_name
from .parsing import CommandError

if TYPE_CHECKING:
    from ..scheduler.plans.plan import Plan

NOTHING: Any = object()
"""The result of parsing a text that is not a value."""

RANDOM = "random"

ARRAY_FILES = ".npy", ".npz"

_MAGIC = b"\x93NUMPY", b"PK"
"""The first bytes of files of arrays."""


@dataclass(frozen=True, slots=True)
class Given:
    """One ``--input``."""

    name: str | None
    """The input to feed; None for the inputs that the file names."""
    files: tuple[Path, ...]
    """Empty for random numbers."""
    is_sequence: bool = False
    """True if each file is an item; otherwise its file is part of every item."""
    value: Any = NOTHING
    """A number, a boolean or a list of them from the command line, or NOTHING."""


def parse_input(text: str) -> Given:
    """Parse `text`, given to ``--input``; CommandError if malformed, or if the file is missing."""
    name: str | None
    name, equals, value = text.partition("=")
    # A path may contain a =, so the whole text is tried as a path first.
    if not equals or os.path.exists(text):
        name, value = None, text
    if name == "" or not value:
        raise CommandError(
            f"--input {text!r} is not NAME=FILE", fix=f"for example --input x=x.npy or x={RANDOM}"
        )
    if value == RANDOM:
        return Given(name, ())
    if os.path.isfile(value):
        return Given(name, (Path(value),))
    # A file called 3 takes precedence over the number, which precedes folders and patterns ([12]).
    literal = parse_literal(value) if name is not None else NOTHING
    if literal is not NOTHING:
        return Given(name, (), value=literal)
    files = _list_folder(value) if os.path.isdir(value) else _list_files(value)
    if not files:
        raise CommandError(
            f"--input {text!r} finds no file",
            fix=f"name a file, a folder of files or a pattern such as '*.npy', or give a number, a "
            f'list such as [1,2] or ["a"], or {RANDOM}',
        )
    return Given(name, tuple(files), is_sequence=True)


def _list_folder(folder: str) -> list[Path]:
    """Return the files of arrays in `folder`, or all of its files if it has none of these."""
    inside = escape(folder)  # its name may have the characters of patterns
    return _list_files(os.path.join(inside, "*.np[yz]")) or _list_files(os.path.join(inside, "*"))


def _list_files(pattern: str) -> list[Path]:
    return sorted(file for file in map(Path, glob(pattern)) if file.is_file())


def read_arrays(file: Path, name: str | None, graph: Graph) -> dict[str, Array]:
    """Return the arrays in `file` by the inputs of `graph` that they feed.

    With a `name`, the file feeds that input. An image feeds an input of pixels. Other files, unless
    their suffix is that of arrays, feed an input of bytes with their content. Raises CommandError
    if the file is damaged, or it is not clear which input it feeds.
    """
    inputs = _list_inputs(graph)
    fed = graph.tensors.get(name or inputs[0]) if name or len(inputs) == 1 else None
    if fed is not None and file.suffix.lower() in IMAGE_SUFFIXES and can_be_image(fed):
        given = name or inputs[0]
        return {given: read_image(file, given, fed)}
    is_raw = fed is not None and is_bytes(fed) and file.suffix not in ARRAY_FILES
    found = _match_inputs(_load_bytes(file) if is_raw else _load(file), file, name, graph)
    return {name: _restore_dtype(array, graph.tensors.get(name)) for name, array in found.items()}


def _match_inputs(
    loaded: Array | dict[str, Array], file: Path, name: str | None, graph: Graph
) -> dict[str, Array]:
    if isinstance(loaded, np.ndarray):
        inputs = _list_inputs(graph)
        if name is None and len(inputs) != 1:
            raise CommandError(
                f"{file} does not say which input it feeds",
                fix=f"--input NAME={file}, where NAME is one of: {', '.join(inputs)}",
            )
        return {name or inputs[0]: loaded}
    if name is None:
        return loaded
    if name in loaded:
        return {name: loaded[name]}
    if len(loaded) != 1:
        raise CommandError(
            f"{file} has no array {name!r}", fix=f"it has: {', '.join(loaded) or 'none'}"
        )
    return {name: next(iter(loaded.values()))}


def _restore_dtype(array: Array, spec: TensorSpec | None) -> Array:
    """Return `array` in the dtype of `spec` if numpy loaded it as bare bytes, else as it is."""
    if spec is None or not is_extension(spec.dtype):
        return array
    bare = np.dtype(f"V{spec.dtype.itemsize}")
    return array.view(spec.dtype) if array.dtype == bare else array


def make_random_array(spec: TensorSpec, generator: np.random.Generator) -> Array:
    """Return an array of the static `spec` with random numbers from `generator`.

    Floats are in [0, 1); integers of one byte take all values; wider ones, often indices, are in
    [0, 100). Text consists of the digits of such an integer.
    """
    shape, kind = spec.static_shape, kind_of(spec.dtype)
    if kind in "fce":
        values = generator.random(shape)
        return (values + 1j * generator.random(shape) if kind == "c" else values).astype(spec.dtype)
    if kind == "b":
        return generator.integers(0, 2, shape).astype(spec.dtype)
    if spec.dtype == TEXT:
        return generator.integers(0, 100, shape).astype(str).astype(TEXT)
    # Bytes are pixels or quantized, so all values are likely.
    if spec.dtype.itemsize == 1:
        limits = np.iinfo(spec.dtype)
        return generator.integers(limits.min, limits.max + 1, shape).astype(spec.dtype)
    return generator.integers(0, 100, shape).astype(spec.dtype)


def _list_inputs(graph: Graph) -> list[str]:
    """Return the inputs of `graph` that users feed; a seed feeds the key of random numbers."""
    return [name for name in graph.inputs if name != RANDOM_KEY]


def make_items(
    plan: Plan, givens: Sequence[Given], *, seed: int, fill: bool, graph: Graph | None = None
) -> ItemSource:
    """Return the source of items for `plan`, with arrays from `givens` and random ones from `seed`.

    `fill` makes the missing inputs random, with the largest shapes of the plan. The inputs are
    those of `graph`, by default the plan's.
    """
    lengths = {symbol: high for symbol, (_, high) in plan.bounds.items()}
    more: dict[str, Any] = {"lengths": lengths, "unneeded": plan.unneeded}
    return ItemSource(graph or plan.fed, givens, seed=seed, fill=fill, **more)


class ItemSource:
    """Makes the items of a run: arrays from files, random numbers for the other inputs.

    Parameters
    ----------
    seed : int
        The random numbers of item i do not depend on the number of items.
    fill : bool
        Whether inputs that are not given are random.
    lengths : Mapping of str to int, optional
        Lengths of symbols for random arrays; others are proposed by name.
    unneeded : set of str, optional
        Names that are accepted besides the graph's inputs.

    Attributes
    ----------
    count : int or None
        The number of items in the files; None if any number is possible.
    notes : list of str
        Remarks for the user about choices made.

    Raises
    ------
    CommandError
        If an input is unknown, missing or given twice, or folders hold different numbers of files.
    """

    def __init__(
        self,
        graph: Graph,
        givens: Sequence[Given],
        *,
        seed: int,
        fill: bool,
        lengths: Mapping[str, int] | None = None,
        unneeded: Set[str] = frozenset(),
    ) -> None:
        self._graph = graph
        self._unneeded = unneeded
        self._lengths = lengths or {}
        self._seed = seed
        self._fixed: dict[str, Array] = {}
        self._sequences = [given for given in givens if given.is_sequence]
        self.notes: list[str] = []
        if objects := [name for name in graph.inputs if has_objects(graph.tensors[name].dtype)]:
            raise CommandError(
                f"the input {objects[0]!r} takes Python objects, as a pipeline's does: files do "
                "not tell which",
                fix="run it from Python: pipe.run(value), or pipe.stream(values)",
            )
        self.count = _find_common_length(self._sequences)
        seen: set[str] = set()
        for given in givens:
            seen.update(self._take(given, seen))
        missing = [name for name in _list_inputs(graph) if name not in seen]
        if missing and not fill and not any(g.name is None and not g.files for g in givens):
            raise CommandError(
                f"nothing is given for {', '.join(missing)}",
                fix=f"--input {missing[0]}=FILE.npy, or --input {missing[0]}={RANDOM}",
            )

    def item(self, index: int) -> dict[str, Array]:
        """Return the arrays of item number `index`, by input.

        Raises CommandError if a file is damaged or lacks an array; FeedError if a shape does not
        fit its input.
        """
        from ..scheduler.shapes.specialise import bind_inputs

        arrays = dict(self._fixed)
        for given in self._sequences:
            arrays.update(self._read(given.files[index], given.name))
        # One generator per item, so that items do not depend on each other.
        generator = np.random.default_rng([self._seed, index])
        specs = bind_inputs(self._graph, {n: a.shape for n, a in arrays.items()})
        for name in self._graph.inputs:
            if name == RANDOM_KEY:
                arrays.setdefault(name, np.array([self._seed, index], np.uint64))
            elif name not in arrays:
                arrays[name] = make_random_array(self._fix_lengths(name, specs), generator)
        return arrays

    def _take(self, given: Given, seen: set[str]) -> set[str]:
        names = {given.name} - self._unneeded if given.name else set()
        if given.value is not NOTHING and given.name in self._graph.inputs:
            spec = self._graph.tensors[given.name]
            self._fixed[given.name] = make_literal_array(given.name, given.value, spec)
        # Read now: a single file feeds all items, and the first of a folder names the inputs.
        if given.files and not (given.is_sequence and given.name):
            arrays = self._read(given.files[0], given.name)
            names = set(arrays)
            if not given.is_sequence:
                self._fixed.update(arrays)
        for name in sorted(names):
            if name not in self._graph.inputs:
                inputs = ", ".join(self._graph.inputs)
                raise CommandError(
                    f"the graph has no input {name!r}",
                    fix=suggest_names(name, self._graph.inputs, f"its inputs are: {inputs}"),
                )
            if name in seen:
                raise CommandError(f"the input {name!r} is given twice", fix="give it once")
        return names

    def _read(self, file: Path, name: str | None) -> dict[str, Array]:
        found = read_arrays(file, name, self._graph)
        return {name: array for name, array in found.items() if name not in self._unneeded}

    def _fix_lengths(self, name: str, specs: Mapping[str, TensorSpec]) -> TensorSpec:
        spec = specs[name]
        if spec.shape is None:
            raise CommandError(
                f"the rank of input {name!r} is not known", fix=f"--shape {name}=LENGTH,LENGTH,..."
            )
        lengths = {**propose_lengths(specs.values(), self._lengths), **self._lengths}
        shape = [lengths[dim] if isinstance(dim, str) else dim for dim in spec.shape]
        proposed = [dim for dim in spec.shape if isinstance(dim, str) and dim not in self._lengths]
        if proposed:
            listed = ", ".join(f"{symbol} = {lengths[symbol]}" for symbol in proposed)
            written = ",".join(map(str, shape))
            note = f"input {name!r}: {listed} proposed; --shape {name}={written} sets others"
            # Equal for all items.
            if note not in self.notes:
                self.notes.append(note)
        return TensorSpec(spec.dtype, shape)


def _find_common_length(sequences: Sequence[Given]) -> int | None:
    lengths = {given.name or "files": len(given.files) for given in sequences}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise CommandError(
            f"the inputs have different numbers of files: {listed}",
            fix="give each input one file per item",
        )
    return next(iter(lengths.values()), None)


def _load_bytes(file: Path) -> Array:
    try:
        return np.frombuffer(file.read_bytes(), np.uint8)
    except OSError as error:
        raise CommandError(
            f"cannot read {file}: {error}", fix="check its path and permissions"
        ) from error


def _load(file: Path) -> Array | dict[str, Array]:
    """Return the array in `file`, or its arrays by name; objects are never unpickled."""
    try:
        with file.open("rb") as opened:
            if not opened.read(max(map(len, _MAGIC))).startswith(_MAGIC):
                raise ValueError("it holds no arrays")  # numpy would take it for a pickle
            opened.seek(0)
            loaded: Any = np.load(opened, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            arrays = {from_member_name(name): loaded[name] for name in loaded.files}
        # numpy returns the bytes of a member of another kind.
        return {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}
    except Exception as error:  # damaged files make numpy and zipfile raise many kinds
        what = str(error) if "pickle" not in str(error) else "it holds Python objects"
        raise CommandError(
            f"cannot read {file}: {what}",
            fix="give a .npy or .npz file, as numpy.save and savez write; other files feed, with "
            "their bytes, inputs that are uint8 of one dimension",
        ) from error


def parse_literal(text: str) -> Any:
    """Parse `text`, a number, boolean, string or a list of these in JSON, or return NOTHING."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return NOTHING
    return value if _is_value(value) else NOTHING


def make_literal_array(name: str, value: Any, spec: TensorSpec) -> Array:
    """Return `value`, of input `name`, as an array of `spec`; one value fits any of one element.

    Raises CommandError if the dtype cannot represent it, or lists differ in length.
    """
    at = f"--input {name}"
    try:
        given = np.array(value)  # refuses ragged lists
        if (given.dtype.kind == "U") != (spec.dtype == TEXT):
            raise ValueError("text stands in quotes, numbers do not")
        if not isinstance(value, list):
            array = to_exact(value, spec.dtype, at)
        else:
            array = given.astype(spec.dtype)
            if spec.dtype.kind in "biu" and not np.array_equal(array, given):
                raise ValueError(f"not all of it is {name_of(spec.dtype)}")
    except (OperatorError, ValueError, OverflowError) as error:
        reason = "" if isinstance(error, OperatorError) else f": {error}"
        raise CommandError(
            f"{at}={json.dumps(value)} is no {name_of(spec.dtype)}{reason}",
            fix=f"the input is {spec}: give values that it holds, or a file",
        ) from error
    # A shape with one element, of any rank, accepts one value.
    if array.ndim == 0 and all(dim == 1 or isinstance(dim, str) for dim in spec.shape or ()):
        array = array.reshape((1,) * len(spec.shape or ()))
    return array


def _is_value(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_value, value))
    return isinstance(value, bool | int | float | str)


USUAL_LENGTHS = (
    (r"batch|^n$|^b$|^bs$|num_(images|samples)$|unk", 1),
    (r"channel|^c$", 3),
    (r"height|width|^h$|^w$|image_size|img_size", 320),
    (r"samples|audio|wave", 16_000),
    (r"past", 0),
    (r"seq|token|time|_len|^t$|^s$|^l$|frames|steps", 64),
)
"""Patterns of a symbol, and a usual length of such an axis."""

PIXELS = 320
"""The height and width of images: a multiple of 32, by which most networks divide them."""


def propose_lengths(specs: Iterable[TensorSpec], known: Mapping[str, int]) -> dict[str, int]:
    """Return a length for each symbol in the `specs` of inputs that has no length in `known`.

    A name such as ``"height"`` decides. Otherwise the length is 1, or that of an image if the axis
    is the height or width of a batch of images.
    """
    found: dict[str, int] = {}
    for spec in specs:
        for axis, dim in enumerate(spec.shape or ()):
            if isinstance(dim, str) and dim not in known:
                found[dim] = max(found.get(dim, 0), _propose_length(dim, axis, spec))
    return found


def _propose_length(symbol: str, axis: int, spec: TensorSpec) -> int:
    for pattern, length in USUAL_LENGTHS:
        if re.search(pattern, symbol.lower()):
            return length
    return PIXELS if axis in _find_pixel_axes(spec) else 1


def _find_pixel_axes(spec: TensorSpec) -> tuple[int, ...]:
    """Return the axes of height and width if `spec` is a batch of images, otherwise no axes."""
    shape = spec.shape or ()
    if len(shape) != 4 or kind_of(spec.dtype) not in "fu":
        return ()
    if shape[1] in (1, 3, 4):
        return 2, 3
    return (1, 2) if shape[3] in (1, 3, 4) else ()


IMAGE_SUFFIXES = frozenset(
    (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
)
CHANNELS = {1: "L", 3: "RGB", 4: "RGBA"}
"""Modes of Pillow, by how many numbers a pixel has."""


def can_be_image(spec: TensorSpec) -> bool:
    """Return whether an input with `spec` may be an image: two to four dimensions of numbers."""
    return spec.rank in (2, 3, 4) and kind_of(spec.dtype) in "iuf"


def read_image(file: Path, name: str, spec: TensorSpec) -> Array:
    """Return the pixels of the image `file`, from 0 to 255, upright, laid out for an input.

    `name` and `spec` are those of the input. Raises CommandError if Pillow is not installed, the
    file cannot be read, its size is not the input's, or it is not clear where pixels lie in the
    input.
    """
    images = import_extra(
        "PIL.Image",
        f"{file} is an image, which Pillow reads",
        get_install_command("images"),
        CommandError,
    )
    operations = import_extra("PIL.ImageOps", "Pillow is damaged", "install it anew", CommandError)
    shape = spec.shape or ()
    layout, channels = _find_layout(name, spec)
    try:
        with images.open(file) as image:
            upright = operations.exif_transpose(image).convert(CHANNELS[channels])
    except Exception as error:  # Pillow raises of many kinds
        raise CommandError(f"cannot read {file}: {error}", fix="give an image") from error
    pixels = np.asarray(upright).reshape(upright.height, upright.width, channels)
    array = pixels.transpose(2, 0, 1) if layout == "CHW" else pixels
    if len(shape) == 2:
        array = array[:, :, 0]
    array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    lengths = zip(shape, array.shape, strict=True)
    if any(isinstance(own, int) and own != length for own, length in lengths):
        raise CommandError(
            f"{file} is {upright.width} x {upright.height} pixels, and input {name!r} is {spec}",
            fix="scale or crop it first, as the model was trained for",
        )
    return np.ascontiguousarray(array, spec.dtype)


def _find_layout(name: str, spec: TensorSpec) -> tuple[str, int]:
    """Return where channels lie in `spec`, of the input `name`, and how many there are."""
    shape: tuple[Dim, ...] = (spec.shape or ())[-3:]
    if len(shape) == 2:
        return "HWC", 1
    for layout, dim in (("CHW", shape[0]), ("HWC", shape[-1])):
        if isinstance(dim, int) and dim in CHANNELS:
            return layout, dim
    raise CommandError(
        f"input {name!r} is {spec}: which axis has the channels of an image is not known",
        fix=f"fix its shape, --shape {name}=1,3,224,224, or give a .npy file",
    )
