"""Children that are forked from a process with open sessions: told so at once, heard by nobody."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from patience import WAIT_S

PROGRAM = """
import asyncio, gc, os, signal, sys
import numpy as np
import plait as pl
import trio
from plait.devices.event import Event
from plait.devices.lane import ThreadLane
from plait.devices.memory import SharedArena
from plait.devices.worker.device import WorkerDevice

FEEDS = {"x": np.array([-1, 2], "float32")}

def graph():
    b = pl.GraphBuilder("g")
    h = b.op("Relu", b.input("x", "float32", (2,)), name="first")
    b.output("y", b.op("Neg", h, name="second"))
    return b.build()

def plan():
    return pl.plan(graph(), ["cpu", "worker:0"], pin={"first": "worker:0"}, max_in_flight=2)

def frames(n):
    return (FEEDS for _ in range(n))

def right(outputs):
    assert outputs["y"].tolist() == [0, -2]

def in_child(*works):
    '''Fork; what each piece of work raises there, or that it raises nothing.'''
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(30)  # nobody handles it: a child that hangs is killed
        for work in works:
            try:
                work()
                text = "nothing"
            except BaseException as error:
                what = error.what if isinstance(error, pl.PlaitError) else error
                text = f"{type(error).__name__}: {what}"
            os.write(writer, text.encode() + b"\\n")
        os._exit(0)
    os.close(writer)
    with open(reader) as lines:
        raised = lines.read().splitlines()
    assert os.waitpid(child, 0)[1] == 0, raised
    return raised

FOREIGN = "SessionError: the session belongs to the process that this one was forked from"
"""

BLOCKING = """
def drop():
    global session, stream
    del session, stream
    gc.collect()

session = pl.BlockingSession(plan())
right(session.run(FEEDS))
stream = session.stream(frames(9))
right(next(stream))
raised = in_child(
    lambda: session.run(FEEDS, deadline_s=100),
    lambda: next(stream),
    lambda: session.stream(frames(1)),
    session.status,
    lambda: session.variables,
    stream.close,
    session.close,
    lambda: right(pl.run(plan(), FEEDS)),
    drop,
)
assert raised == [FOREIGN] * 5 + ["nothing"] * 4, raised
assert in_child(drop) == ["nothing"]
with stream._units._lock:  # as if another thread took an item
    assert in_child(stream.close) == ["nothing"]
for item in stream:
    right(item)
right(session.run(FEEDS))
session.close()
print("fine")
"""

TRIO = """
def stepped(coroutine):
    '''Take one step of it: nothing may be waited for.'''
    coroutine.send(None)

async def main():
    async with pl.Session(plan()) as session:
        right(await session.run(FEEDS))
        async with session.stream(frames(9)) as results:
            right(await anext(results))
            raised = in_child(
                lambda: stepped(session.run(FEEDS, deadline_s=100)),
                lambda: stepped(anext(results)),
                session.status,
                lambda: session.stream(frames(1)),
                lambda: stepped(results.drain()),
                lambda: stepped(session.__aexit__(None, None, None)),
            )
            assert raised == [FOREIGN] * 4 + ["StopIteration: "] * 2, raised
            async for item in results:
                right(item)
        right(await session.run(FEEDS))

trio.run(main)
print("fine")
"""

ASYNCIO = """
def stepped(coroutine):
    coroutine.send(None)

async def main():
    async with pl.AsyncioSession(plan()) as session:
        right(await session.run(FEEDS))
        async with session.stream(frames(9)) as results:
            right(await anext(results))
            raised = in_child(
                lambda: stepped(session.run(FEEDS, deadline_s=100)),
                lambda: stepped(anext(results)),
                lambda: stepped(results.__aexit__(None, None, None)),
                lambda: stepped(session.__aexit__(None, None, None)),
            )
            assert raised == [FOREIGN] * 2 + ["StopIteration: "] * 2, raised
            async for item in results:
                right(item)
        right(await session.run(FEEDS))

asyncio.run(main())
print("fine")
"""

PIPELINE = """
pipe = pl.pipeline(pl.step(lambda x: 2 * x, ordered=True), example=1)
def run(x):
    assert pipe.run(x) == 2 * x
run(1)
assert in_child(lambda: run(2), pipe.close, lambda: run(3), pipe.close) == ["nothing"] * 4
with pipe._opening[os.getpid()]:  # as if another thread opened it
    assert in_child(lambda: run(4)) == ["nothing"]
pipe.close()
print("fine")
"""

DEVICES = """
lane, worker, arena = ThreadLane("plait-test"), WorkerDevice("worker:0"), SharedArena(1024)
lane.open()
worker.open()
made = graph()
views = {n: worker.view(arena, 64 * i, s) for i, (n, s) in enumerate(made.tensors.items())}
program = worker.compile(made, views)
def again():
    worker.open()
    worker.submit(worker.compile(made, views)).wait(300)
    worker.close()
def cancel_late():
    event.cancel()
event = worker.submit(program)
raised = in_child(
    lambda: lane.put(Event(), print),
    lambda: worker.submit(program).wait(300),
    lambda: worker.compile(made, views),
    cancel_late,
    again,
    worker.close,
    lane.close,
)
closed = "DeviceUnavailableError: lane 'plait-test' is closed"
foreign = "DeviceUnavailableError: worker:0 works for the process that this one was forked from"
assert raised == [closed, foreign, foreign] + ["nothing"] * 4, raised
event.wait(300)
for _ in range(40):  # all places for cancelled work have had their turn
    worker.submit(program).wait(300)
worker.close()
lane.close()
print("fine")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_may_not_use_its_parents_sessions_and_devices() -> None:
    parts = [BLOCKING, TRIO, ASYNCIO, PIPELINE, DEVICES]
    program = "".join([PROGRAM, *parts])
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["fine"] * len(parts)
