"""Fed arrays: names and dtypes, checked for every item, and the keys of random numbers.

Shapes are checked once per combination of shapes, by `bind_inputs`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

import numpy as np

from ....devices.exchange import Loan
from ....graph.core.ir import Graph
from ....graph.operators.randomness import RANDOM_KEY
from ....graph.values.dtypes import TEXT, has_objects, hold_object, hold_objects, name_of, to_text
from ....graph.values.errors import PlaitError, get_text, suggest_names
from ....graph.values.tensor import Array, is_bytes
from ...errors import FeedError, SessionError
from ...plans.plan import Plan

_ON_HOST = frozenset({1, 3})
"""DLPack's kinds of memory that the host reads: its own, and the page-locked part of that."""


class ItemFeeds(dict[str, Any]):
    """The inputs of one item by name. An item has these from its caller to its slot.

    A check that precedes an attempt to run the item at once then need not be repeated when it
    could not, and has waited.

    Attributes
    ----------
    graph : Graph or None
        The graph for which `check_feeds` has made them arrays, in its order.
    are_own : bool
        Whether nobody writes to their arrays until the item is done: they need not be copied.
    """

    graph: Graph | None = None
    are_own = False

    @classmethod
    def read(cls, inputs: Mapping[str, Any]) -> ItemFeeds:
        return cls({name: inputs[name] for name in inputs})  # kinds of dict may do so in their way

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # other processes have another graph


def hold_feeds(inputs: Any, only_input: str | None = None) -> Any:
    """Return `inputs`, a mapping or the array of `only_input`, as `ItemFeeds`.

    Other values are returned unchanged, to be refused.
    """
    if only_input is not None and isinstance(inputs, np.ndarray):
        return ItemFeeds({only_input: inputs})
    if type(inputs) is ItemFeeds or not isinstance(inputs, Mapping):
        return inputs
    try:
        return ItemFeeds.read(inputs)
    except Exception:  # the check meets it again, as an error of the item
        return inputs


def mark_checked(graph: Graph, arrays: Mapping[str, Array]) -> ItemFeeds:
    feeds = ItemFeeds(arrays)
    feeds.graph = graph
    return feeds


def check_feeds(graph: Graph, unneeded: frozenset[str], inputs: Mapping[str, Any]) -> ItemFeeds:
    """Return `inputs` as arrays, in the order of `graph`; those on devices stay loans.

    `ItemFeeds` are changed in place, once for each graph. Inputs in `unneeded` are dropped. Raises
    FeedError if an input is missing or unknown, or has the wrong dtype.
    """
    if type(inputs) is not ItemFeeds:
        if not isinstance(inputs, Mapping):
            raise FeedError(
                f"an item is a {type(inputs).__name__}", fix="feed a mapping of input name to array"
            )
        inputs = ItemFeeds.read(inputs)
    elif inputs.graph is graph:
        return inputs
    if len(inputs) != len(graph.inputs):
        _arrange_feeds(graph, unneeded, inputs)
    names = iter(inputs)
    for name, wanted in graph.plain_inputs:
        if next(names) != name:
            _arrange_feeds(graph, unneeded, inputs)
            return check_feeds(graph, unneeded, inputs)
        value = inputs[name]
        if type(value) is not np.ndarray or value.dtype is not wanted:
            inputs[name] = _convert(graph, name, value)
    inputs.graph = graph
    return inputs


def _convert(graph: Graph, name: str, value: Any) -> Array:
    wanted = graph.tensors[name].dtype
    if wanted.kind == "O" and wanted.metadata is not None:  # `has_objects`
        return _to_objects(graph, name, value)
    array = value if type(value) is np.ndarray else _to_array(name, value)
    if wanted is TEXT:
        return _to_text(graph, name, value, array)
    is_text = array.dtype.kind == "T"  # which has no order of bytes
    if array.dtype == wanted or (not is_text and array.dtype.newbyteorder("=") == wanted):
        return array
    converted = _convert_plain(value, array, wanted)
    if converted is None:
        raise _dtype_error(graph, name, value, array)
    return converted


def _arrange_feeds(graph: Graph, unneeded: frozenset[str], feeds: ItemFeeds) -> None:
    if len(feeds) != len(graph.inputs) and not unneeded.issuperset(_list_unknown(graph, feeds)):
        raise _names_error(graph, feeds, unneeded)
    if not feeds.keys() >= set(graph.inputs):
        raise _names_error(graph, feeds, unneeded)
    given = {name: feeds[name] for name in graph.inputs}
    feeds.clear()
    feeds.update(given)


def _convert_plain(value: Any, array: Array, wanted: np.dtype[Any]) -> Array | None:
    """Return `array` in the dtype `wanted` if `value` is plain numbers that fit it, or else None.

    numpy gives them a dtype that the user has not chosen.
    """
    is_plain = isinstance(value, bool | int | float | list | tuple)
    if not is_plain or array.dtype.kind not in "biuf" or wanted.kind not in "biuf":
        return None
    if any(isinstance(one, np.ndarray | np.generic) for one in np.ravel(np.array(value, object))):
        return None
    with np.errstate(all="ignore"):
        found = array.astype(wanted)
    fits = wanted.kind == "f" or np.array_equal(found, array)
    return found if fits else None


def to_feeds(graph: Graph, given: Any, fetches: Any = None) -> ItemFeeds:
    """Return `given`, a mapping or the value of the only input of `graph`, as feeds by name.

    Raises FeedError if the graph has other than one input, or feeds and fetches are in ONNX
    Runtime's order.
    """
    if isinstance(given, Mapping):
        return given if type(given) is ItemFeeds else ItemFeeds.read(given)
    if isinstance(fetches, Mapping) and (given is None or isinstance(given, list)):
        raise FeedError(
            "the feeds come second, as in ONNX Runtime", fix="session.run(feeds, names of outputs)"
        )
    if len(graph.inputs) == 1:
        return ItemFeeds({graph.inputs[0]: given})
    raise FeedError(
        f"an item is a {type(given).__name__}, and the graph has {len(graph.inputs)} inputs",
        fix=f"feed a mapping with {', '.join(graph.inputs) or 'nothing in it'}",
    )


def own_feeds(graph: Graph, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return copies of `arrays` in the dtypes of `graph`, which callers cannot change meanwhile."""
    return {n: np.array(a, graph.tensors[n].dtype, order="C") for n, a in arrays.items()}


def _to_array(name: str, value: Any) -> Array:
    if isinstance(value, Loan):
        return value
    if isinstance(value, PlaitError):  # it could not be borrowed
        raise value
    if _is_on_device(value):
        raise FeedError(
            f"what is fed to input {name!r} lies on a device where the plan does not take it",
            fix=f"plan with inputs_on={{{name!r}: its device}}, or copy it to the host",
        )
    try:
        return to_array(value, f"input {name!r}")
    except PlaitError:
        raise
    except Exception as error:  # other libraries raise anything
        raise FeedError(
            f"what is fed to input {name!r} is not an array: {get_text(error)}",
            fix="feed a numpy array",
        ) from error


def _to_text(graph: Graph, name: str, value: Any, array: Array) -> Array:
    found = None if isinstance(array, Loan) else to_text(array)
    if found is not None:
        return found
    if array.dtype == TEXT and any(one is None or one != one for one in array.flat):
        raise _nulls_error(f"input {name!r}")
    raise _dtype_error(graph, name, value, array)


def _to_objects(graph: Graph, name: str, value: Any) -> Array:
    if isinstance(value, np.ndarray) and has_objects(value.dtype):
        return value  # results of another plan
    if graph.tensors[name].shape == ():
        return hold_object(value)
    try:
        return hold_objects(value)
    except TypeError as error:
        raise FeedError(
            f"input {name!r} is {graph.tensors[name]}, fed was one {type(value).__name__}",
            fix="feed a list",
        ) from error


def _is_on_device(value: Any) -> bool:
    if hasattr(value, "__cuda_array_interface__"):
        return True
    return hasattr(value, "__dlpack_device__") and value.__dlpack_device__()[0] not in _ON_HOST


def to_array(value: Any, at: str | None = None) -> Array:
    """Return `value` as an array, on its bytes if possible; raises any error of its library.

    The content of a file is an array of bytes, which numpy would take for a text. Raises FeedError
    if values are missing, for which numpy would put NaN; `at` is the place that it names.
    """
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8)
    if has_nulls(value):
        raise _nulls_error(at)
    ways = ("__array__", "__array_interface__", "__array_struct__", "__buffer__")
    if hasattr(value, "__dlpack__") and not any(hasattr(value, way) for way in ways):
        return np.from_dlpack(value)  # numpy would take it for a scalar
    return np.asarray(value)


def _nulls_error(at: str | None) -> FeedError:
    return FeedError(
        "values are missing in what is fed",
        at=at,
        fix="fill them in first, or drop their rows: fill_null(0), fillna(0), dropna()",
    )


def _dtype_error(graph: Graph, name: str, value: Any, array: Array) -> FeedError:
    wanted = graph.tensors[name]
    dtype = name_of(wanted.dtype)
    got, fix = f"dtype {array.dtype.name!r}", f"convert it: np.asarray(value, {dtype!r})"
    if isinstance(value, bytes | bytearray | memoryview):
        got = type(value).__name__
        fix = f"say what the bytes are: np.frombuffer(value, {dtype!r}), and reshape it"
    elif isinstance(value, os.PathLike):
        got = "a path"
        fix = f"feed what the file holds: np.fromfile(value, {dtype!r})"
        fix += "" if wanted.rank == 1 else ", reshaped, or np.load(value) of an .npy file"
    elif value is None or array.dtype.kind in "UST":
        got = "None" if value is None else "bytes" if array.dtype.kind == "S" else "text"
        fix = f"feed an array of {dtype}"
        if isinstance(value, str) and is_bytes(wanted):
            fix = "feed bytes: Path(value).read_bytes() of a file, value.encode() of a text"
    return FeedError(
        f"input {name!r} must be {wanted}, got {got}", at=f"graph {graph.name!r}", fix=fix
    )


def _list_unknown(graph: Graph, inputs: Mapping[str, Any]) -> list[str]:
    return [name for name in inputs if name not in graph.inputs]


def _names_error(graph: Graph, inputs: Mapping[str, Any], unneeded: frozenset[str]) -> FeedError:
    missing = [name for name in graph.inputs if name not in inputs]
    extra = [name for name in _list_unknown(graph, inputs) if name not in unneeded]
    if missing:
        lacking = ", ".join(f"{name!r}: {graph.tensors[name]}" for name in missing)
        others = f", and there is no input {', '.join(map(repr, extra))}" if extra else ""
        otherwise = "feed every input"
        return FeedError(
            f"no value for input {lacking}{others}",
            at=f"graph {graph.name!r}",
            fix=suggest_names(extra[0], missing, f"{otherwise} by its name")
            if extra
            else otherwise,
        )
    otherwise = f"its inputs are: {', '.join(graph.inputs)}"
    if extra[0] in graph.constants:
        otherwise = f"it is a constant, which is fed after plait.load(path, feed=[{extra[0]!r}])"
    return FeedError(
        f"graph {graph.name!r} has no input {', '.join(map(repr, extra))}",
        fix=suggest_names(extra[0], graph.inputs, otherwise),
    )


def has_nulls(value: Any) -> bool:
    """Return whether `value` is a column or table that lacks values, or an array that masks some.

    A NaN in pandas' columns of numpy's dtypes is a number: it cannot be distinguished from a null.
    """
    if isinstance(value, np.ndarray):
        return bool(np.ma.is_masked(value))
    return any(map(_has_missing_values, _list_columns(value)))


def _list_columns(value: Any) -> Iterable[Any]:
    for ways in ("iter_columns", "itercolumns"):  # of polars, and of pyarrow
        if hasattr(value, ways):
            return getattr(value, ways)()  # type: ignore[no-any-return]
    if hasattr(value, "iloc") and hasattr(value, "columns"):  # of pandas; names may be there twice
        return (value.iloc[:, index] for index in range(len(value.columns)))
    return (value,)


def _has_missing_values(column: Any) -> bool:
    if hasattr(column, "isna"):
        return not isinstance(column.dtype, np.dtype) and bool(column.isna().any())
    if not hasattr(column, "null_count"):
        return False
    if not callable(column.null_count):
        return bool(column.null_count)
    while hasattr(column.dtype, "inner"):  # of polars: those of lists are counted in their items
        if column.null_count():
            return True
        column = column.explode()
    return bool(column.null_count())


class Keys:
    """Keys of random numbers, which number items in the order in which they come.

    `are_read` is true when the graph draws random numbers. Raises SessionError if the `seed` is not
    a number from 0 on, below 2⁶⁴.
    """

    def __init__(self, plan: Plan, seed: int) -> None:
        if not isinstance(seed, int | np.integer) or not 0 <= seed < 1 << 64:
            raise SessionError(f"the seed is {seed!r}", fix="pass an integer from 0 on, below 2⁶⁴")
        self._seed = int(seed)
        self.are_read = RANDOM_KEY in plan.fed.inputs
        self._numbers = count()

    def added(self, inputs: Any) -> Any:
        """Return `inputs`, with a key of random numbers if the graph reads one that they lack."""
        number = next(self._numbers)
        if not self.are_read or not isinstance(inputs, Mapping) or RANDOM_KEY in inputs:
            return inputs
        return ItemFeeds({**inputs, RANDOM_KEY: np.array([self._seed, number], np.uint64)})
