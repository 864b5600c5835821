"""The folder of a job: a lock, parts, and the manifest that each commit replaces."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias
from zipfile import BadZipFile

import msgspec

from ...graph.core.printing import format_bytes
from ...graph.formats.files import Refuse, read_file
from ..errors import JobError
from .folders import is_local, write_file
from .sinks import Row, Sink

MANIFEST, FOLDERS = "manifest.json", ("", "parts", "errors", "variables")
ATTEMPTS, PAUSE_S = 10, 0.02
"""A process that asks for the status holds the lock for a moment."""
_FILE = r"(part|repaired|variables)-[0-9]{12,}(-[0-9]{12,})?\.[a-z]+"
_NAME = rf"(parts|errors|variables)/{_FILE}"
_DRAFT = rf"((parts|errors|variables)/\.{_FILE}|\.manifest\.json)\.[0-9a-f]{{16}}"

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
# Files that a manifest names are deleted later, so it may name those of jobs alone.
Files: TypeAlias = tuple[Annotated[str, msgspec.Meta(pattern=rf"\A{_NAME}\Z")], ...]


class JobStatus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of a job at its last commit: the content of its manifest.

    Attributes
    ----------
    position, failed : int
        Items that are done, well or not; items that failed and were not repaired.
    total : int or None
        The number of items of the source, if known.
    is_done, is_running : bool
        Whether the source has no more items, and whether a process runs the job.
    items_per_second : float
        In the last run.
    bytes_in, bytes_out : int
        Sizes of the items that were fed, and of the files that were written, pieces included.
    limit : str
        A sentence on the device or the source that limits the rate; "" if that is unknown.
    parts, errors : tuple of str
        The files with results and with errors, in order, in the job's folder.
    variables : str
        The file with the values of variables; "" for a plan that has none.
    digests : dict of str to str
        By part of the job, such as ``"model"``.
    command : tuple of str
        The arguments of the command line that made the job.
    run : str
        The last run in a folder at a URL, where nothing locks.
    shards : tuple of int
        The numbers of the shards that are done, for ``order="shard"``.
    """

    version: Literal[1] = 1
    position: Count = 0
    total: Count | None = None
    failed: Count = 0
    is_done: bool = False
    is_running: bool = False
    items_per_second: float = 0.0
    bytes_in: Count = 0
    bytes_out: Count = 0
    limit: str = ""
    parts: Files = ()
    errors: Files = ()
    variables: Annotated[str, msgspec.Meta(pattern=rf"\A({_NAME})?\Z")] = ""
    digests: dict[str, str] = {}
    command: tuple[str, ...] = ()
    run: str = ""
    shards: tuple[Count, ...] = ()

    @property
    def left_s(self) -> float | None:
        """The predicted time to the end; None if the total or the rate is unknown."""
        if self.total is None or not self.items_per_second:
            return None
        return max(self.total - self.position, 0) / self.items_per_second

    @property
    def files(self) -> set[str]:
        return {*self.parts, *self.errors, self.variables} - {""}

    def __str__(self) -> str:
        state = "running" if self.is_running else "done" if self.is_done else "stopped"
        total = "" if self.total is None else f" of {self.total:,}"
        failed = f", {self.failed:,} failed" if self.failed else ""
        left = "" if self.is_done or self.left_s is None else f", {self.left_s:.0f} s left"
        rate = f"{self.items_per_second:.1f} items/s"
        size = f"{format_bytes(self.bytes_in)} in, {format_bytes(self.bytes_out)} out"
        limit = f"; {self.limit}" if self.limit else ""
        return f"{state}: {self.position:,}{total} items{failed}, {rate}, {size}{left}{limit}"


class _File(msgspec.Struct):
    sha256: str
    manifest: msgspec.Raw


def read_status(folder: Path) -> JobStatus | None:
    path = folder / MANIFEST
    if not path.exists():
        return None
    with explain_damage(path, "the manifest cannot be used"):
        content = bytes(read_file(path, JobError)) if is_local(path) else path.read_bytes()
        file = msgspec.json.decode(content, type=_File)
        if sha256(file.manifest).hexdigest() != file.sha256:
            raise ValueError("its checksum is wrong")
        return msgspec.json.decode(file.manifest, type=JobStatus)


@contextmanager
def explain_damage(
    path: Path, fault: str = "a file of the last commit cannot be read"
) -> Iterator[None]:
    """Convert errors of reading the job's own `path` to a JobError that begins with `fault`."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
        raise JobError(
            f"{fault}: {error}",
            at=str(path),
            fix="restore it from a copy, or run the job in another folder; parts stay as they are",
        ) from error


def show_status(folder: Path) -> JobStatus:
    found = read_status(folder) or JobStatus()
    if is_local(folder):
        with suppress(OSError), open(folder / "lock") as file:
            return msgspec.structs.replace(found, is_running=not _lock(file.fileno()))
    return found


def commit(folder: Path, before: JobStatus, after: JobStatus, refuse: Refuse) -> None:
    """Replace manifest `before` in `folder` by `after`, then delete files that it no longer names.

    Raises JobError if another process replaced it (URLs have no lock), `refuse` for other errors.
    """
    if after.run and (read_status(folder) or JobStatus()) != before:
        raise JobError(
            "another process began to run the job",
            at=str(folder),
            fix="let one run it, which goes on; this process has ended",
        )
    content = msgspec.json.encode(after)
    file = _File(sha256(content).hexdigest(), msgspec.Raw(content))
    write_file(folder / MANIFEST, [msgspec.json.encode(file)], refuse)
    for name in before.files - after.files:
        _delete(folder / name)


def delete_leftovers(folder: Path, status: JobStatus | None) -> None:
    """Delete the leftovers of commits in `folder`; raise JobError for them if `status` is None."""
    for name in list(_list_files(folder)):
        if re.fullmatch(_DRAFT, name):
            _delete(folder / name)
        elif re.fullmatch(_NAME, name) and (status is None or name not in status.files):
            if status is None:
                raise JobError(
                    f"the folder has {name}, and no manifest says of which job",
                    at=str(folder),
                    fix=f"restore {MANIFEST} from a copy, or choose another folder",
                )
            _delete(folder / name)


def _list_files(folder: Path) -> Iterator[str]:
    for inside in FOLDERS:
        with suppress(FileNotFoundError, NotADirectoryError):  # an empty one of an object store
            for file in (folder / inside).iterdir():
                yield f"{inside}/{file.name}".lstrip("/")


def _delete(file: Path) -> None:
    # Otherwise it is deleted when the job is run again; each file system has errors of its own.
    with suppress(OSError if is_local(file) else Exception):
        file.unlink()


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep other processes out of `folder`, which is made if it is missing.

    The system releases the lock of a process that ends. At a URL nothing locks: `commit` compares
    manifests.
    """
    try:
        for inside in FOLDERS:
            (folder / inside).mkdir(parents=True, exist_ok=True)
        file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o666) if is_local(folder) else -1
    except Exception as error:  # each file system has its own
        raise JobError(
            f"cannot write to the folder {folder}: {getattr(error, 'strerror', None) or error!r}",
            fix="choose a folder, or a bucket of an object store, that this process may write to",
        ) from error
    if not is_local(folder):
        yield
        return
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


def _lock(file: int) -> bool:
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # Windows: the user sees to it
        return True
    except OSError:
        return False
    return True


class Parts:
    """Rows in files, called `names`: each part has the rows of a fixed range of positions.

    A commit in the middle of a part writes a piece; the commit that completes the part merges the
    pieces. So the files that a job ends with depend neither on the times of its commits nor on the
    moments at which it was stopped.
    """

    def __init__(
        self, path: Path, sink: Sink, names: Sequence[str], size: int, position: int, refuse: Refuse
    ) -> None:
        self._folder, self._inside, self._sink = path.parent, path.name, sink
        self._size, self._refuse = size, refuse
        self._position, self._begin = position, position - position % size
        self.names, self.rows, self.nbytes = list(names), list[Any](), 0
        pieces = self._find_pieces()
        self._blocks = [sink.load(self._folder / name) for name in pieces]
        self._n_written = len(self._blocks)
        # The first part makes the schema. All files that are complete have the same.
        first = next((self._folder / name for name in names if name not in pieces), None)
        self._schema, self._written = sink.find_schemas(self._blocks, first)
        self.grows, self.fills = first is None, True

    def extend(self, rows: Sequence[Row]) -> None:
        self.rows += [*map(self._sink.encode, rows)]

    def pack(self) -> list[tuple[int, JobError]]:
        """Pack the rows since the last commit; return positions and errors of those that failed."""
        rows, self.rows = self.rows, []
        if not rows:
            return []
        allows = {"grows": self.grows, "fills": self.fills}
        self._schema, failures = self._sink.fit(rows, self._blocks, self._schema, **allows)
        return failures

    def write(self, position: int, *, is_last: bool) -> None:
        """Write the rows up to `position`, inside the current part; `is_last` ends this part."""
        self.pack()
        begin, self._position = self._position, position
        if position - self._begin < self._size and not is_last:
            self._dump(self._blocks[self._n_written :], f"part-{begin:012d}-{position:012d}")
            self._n_written = len(self._blocks)
            return
        pieces = self._find_pieces()
        self.names = [name for name in self.names if name not in pieces]
        self._dump(self._blocks, f"part-{self._begin:012d}-{position:012d}")
        if position - self._begin == self._size:
            self._begin, self._blocks, self._n_written = position, [], 0
            if self.grows and self.names:
                self.grows, self._written = False, self._schema

    def add_names(self, names: Iterable[str]) -> None:
        self.names = sorted({*self.names, *names}, key=lambda name: (len(name), name))

    def write_repaired(self, number: int) -> None:
        """Write rows of earlier positions to a file of their own with `number` in its name."""
        self.pack()
        self._dump(self._blocks[self._n_written :], f"repaired-{number:012d}")

    def _find_pieces(self) -> list[str]:
        begin = f"{self._inside}/part-{self._begin:012d}"
        end = f"{self._inside}/part-{self._position:012d}"
        return [name for name in self.names if begin < name < end]

    def _dump(self, blocks: Sequence[Any], name: str) -> None:
        if not blocks or not self._sink.suffix:
            return
        self.match_schema()
        name = f"{self._inside}/{name}{self._sink.suffix}"
        self._write_file(self._folder / name, blocks)
        if name not in self.names:
            self.names.append(name)

    def match_schema(self) -> None:
        """Write the files so far again if rows have another schema, such as a given one."""
        if self._schema != self._written and not self.grows and self.fills:
            # The first file is the last to change: a run that is killed before does all again.
            for path in (self._folder / name for name in reversed(self.names)):
                self._write_file(path, [self._sink.load(path)])
            self._written = self._schema

    def _write_file(self, path: Path, blocks: Sequence[Any]) -> None:
        chunks = list(self._sink.dump(blocks, self._schema))
        self.nbytes += sum(map(len, chunks))
        write_file(path, chunks, self._refuse)
