"""A web server that names the types of files: one session of magika's network for all requests.

    POST /identify           a file: its type, or 504 where that takes too long
    POST /identify/batched   the same; requests of the same moment share a run of the network
    POST /identify/archive   a tar archive: a line of JSON for each of its files, as they are done
    POST /scores             the network alone: 2048 tokens as JSON
    GET  /status             what is under way, what has ended, what memory is in use

A client that goes away takes its work along. Needs ``pip install '.[onnx]' magika==1.0.3
fastapi uvicorn``.

    uvicorn --app-dir examples serve_fastapi:app
    curl --data-binary @README.md localhost:8000/identify
    tar c docs | curl -N --data-binary @- localhost:8000/identify/archive
"""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeAlias, TypeVar

import magika_pipeline
import numpy as np
import plait as pl
from fastapi import Body, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, StreamingResponse
from numpy.typing import NDArray
from pydantic import BaseModel, Field
from starlette.types import Receive, Scope, Send

T = TypeVar("T")
Arrays: TypeAlias = Mapping[str, NDArray[Any]]
Run: TypeAlias = Callable[[Arrays], Awaitable[Arrays]]
Token = Annotated[int, Field(ge=0, le=256)]

MOST_BYTES = 16 << 20
"""Larger files and archives are refused."""

CLIENT_GONE = 499
"""A status that nobody sees but the log."""

STATUS = {pl.FeedError: 422, pl.DeadlineError: 504, pl.SessionError: 503}
"""How errors of a session are answered; others are the server's own."""


class Found(BaseModel):
    """A file's type and the network's score for it, or why there is none."""

    name: str | None = None
    label: str | None = None
    score: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class Service:
    """What requests share while the server runs."""

    session: pl.AsyncioSession
    batches: pl.MicroBatches
    deadline_s: float

    @property
    def run(self) -> Run:
        """Run one item by itself."""
        return partial(self.session.run, deadline_s=self.deadline_s)

    @property
    def run_in_batch(self) -> Run:
        """Run one item together with others that are there."""
        return partial(self.batches.run, deadline_s=self.deadline_s)

    async def archived(self, archive: tarfile.TarFile) -> AsyncGenerator[str]:
        """Yield a line for each file; no more of them are read than the client takes lines."""
        reading: deque[tuple[str, magika_pipeline.Tokens]] = deque()

        def files() -> Iterator[Arrays]:
            for member in archive:
                if member.isreg() and not member.issparse():
                    file = archive.extractfile(member)
                    assert file is not None
                    tokens, verdict = magika_pipeline.content_features(file.read())
                    reading.append((member.name, verdict))
                    yield {"tokens": tokens}

        try:
            async with self.session.stream(files(), deadline_s=self.deadline_s) as results:
                async for item in results:
                    name, verdict = reading.popleft()
                    if item.error is None:
                        found = chosen(item["scores"], verdict)
                    else:
                        found = Found(error=first_line(item.error))
                    yield line(found.model_copy(update={"name": name}))
        except (tarfile.TarError, pl.SessionError) as error:  # too late for another status
            yield line(Found(error=first_line(error)))


class Streamed(StreamingResponse):
    """A response that closes what it comes from when the client goes away, not some time later."""

    def __init__(self, lines: AsyncGenerator[str]) -> None:
        super().__init__(lines, media_type="application/x-ndjson")
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything, or as much as the client takes."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._lines.aclose()


def plan_network() -> pl.Plan:
    """Plan magika's network, for any number of files at once."""
    builder = pl.GraphBuilder("scores")
    tokens = builder.input("tokens", "int32", ("batch", magika_pipeline.N_TOKENS))
    network = pl.load(magika_pipeline.model_path())
    builder.output("scores", builder.include(network, {"bytes": tokens})["target_label"])
    return pl.plan(builder.build(), max_in_flight=2)


def create_app(
    plan: Callable[[], pl.Plan] = plan_network,
    *,
    deadline_s: float = 2.0,
    batch: int = 8,
    max_delay_s: float = 0.002,
) -> FastAPI:
    """Return the server; its session is open from its start to its end."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        planned = await asyncio.to_thread(plan)
        async with (
            pl.AsyncioSession(planned) as session,
            pl.MicroBatches(session, size=batch, max_delay_s=max_delay_s) as batches,
        ):
            app.state.service = Service(session, batches, deadline_s)
            yield

    app = FastAPI(title="What kind of file is this?", lifespan=lifespan)
    for kind in STATUS:
        app.add_exception_handler(kind, answer_error)
    app.post("/identify", response_model_exclude_none=True)(identify)
    app.post("/identify/batched", response_model_exclude_none=True)(identify_batched)
    app.post("/identify/archive")(identify_archive)
    app.post("/scores")(scores)
    app.get("/status")(status)
    return app


async def identify(request: Request) -> Found:
    """Identify one file."""
    found = found_in(await content_of(request), service_of(request).run)
    return await while_connected(request, found)


async def identify_batched(request: Request) -> Found:
    """Identify one file, together with those of other requests."""
    found = found_in(await content_of(request), service_of(request).run_in_batch)
    return await while_connected(request, found)


async def identify_archive(request: Request) -> Streamed:
    """Identify every file of an archive."""
    content = await content_of(request)
    try:
        # Not compressed: sixteen megabytes could become gigabytes.
        archive = tarfile.open(fileobj=io.BytesIO(content), mode="r:")  # noqa: SIM115 - of memory
    except tarfile.TarError as error:
        raise HTTPException(400, f"the body is not a tar archive: {error}") from None
    return Streamed(service_of(request).archived(archive))


async def scores(request: Request, tokens: Annotated[list[Token], Body()]) -> dict[str, float]:
    """Return the score of each label, for tokens that the client has cut itself."""
    run = service_of(request).run
    outputs = await while_connected(request, run({"tokens": np.array([tokens], np.int32)}))
    return dict(zip(magika_pipeline.labels(), outputs["scores"][0].tolist(), strict=False))


async def status(request: Request) -> dict[str, Any]:
    """Return what the session and the batches do at this moment."""
    service = service_of(request)
    session = await service.session.status()
    return {**session.to_dict(), "batches": service.batches.status().to_dict()}


async def found_in(content: bytes, run: Run) -> Found:
    """Return a file's type; the network is run where there is no verdict without it."""
    tokens, verdict = magika_pipeline.content_features(content)
    if verdict[0] != magika_pipeline.ASK_MODEL:
        return Found(label=magika_pipeline.labels()[verdict[0]], score=1.0)
    outputs = await run({"tokens": tokens})
    return chosen(outputs["scores"], verdict)


def chosen(scores: magika_pipeline.Scores, verdict: magika_pipeline.Tokens) -> Found:
    """Return what a file's scores say."""
    label, score = magika_pipeline.choose_label(scores, verdict)
    return Found(label=magika_pipeline.labels()[label[0]], score=float(score[0]))


async def content_of(request: Request) -> bytes:
    """Return the body, unless it is too long."""
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > MOST_BYTES:
            raise HTTPException(413, f"more than {MOST_BYTES} bytes")
    return bytes(content)


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """Return what comes of work; if the client goes away, cancel that and wait for its end."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(disconnected(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise HTTPException(CLIENT_GONE)
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.wait((working, leaving))


async def disconnected(request: Request) -> None:
    """Wait until the client has gone; it has sent all of its request."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def answer_error(request: Request, error: Exception) -> JSONResponse:
    """Answer what a session raised."""
    status = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    return JSONResponse({"detail": first_line(error)}, status)


def service_of(request: Request) -> Service:
    """Return what requests share."""
    service: Service = request.app.state.service
    return service


def first_line(error: BaseException) -> str:
    """Return what happened, without advice to programmers."""
    return (str(error) or type(error).__name__).splitlines()[0]


def line(found: Found) -> str:
    """Return a line of JSON."""
    return found.model_dump_json(exclude_none=True) + "\n"


app = create_app()
