"""Messages between a process and its workers, over a stream socket, with file descriptors.

A message is its length as 4 bytes, big-endian, and a msgpack list of scalars. Requests are answered
in order, each by one Done. Bulk data goes through shared files, never through the
socket, so messages are small and a bounded number of them never fills the socket's buffer.
"""

from __future__ import annotations

import os
import socket
import struct
from collections import deque
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from ...graph.values.errors import WireError

WINDOW = 16
"""The most requests without an answer."""

MAX_NBYTES = 16 << 20
MOST_DATA = 4096
"""Most data bytes in a request, so that all unanswered ones fit into the socket's buffer."""

_READ_NBYTES = 1 << 16
_LENGTH = struct.Struct(">I")

RequestKind: TypeAlias = Literal[
    "map", "import", "load", "bind", "rebind", "run", "close", "forget", "end"
]


class Hello(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The first message of a worker: it is ready, and runs this version of plait."""

    version: str


class WorkerRequest(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A request, and the number of the object that it makes or uses.

    The kinds ``map``, ``import``, ``load`` and ``bind`` carry a file descriptor, ``rebind`` up to
    `MOST_DATA` bytes in the message itself: there is one for each new length, and a file would take
    longer. ``run`` carries Python objects in either way, if its program reads any.
    """

    kind: RequestKind
    sequence: int
    number: int
    data: bytes = b""
    has_file: bool = False


class Done(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The answer to a request.

    `node_ns` holds 64-bit integers of this machine. `error` is the result of
    `remote_errors.describe` as JSON, which escapes the lone surrogates of file names that are not
    text. `data` holds the Python objects that a program has made, unless a file has them.
    """

    sequence: int
    started_ns: int
    ended_ns: int
    node_ns: bytes | None
    error: str | None
    data: bytes = b""
    has_file: bool = False


Message = TypeVar("Message", Hello, WorkerRequest, Done)

_DECODERS: dict[type, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (Hello, WorkerRequest, Done)
}


class Channel:
    """Sends and receives messages; one thread at a time for each direction.

    The `connection` is closed with the channel. Unless it `takes_fds`, the kernel discards file
    descriptors that come along.
    """

    def __init__(self, connection: socket.socket, *, takes_fds: bool = False) -> None:
        self.connection = connection
        self._takes_fds = takes_fds
        self._received = bytearray()
        self._fds: deque[int] = deque()
        self._encode = msgspec.msgpack.Encoder().encode

    def send(self, message: Hello | WorkerRequest | Done, fd: int | None = None) -> None:
        """Send `message`, and the file descriptor `fd`, if any, duplicated for the receiver.

        Raises WireError if the message is too large or contains invalid text; OSError if the
        connection is broken.
        """
        try:
            body = self._encode(message)
        except UnicodeEncodeError as error:
            raise WireError(f"a message holds what is not text: {error.object!r}") from error
        if len(body) > MAX_NBYTES:
            raise WireError(f"a message of {len(body)} bytes is too large to send")
        data = _LENGTH.pack(len(body)) + body
        if fd is not None:
            data = data[socket.send_fds(self.connection, [data], [fd]) :]
        self.connection.sendall(data)

    def receive(self, kind: type[Message]) -> Message | None:
        """Wait for a message of type `kind`; None if the other side has closed.

        Raises WireError if the message is malformed or cut short; OSError if the connection is
        broken.
        """
        while (body := self._next()) is None:
            data = self._read()
            if not data:
                if self._received:
                    raise WireError(f"a message is cut short after {len(self._received)} bytes")
                return None
            self._received += data
        return _decode(kind, body)

    def take_fd(self) -> int:
        """Return the oldest file descriptor that has not been taken; the caller owns it.

        Raises WireError if none has arrived.
        """
        if not self._fds:
            raise WireError("a message came without its file descriptor")
        return self._fds.popleft()

    def close(self) -> None:
        self.connection.close()
        while self._fds:
            os.close(self._fds.popleft())

    def _next(self) -> bytes | None:
        """Return the next message's body if all of it has been received."""
        if len(self._received) < _LENGTH.size:
            return None
        (nbytes,) = _LENGTH.unpack_from(self._received)
        if nbytes > MAX_NBYTES:
            raise WireError(f"a message claims {nbytes} bytes, the most is {MAX_NBYTES}")
        end = _LENGTH.size + nbytes
        if len(self._received) < end:
            return None
        body = bytes(self._received[_LENGTH.size : end])
        del self._received[:end]
        return body

    def _read(self) -> bytes:
        if not self._takes_fds:
            return self.connection.recv(_READ_NBYTES)
        data, fds, flags, _ = socket.recv_fds(self.connection, _READ_NBYTES, WINDOW)
        self._fds.extend(fds)
        if flags & socket.MSG_CTRUNC:
            raise WireError("file descriptors were lost on the way")
        return data


def _decode(kind: type[Message], body: bytes) -> Message:
    try:
        message: Message = _DECODERS[kind].decode(body)
    except msgspec.ValidationError as error:
        raise WireError(f"a message is not a {kind.__name__}: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"a message is damaged: {error}") from error
    return message
