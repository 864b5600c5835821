"""The folder of a job: a lock, parts, and the manifest that each commit replaces."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, TypeAlias
from zipfile import BadZipFile

import msgspec

from ...graph.formats.files import Refuse, read_file, replace_file
from ..errors import JobError
from .sinks import Sink

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
MANIFEST, FOLDERS = "manifest.json", ("parts", "errors", "variables")
ATTEMPTS, PAUSE_S = 10, 0.02
"""A process that asks for the status holds the lock for a moment."""
_FILE = r"(part|repaired|variables)-[0-9]{12}(-[0-9]{12})?\.[a-z]+"
_NAME = re.compile(rf"(parts|errors|variables)/{_FILE}")
_DRAFT = re.compile(rf"((parts|errors|variables)/\.{_FILE}|\.manifest\.json)\.[0-9a-f]{{16}}")


class JobStatus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far a job has come by its last commit; the content of its manifest.

    Attributes
    ----------
    position : int
        The number of items that are done, well or not.
    total : int or None
        The number of items of the source, if known.
    failed : int
        Items that failed and were not repaired.
    is_done : bool
        True if the source has no more items.
    is_running : bool
        True if a process runs the job.
    items_per_second : float
        In the last run.
    parts, errors : tuple of str
        The files with results and with errors, in order, in the job's folder.
    variables : str
        The file with the values of variables; "" for a plan that has none.
    digests : dict of str to str
        By part of the job, such as ``"model"``.
    command : tuple of str
        The arguments of the command line that made the job.
    """

    version: int = 1
    position: Count = 0
    total: Count | None = None
    failed: Count = 0
    is_done: bool = False
    is_running: bool = False
    items_per_second: float = 0.0
    parts: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    variables: str = ""
    digests: dict[str, str] = {}
    command: tuple[str, ...] = ()

    @property
    def left_s(self) -> float | None:
        """The predicted time to the end; None if the total or the rate is unknown."""
        if self.total is None or not self.items_per_second:
            return None
        return max(self.total - self.position, 0) / self.items_per_second

    @property
    def files(self) -> set[str]:
        """All files that the commit names."""
        return {*self.parts, *self.errors, self.variables} - {""}

    def __str__(self) -> str:
        state = "running" if self.is_running else "done" if self.is_done else "stopped"
        total = "" if self.total is None else f" of {self.total:,}"
        failed = f", {self.failed:,} failed" if self.failed else ""
        left = "" if self.is_done or self.left_s is None else f", {self.left_s:.0f} s left"
        rate = f"{self.items_per_second:.1f} items/s"
        return f"{state}: {self.position:,}{total} items{failed}, {rate}{left}"


class _File(msgspec.Struct):
    sha256: str
    manifest: msgspec.Raw


def read_status(folder: Path) -> JobStatus | None:
    """Return the content of the manifest, or None without one; raise JobError if it is damaged."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        file = msgspec.json.decode(bytes(read_file(path, JobError)), type=_File)
        if sha256(file.manifest).hexdigest() != file.sha256:
            raise ValueError("its checksum is wrong")
        found = msgspec.json.decode(file.manifest, type=JobStatus)
        if found.version != 1:
            raise ValueError(f"it has version {found.version}")
        if not all(map(_NAME.fullmatch, found.files)):
            raise ValueError("it names other files than those of jobs")  # which would be deleted
    except ValueError as error:  # msgspec's own are subclasses
        raise JobError(
            f"the manifest cannot be used: {error}",
            at=str(path),
            fix="restore it from a copy, or run the job in another folder; parts stay as they are",
        ) from error
    return found


@contextmanager
def explain_damage(folder: Path) -> Iterator[None]:
    """Convert the errors of reading a job's own files."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
        raise JobError(
            f"a file of the last commit cannot be read: {error}",
            at=str(folder),
            fix="restore it from a copy, or run the job in another folder",
        ) from error


def show_status(folder: Path) -> JobStatus:
    """Return the status of the job in a folder, and whether it is running."""
    found = read_status(folder) or JobStatus()
    return msgspec.structs.replace(found, is_running=is_locked(folder))


def commit(folder: Path, before: JobStatus, after: JobStatus, refuse: Refuse) -> None:
    """Replace the manifest, then delete the files that it does not name any more."""
    content = msgspec.json.encode(after)
    file = _File(sha256(content).hexdigest(), msgspec.Raw(content))
    replace_file(folder / MANIFEST, [msgspec.json.encode(file)], refuse)
    for name in before.files - after.files:
        _delete(folder / name)


def delete_leftovers(folder: Path, status: JobStatus | None) -> None:
    """Delete the files of commits that were not completed; without a manifest, refuse them."""
    found = [file for inside in ("", *FOLDERS) for file in (folder / inside).iterdir()]
    for name in {file.relative_to(folder).as_posix() for file in found}:
        if _DRAFT.fullmatch(name):
            _delete(folder / name)
        elif _NAME.fullmatch(name) and (status is None or name not in status.files):
            if status is None:
                raise JobError(
                    f"the folder has {name}, and no manifest says of which job",
                    at=str(folder),
                    fix=f"restore {MANIFEST} from a copy, or choose another folder",
                )
            _delete(folder / name)


def _delete(file: Path) -> None:
    with suppress(OSError):  # it is deleted when the job is run again
        file.unlink()


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep other processes out of the folder, which is made if it is missing.

    The system releases the lock of a process that ends.
    """
    try:
        for inside in FOLDERS:
            (folder / inside).mkdir(parents=True, exist_ok=True)
        file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise JobError(
            f"cannot write to the folder {folder}: {error.strerror}",
            fix="choose a folder that this process may write to",
        ) from error
    try:
        for _ in range(ATTEMPTS):
            if _lock(file):
                break
            time.sleep(PAUSE_S)
        else:
            raise JobError(
                f"another process runs the job in {folder}", fix="wait for its end, or stop it"
            )
        yield
    finally:
        os.close(file)


def is_locked(folder: Path) -> bool:
    """True if a process runs the job in the folder."""
    try:
        with open(folder / "lock") as file:
            return not _lock(file.fileno())
    except OSError:
        return False


def _lock(file: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows: the user sees to it
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class Parts:
    """Rows in files: each part has the rows of a fixed range of positions.

    A commit in the middle of a part writes a piece; the commit that completes the part merges the
    pieces. So the files that a job ends with depend neither on the times of its commits nor on the
    moments at which it was stopped.

    Attributes
    ----------
    names : list of str
        The files with all rows so far, in order.
    """

    def __init__(
        self, folder: Path, inside: str, sink: Sink, size: int, names: Sequence[str], position: int
    ) -> None:
        self._folder, self._inside, self._sink, self._size = folder, inside, sink, size
        self._position, self._begin = position, position - position % size
        self.names = list(names)
        self._blocks = [sink.load(folder / name) for name in self._pieces()]

    def write(self, rows: list[Any], position: int, refuse: Refuse, *, is_last: bool) -> None:
        """Write the rows up to a position, which is not beyond the end of the present part."""
        fresh = [self._sink.pack(rows)] if rows else []
        self._blocks += fresh
        begin, self._position = self._position, position
        if position - self._begin < self._size and not is_last:
            self._dump(fresh, f"part-{begin:012d}-{position:012d}", refuse)
            return
        pieces = self._pieces()
        self.names = [name for name in self.names if name not in pieces]
        self._dump(self._blocks, f"part-{self._begin:012d}-{position:012d}", refuse)
        if position - self._begin == self._size:
            self._begin, self._blocks = position, []

    def write_repaired(self, rows: list[Any], number: int, refuse: Refuse) -> None:
        """Write rows of earlier positions to a file of their own, which has a number."""
        if rows:
            self._dump([self._sink.pack(rows)], f"repaired-{number:012d}", refuse)

    def _pieces(self) -> list[str]:
        """Return the files whose rows the present part will have."""
        begin = f"{self._inside}/part-{self._begin:012d}"
        return [name for name in self.names if begin < name < f"{self._inside}/part-a"]

    def _dump(self, blocks: Sequence[Any], name: str, refuse: Refuse) -> None:
        if not blocks or not self._sink.suffix:
            return
        # The schema of the first part holds for all that follow.
        is_first = self._begin == 0 and "part" in name
        first = None if is_first or not self.names else self._folder / self.names[0]
        name = f"{self._inside}/{name}{self._sink.suffix}"
        replace_file(self._folder / name, self._sink.dump(blocks, first), refuse)
        if name not in self.names:
            self.names.append(name)
