from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Iterator

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple
from plait.devices.worker.wire import MAX_NBYTES, Channel, Done, Hello, WorkerRequest
from plait.graph.values.errors import WireError

Ends = tuple[Channel, Channel]

int64 = st.integers(-(2**63), 2**63 - 1)
dones = st.builds(
    Done,
    int64,
    int64,
    int64,
    st.none() | st.binary(max_size=64),
    st.none() | st.text(max_size=20),
)


@pytest.fixture
def ends() -> Iterator[Ends]:
    with_fds, without = socket.socketpair()
    channels = Channel(with_fds, takes_fds=True), Channel(without)
    yield channels
    for channel in channels:
        channel.close()


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def received(data: bytes, *, close: bool = True) -> Done | None:
    """Return what a channel makes of bytes that somebody sends."""
    sender, receiver = socket.socketpair()
    channel = Channel(receiver)
    try:
        sender.sendall(data)
        if close:
            sender.close()
        return channel.receive(Done)
    finally:
        sender.close()
        channel.close()


@given(st.lists(dones, max_size=8))
def test_messages_arrive_as_they_were_sent(messages: list[Done]) -> None:
    left, right = (Channel(end) for end in socket.socketpair())
    try:
        for message in messages:
            left.send(message)
        left.connection.shutdown(socket.SHUT_WR)
        assert [right.receive(Done) for _ in messages] == messages
        assert right.receive(Done) is None
    finally:
        left.close()
        right.close()


def test_a_message_larger_than_the_socket_buffer_arrives(ends: Ends) -> None:
    message = Done(1, 2, 3, bytes(range(256)) * 8192, None)
    sending = threading.Thread(target=ends[0].send, args=(message,))
    sending.start()
    assert ends[1].receive(Done) == message
    sending.join()


def test_text_that_is_none_is_not_sent(ends: Ends) -> None:
    """Errors are JSON, which escapes the lone surrogates of undecodable file names."""
    message = Done(1, 0, 0, None, json.dumps(["caf\udce9"]))
    ends[0].send(message)
    received = ends[1].receive(Done)
    assert received == message
    assert json.loads(received.error or "") == ["caf\udce9"]
    with pytest.raises(WireError, match="not text"):
        ends[0].send(Done(1, 0, 0, None, "caf\udce9"))


def test_a_file_descriptor_comes_with_its_message(ends: Ends) -> None:
    read_end, write_end = os.pipe()
    ends[1].send(WorkerRequest("run", 1, 1))
    ends[1].send(WorkerRequest("map", 2, 7), write_end)
    os.close(write_end)
    ends[0].receive(WorkerRequest)
    assert ends[0].receive(WorkerRequest) == WorkerRequest("map", 2, 7)
    taken = ends[0].take_fd()
    os.write(taken, b"hello")
    os.close(taken)
    assert os.read(read_end, 10) == b"hello"
    os.close(read_end)


def test_file_descriptors_are_taken_in_the_order_of_their_messages(ends: Ends) -> None:
    pipes = [os.pipe() for _ in range(3)]
    for number, (_, write_end) in enumerate(pipes):
        ends[1].send(WorkerRequest("map", number, 0), write_end)
        os.close(write_end)
    for _ in pipes:
        ends[0].receive(WorkerRequest)
    for number, (read_end, _) in enumerate(pipes):
        taken = ends[0].take_fd()
        os.write(taken, bytes([number]))
        os.close(taken)
        assert os.read(read_end, 10) == bytes([number])
        os.close(read_end)


def test_taking_a_file_descriptor_that_did_not_come_is_an_error(ends: Ends) -> None:
    with pytest.raises(WireError, match="without its file descriptor"):
        ends[0].take_fd()


def test_closing_a_channel_closes_descriptors_that_nobody_took(ends: Ends) -> None:
    read_end, write_end = os.pipe()
    ends[1].send(WorkerRequest("map", 1, 1), write_end)
    os.close(write_end)
    ends[0].receive(WorkerRequest)
    ends[0].close()
    assert os.read(read_end, 1) == b""
    os.close(read_end)


def test_a_channel_that_takes_no_descriptors_discards_them(ends: Ends) -> None:
    read_end, write_end = os.pipe()
    ends[0].send(WorkerRequest("map", 1, 1), write_end)
    os.close(write_end)
    ends[1].receive(WorkerRequest)
    assert os.read(read_end, 1) == b""
    os.close(read_end)


def test_a_message_that_is_too_large_is_not_sent(ends: Ends) -> None:
    with pytest.raises(WireError, match="too large"):
        ends[0].send(Done(1, 0, 0, bytes(MAX_NBYTES), None))


def test_a_length_beyond_the_bound_is_refused_before_any_of_it_is_read() -> None:
    with pytest.raises(WireError, match=f"the most is {MAX_NBYTES}"):
        received(struct.pack(">I", MAX_NBYTES + 1), close=False)


@pytest.mark.parametrize("nbytes", [1, 3, 4, 8])
def test_a_message_cut_short_is_an_error(nbytes: int) -> None:
    whole = framed(msgpack.packb([1, 2, 3, b"times", None]))
    with pytest.raises(WireError, match="cut short"):
        received(whole[:nbytes])


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [1, 2, 3, None],
        [1, 2, 3, None, None, None],
        ["1", 2, 3, None, None],
        [1, 2, 3.0, None, None],
        [1, 2, True, None, None],
        [1, 2, 3, None, ["an error"]],
        [1, 2, 3, "times", None],
        "a string",
        {},
        None,
        [1, 2, 3, None, {"a": 1}],
    ],
    ids=repr,
)
def test_a_message_of_another_form_is_an_error(fields: object) -> None:
    with pytest.raises(WireError):
        received(framed(msgpack.packb(fields)))


def test_a_message_of_another_type_is_an_error(ends: Ends) -> None:
    ends[0].send(Hello("0.0.0"))
    with pytest.raises(WireError, match="not a Done"):
        ends[1].receive(Done)


@settings(max_examples=200)
@given(st.binary(max_size=64))
def test_random_bytes_are_a_message_or_a_wire_error(data: bytes) -> None:
    try:
        done = received(data)
    except WireError:
        return
    assert done is None or type(done) is Done


@given(dones, st.data())
def test_a_message_with_one_byte_changed_is_a_message_or_a_wire_error(
    message: Done, data: st.DataObject
) -> None:
    whole = bytearray(framed(msgpack.packb(astuple(message))))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    try:
        done = received(bytes(whole))
    except WireError:
        return
    assert type(done) is Done
