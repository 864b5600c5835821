"""The web server's clients that go away or take their time, and the server's own end."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from fake_devices import SteppedDevice
from patience import WAIT_S, until
from resources import held, left_since

pytest.importorskip("onnx")
for package in ("magika", "fastapi", "httpx"):
    pytest.importorskip(package, reason=f"pip install {package}")

import magika_pipeline  # noqa: E402 - needs the path that conftest.py adds
import serve_fastapi as example  # noqa: E402

from .server import (  # noqa: E402
    CONTENT,
    CONTENTS,
    Client,
    cheap_network,
    n_tasks,
    run,
    serving,
    stepping,
    tar,
)


@pytest.mark.parametrize("path", ["/identify", "/identify/batched"])
def test_what_takes_too_long_is_given_up(path: str) -> None:
    device = SteppedDevice("stepped", private=False)

    async def main() -> None:
        app = example.create_app(lambda: cheap_network(device), deadline_s=0.05)
        async with stepping(device) as going, serving(app, going) as client:
            asking = asyncio.ensure_future(client.post(path, content=CONTENT))
            await until(lambda: asking.done() or (device.queue and device.queue[0][0].cancelled))
            going.set()
            answer = await asking
        assert (answer.status_code, "not done within 0.05 s" in answer.text) == (504, True)

    run(main())


def test_a_client_that_goes_away_takes_its_run_along() -> None:
    device = SteppedDevice("stepped", private=False)

    async def main() -> None:
        app = example.create_app(lambda: cheap_network(device), deadline_s=WAIT_S)
        async with stepping(device) as going, serving(app, going):
            client = Client("/identify", CONTENT)
            asking = asyncio.create_task(client.ask(app))
            await until(lambda: device.queue)
            assert await n_tasks(app) == 2, "the run, and the stream of batches"
            client.gone.set()
            await until(lambda: device.queue[0][0].cancelled)
            assert not asking.done(), "what runs ends first"
            device.step()
            await asyncio.wait((asking,))
            assert await n_tasks(app) == 1
            going.set()
            again = Client("/identify", CONTENT)
            again.room.release()
            await again.ask(app)
            assert again.status == 200

    run(main())


def test_nothing_runs_for_a_client_that_went_away_before_its_batch() -> None:
    device = SteppedDevice("stepped", private=False)

    async def main() -> None:
        app = example.create_app(lambda: cheap_network(device), deadline_s=WAIT_S, batch=1)
        async with stepping(device) as going, serving(app, going):
            clients = [Client("/identify/batched", content) for content in CONTENTS[:4]]
            asking = [asyncio.create_task(client.ask(app)) for client in clients]
            await until(lambda: device.queue)
            for client in clients:
                client.gone.set()
            await asyncio.wait(asking)
            going.set()
            await app.state.service.run_in_batch({"tokens": np.zeros((1, 2048), np.int32)})
            records = app.state.service.session.profile().records
            done = [record for record in records if not record.failed]
            assert len(done) <= 3, "two slots, and the last; others were cancelled when they began"

    run(main())


@pytest.mark.parametrize("taken", [1, 3])
def test_no_more_of_an_archive_is_read_than_the_client_takes(
    taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bytes] = []
    features = magika_pipeline.content_features

    def counted(content: bytes) -> Any:
        read.append(content)
        return features(content)

    monkeypatch.setattr(magika_pipeline, "content_features", counted)
    archive = tar({f"{index}": CONTENT for index in range(12)})

    async def main() -> None:
        app = example.create_app(cheap_network, deadline_s=WAIT_S)
        async with serving(app):
            client = Client("/identify/archive", archive)
            asking = asyncio.create_task(client.ask(app))
            for _ in range(taken - 1):
                client.room.release()
            await until(lambda: len(client.body) == taken)
            for _ in range(20):
                await n_tasks(app)
            assert taken <= len(read) <= taken + 1, "two are in flight"
            for _ in range(20):
                client.room.release()
            await asking
            assert len(read) == len(client.body) == 13

    run(main())


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
def test_a_client_that_goes_away_ends_its_stream(spec_version: str) -> None:
    archive = tar({f"{index}": CONTENT for index in range(12)})

    async def main() -> None:
        app = example.create_app(cheap_network, deadline_s=WAIT_S)
        async with serving(app):
            client = Client("/identify/archive", archive, spec_version)
            asking = asyncio.create_task(client.ask(app))
            await until(lambda: client.body)
            assert await n_tasks(app) == 2
            client.gone.set()
            client.room.release()
            await asyncio.wait((asking,))
            assert await n_tasks(app) == 1
            assert len(client.body) == 1

    run(main())


# its end


def test_requests_that_run_when_it_ends_are_answered_and_nothing_is_left() -> None:
    device = SteppedDevice("stepped", private=False)
    before = held()

    async def main() -> None:
        app = example.create_app(lambda: cheap_network(device), deadline_s=WAIT_S)
        async with stepping(device) as going:
            async with serving(app) as client:
                cancelled = until(lambda: device.queue and device.queue[0][0].cancelled)
                asyncio.ensure_future(cancelled).add_done_callback(lambda _: going.set())
                asking = [
                    asyncio.ensure_future(client.post(path, content=content))
                    for content in CONTENTS[:8]
                    for path in ("/identify", "/identify/batched")
                ]
                while await n_tasks(app) < 8 + 1:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                await until(lambda: device.queue)
            answers = await asyncio.gather(*asking)
        assert {answer.status_code for answer in answers} == {503}
        assert all("closed" in answer.text for answer in answers)

    run(main())
    assert not left_since(before)
