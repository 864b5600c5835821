"""The web server of the examples in a test: asked without sockets, by clients that may go away."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator, Awaitable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

import magika_pipeline
import numpy as np
import plait as pl
from fake_devices import SteppedDevice
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient
from patience import WAIT_S, until

from .conftest import TEXTS

CONTENTS = [text.encode() for text in TEXTS.values()][:16]
CONTENT = CONTENTS[0]


def run(main: Awaitable[None]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(WAIT_S):
            await main

    asyncio.run(in_time())


@asynccontextmanager
async def serving(app: FastAPI, going: asyncio.Event | None = None) -> AsyncIterator[AsyncClient]:
    """Serve until the end of the block, where the event is set that a device waits for."""
    async with app.router.lifespan_context(app):
        async with AsyncClient(transport=ASGITransport(app), base_url="http://test") as client:
            try:
                yield client
            finally:
                if going is not None:
                    asyncio.get_running_loop().call_later(0.01, going.set)


@asynccontextmanager
async def stepping(device: SteppedDevice) -> AsyncIterator[asyncio.Event]:
    """Let a device work, once the event is set, to the end of the block."""
    going = asyncio.Event()

    async def step() -> None:
        await going.wait()
        while True:
            await until(lambda: device.queue)
            device.step()

    working = asyncio.create_task(step())
    try:
        yield going
    finally:
        working.cancel()


def cheap_network(device: SteppedDevice | None = None) -> pl.Plan:
    """Return a plan with the network's inputs and outputs: each file's first tokens."""
    builder = pl.GraphBuilder("cheap")
    tokens = builder.input("tokens", "int32", ("batch", magika_pipeline.N_TOKENS))
    ends = np.array([0]), np.array([magika_pipeline.N_SCORES]), np.array([1])
    builder.output("scores", builder.op("Cast", builder.op("Slice", tokens, *ends), to="float32"))
    return pl.plan(builder.build(), device or "cpu", max_in_flight=2)


def tar(contents: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        archive.addfile(link := tarfile.TarInfo("link"))
        assert link.isreg()
    return packed.getvalue()


async def n_tasks(app: FastAPI) -> int:
    """Return how many runs and streams the server's session has."""
    loop, found = app.state.service.session._open_loop(), Future[int]()
    loop.call_soon(lambda: found.set_result(len(loop._nursery.child_tasks)))
    return await asyncio.wrap_future(found)


class Client:
    """A client that has sent its request, and goes away or reads on when it is told to.

    Attributes
    ----------
    gone : asyncio.Event
        Set it to go away.
    body : list of bytes
        What was read so far.
    room : asyncio.Semaphore
        How much more may be read.
    """

    def __init__(self, path: str, content: bytes, spec_version: str = "2.3") -> None:
        self.gone = asyncio.Event()
        self.body: list[bytes] = []
        self.status: int | None = None
        self.room = asyncio.Semaphore(0)
        self._content: bytes | None = content
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": spec_version},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "headers": [],
            "query_string": b"",
        }

    async def ask(self, app: FastAPI) -> None:
        await app(self._scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if self._content is None:
            await self.gone.wait()
            return {"type": "http.disconnect"}
        content, self._content = self._content, None
        return {"type": "http.request", "body": content, "more_body": False}

    async def _send(self, message: Any) -> None:
        if self.gone.is_set():
            raise OSError("the client has gone")
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["body"]:
            self.body.append(message["body"])
            await self.room.acquire()
