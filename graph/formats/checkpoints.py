"""Checkpoints: the values of variables at steps of training, in a folder of files.

Each is a safetensors file, whose metadata begins with a checksum of the rest. It is written under
a temporary name, and renamed once it is complete and on disk: whenever the process is killed, the
folder holds the newest complete checkpoint.
"""

from __future__ import annotations

import json
import os
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from typing import Any, SupportsIndex

from ..values.errors import GraphError, ParseError
from ..values.tensor import Array
from .files import read_file, replace_file
from .safetensors import LENGTH, METADATA, pack_weights, read_weights

_NAME = re.compile(r"step-(\d+)\.safetensors")
_DRAFT = re.compile(r"\.step-\d+\.safetensors\.[0-9a-f]+")
_CHECKSUM, _STEP, _NOTES = "crc32", "step", "notes"
_UNKNOWN = "0" * 8
_HEAD = f'{{"{METADATA}":{{"{_CHECKSUM}":"'.encode()
_PLACE = slice(LENGTH.size + len(_HEAD), LENGTH.size + len(_HEAD) + len(_UNKNOWN))
"""The bytes of the checksum in a file."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The checkpoint of one step.

    Attributes
    ----------
    step : int
    variables : Mapping of str to Array
        Their values by name, read-only; the file may be deleted.
    notes : Mapping
        The notes that were saved with it.
    path : Path

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import numpy as np
    >>> import plait as pl
    >>> with TemporaryDirectory() as folder:
    ...     checkpoints = pl.Checkpoints(folder, keep=1)
    ...     _ = checkpoints.save(10, {"w": np.ones(2)}, {"epoch": 1})
    ...     newest = checkpoints.newest()
    >>> newest.step, newest.variables["w"], newest.notes
    (10, array([1., 1.]), {'epoch': 1})
    """

    step: int
    variables: Mapping[str, Array] = field(repr=False)
    notes: Mapping[str, Any]
    path: Path

    def matching(self, names: Iterable[str]) -> Mapping[str, Array]:
        """Return the values of the variables, which must have exactly these `names`.

        Raises
        ------
        GraphError
            If the names differ: the checkpoint is of another graph.
        """
        wanted, held = set(names), set(self.variables)
        if wanted != held:
            raise GraphError(
                f"it has no variable {_list_names(wanted - held)}"
                if wanted - held
                else f"its variable {_list_names(held - wanted)} is unknown here",
                at=str(self.path),
                fix="build the graph as it was when it was saved, or assign those you want",
            )
        return self.variables


def _list_names(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names)))


class Checkpoints:
    """A folder of checkpoints, the last few of one training run.

    Parameters
    ----------
    folder : str or path
        Created with the first checkpoint. One process at a time may save there; others may read.
    keep : int, default 3
        The largest number of checkpoints; older ones are deleted once a new one is on disk.

    Examples
    --------
    >>> import tempfile, numpy as np, plait as pl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoints = pl.Checkpoints(folder, keep=2)
    ...     for step in 10, 20, 30:
    ...         path = checkpoints.save(step, {"w": np.full(2, step)}, {"epoch": step // 10})
    ...     newest = checkpoints.newest()
    ...     checkpoints.steps(), newest.step, newest.variables["w"].tolist(), newest.notes
    ((20, 30), 30, [30, 30], {'epoch': 3})
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: int = 3) -> None:
        if not isinstance(folder, str | os.PathLike):
            raise GraphError(
                f"expected a path, got {type(folder).__name__}", fix="pass that of a folder"
            )
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise GraphError(f"{keep!r} checkpoints cannot be kept", fix="keep 1 or more")
        self.folder = Path(folder)
        self.keep = keep

    def save(
        self,
        step: SupportsIndex,
        variables: Mapping[str, Array],
        notes: Mapping[str, Any] | None = None,
    ) -> Path:
        """Save `variables` after `step`, and return the file once it is on disk.

        Parameters
        ----------
        step : int
            The number of steps done; it must be above those of the existing complete checkpoints.
        variables : Mapping of str to array
            All values from which the run is to resume: ``session.variables``.
        notes : Mapping, optional
            Further state to resume from, as JSON values: the epoch, ``rng.bit_generator.state``.

        Raises
        ------
        GraphError
            If there is a complete checkpoint of that step or a later one, if something cannot be
            written, or the disk is full. Existing checkpoints stay as they are.
        """
        done = _count(step)
        parts = _pack(done, variables, notes or {})
        # Checked before writing; deleted once the new file is safe.
        damaged = self._not_before(done)
        self._make_folder()
        _delete(self._drafts())  # before the new file needs the space
        path = self.folder / f"step-{done:08d}.safetensors"
        replace_file(path, parts)
        # By number, not by time: clocks and copies of files may have another order.
        older = [file for known, file in reversed(self._files()) if known < done]
        _delete([*older[self.keep - 1 :], *(file for file in damaged if file != path)])
        return path

    def newest(self) -> Checkpoint | None:
        """Return the newest complete checkpoint; None if there is none.

        Raises
        ------
        ParseError
            If a file may be complete, but cannot be read.

        Warns
        -----
        RuntimeWarning
            For each newer checkpoint that is damaged.
        """
        # The newest first, skipping files that a crash cut off.
        for _, file in reversed(self._files()):
            found = _read_if_whole(file)
            if isinstance(found, Checkpoint):
                return found
            warnings.warn(f"a checkpoint is left out: {found}", RuntimeWarning, stacklevel=2)
        return None

    def load(self, step: int) -> Checkpoint:
        """Return the checkpoint of `step`.

        Raises
        ------
        ParseError
            If there is no such checkpoint, or it is damaged.
        """
        for known, file in self._files():
            if known == step:
                return _read(file)
        raise ParseError(
            f"there is no checkpoint of step {step}",
            at=str(self.folder),
            fix=f"load one of {', '.join(map(str, self.steps())) or 'those in another folder'}",
        )

    def steps(self) -> tuple[int, ...]:
        """Return the steps of all files, in order, complete or not."""
        return tuple(step for step, _ in self._files())

    def _files(self) -> list[tuple[int, Path]]:
        matches = ((_NAME.fullmatch(file.name), file) for file in self._list_files())
        return sorted((int(match[1]), file) for match, file in matches if match)

    def _drafts(self) -> list[Path]:
        return [file for file in self._list_files() if _DRAFT.fullmatch(file.name)]

    def _list_files(self) -> Iterator[Path]:
        try:
            yield from self.folder.iterdir()
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:  # a null byte, or half a surrogate
            reason = error.strerror if isinstance(error, OSError) else error
            raise GraphError(
                f"cannot list {self.folder}: {reason}", fix="pass a folder you may read"
            ) from error

    def _not_before(self, step: int) -> list[Path]:
        """Return the files of `step` and later ones; all must be damaged."""
        later = [(known, file) for known, file in self._files() if known >= step]
        for known, file in later:
            if isinstance(_read_if_whole(file), Checkpoint):
                raise GraphError(
                    f"there is a whole checkpoint of step {known} already",
                    at=str(file),
                    fix="go on from newest(), delete the later ones, or use another folder",
                )
        return [file for _, file in later]

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise GraphError(
                f"cannot make {self.folder}: {error.strerror}",
                fix="choose a folder you may write to",
            ) from error


def _count(step: SupportsIndex) -> int:
    try:
        done = -1 if isinstance(step, bool) else index(step)
    except TypeError:
        done = -1
    if done < 0:
        raise GraphError(f"{step!r} is not a step", fix="count them from 0 or 1")
    return done


def _delete(files: Iterable[Path]) -> None:
    for file in files:
        with suppress(OSError):  # it is in use
            file.unlink()


def _pack(
    step: int, variables: Mapping[str, Array], notes: Mapping[str, Any]
) -> list[bytes | memoryview]:
    try:
        noted = json.dumps(notes)
    except (TypeError, ValueError, RecursionError) as error:
        raise GraphError(
            f"the notes cannot be written: {error}", fix="use what JSON has: text, numbers, lists"
        ) from error
    metadata = {_CHECKSUM: _UNKNOWN, _STEP: str(step), _NOTES: noted}
    head, *arrays = pack_weights(variables, metadata)
    checksum = zlib.crc32(head)
    for array in arrays:
        checksum = zlib.crc32(array, checksum)
    # It replaces as many zeros: offsets stay.
    known = f"{checksum:08x}".encode()
    return [bytes(head[: _PLACE.start]) + known + bytes(head[_PLACE.stop :]), *arrays]


def _read_if_whole(path: Path) -> Checkpoint | ParseError:
    """Return the checkpoint in the file `path`, or its damage; raise other errors of reading."""
    try:
        return _read(path)
    except ParseError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError):
            raise
        return error


def _read(path: Path) -> Checkpoint:
    at = str(path)
    view = read_file(path)
    # Other safetensors files may have such a name, but no checksum in this place.
    if bytes(view[LENGTH.size : _PLACE.start]) != _HEAD:
        raise ParseError("not a checkpoint", at=at, fix="delete it, or move it elsewhere")
    checksum = zlib.crc32(view[: _PLACE.start])
    # Computed with zeros in the place of the checksum.
    checksum = zlib.crc32(view[_PLACE.stop :], zlib.crc32(_UNKNOWN.encode(), checksum))
    if bytes(view[_PLACE]) != f"{checksum:08x}".encode():
        raise ParseError("its checksum is wrong: it is damaged", at=at, fix="delete it")
    variables, metadata = read_weights(view, at)
    try:
        step, notes = int(metadata[_STEP]), json.loads(metadata[_NOTES])
    except (LookupError, ValueError, RecursionError) as error:
        raise ParseError(f"it lacks its step or notes: {error}", at=at, fix="delete it") from error
    return Checkpoint(step, variables, notes, path)
