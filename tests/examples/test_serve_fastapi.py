"""The web server: what it answers."""

from __future__ import annotations

import asyncio
import json

import plait as pl
import pytest
from patience import WAIT_S

pytest.importorskip("onnx")
for package in ("magika", "fastapi", "httpx"):
    pytest.importorskip(package, reason=f"pip install {package}")

import magika_pipeline  # noqa: E402 - needs the path that conftest.py adds
import serve_fastapi as example  # noqa: E402
from httpx import Response  # noqa: E402

from .server import CONTENT, CONTENTS, cheap_network, run, serving, tar  # noqa: E402


@pytest.fixture(scope="module")
def expected() -> list[example.Found]:
    """Return what the network says of each content by itself."""
    with pl.BlockingSession(example.plan_network()) as session:
        found = []
        for content in CONTENTS:
            tokens, verdict = magika_pipeline.content_features(content)
            scores = session.run({"tokens": tokens})["scores"]
            found.append(example.chosen(scores, verdict))
        return found


def same(answer: Response, expected: example.Found) -> bool:
    """Say whether an answer is as expected; batches round in another order."""
    assert answer.status_code == 200
    assert expected.score is not None
    found = answer.json()
    return bool(found["label"] == expected.label and abs(found["score"] - expected.score) < 1e-5)


@pytest.mark.extended
def test_many_requests_at_once_are_answered_as_one_by_one(expected: list[example.Found]) -> None:
    async def main() -> None:
        app = example.create_app(deadline_s=WAIT_S, max_delay_s=WAIT_S)
        async with serving(app) as client:
            for path, times in (("/identify", 4), ("/identify/batched", 4)):
                answers = await asyncio.gather(
                    *(client.post(path, content=content) for content in CONTENTS * times)
                )
                assert len(answers) == 64
                assert all(map(same, answers, expected * times))
            records = len(app.state.service.session.profile().records)
        assert records < 64 + 64 / 4, "batches are not full"

    run(main())


def test_an_archive_gets_a_line_for_each_file(expected: list[example.Found]) -> None:
    archive = tar({f"{index}.txt": content for index, content in enumerate(CONTENTS)})

    async def main() -> None:
        async with serving(example.create_app(deadline_s=WAIT_S)) as client:
            answer = await client.post("/identify/archive", content=archive)
        assert answer.headers["content-type"] == "application/x-ndjson"
        *found, empty = map(json.loads, answer.text.splitlines())
        assert empty == {"name": "link", "label": "empty", "score": 1.0}
        assert [one["name"] for one in found] == [f"{index}.txt" for index in range(len(CONTENTS))]
        assert [one["label"] for one in found] == [one.label for one in expected]

    run(main())


def test_files_that_need_no_network_are_not_given_to_it() -> None:
    async def main() -> None:
        app = example.create_app(cheap_network, deadline_s=WAIT_S)
        async with serving(app) as client:
            answers = [await client.post("/identify", content=c) for c in (b"", b"hi", b"\xff\xff")]
            assert not app.state.service.session.profile().records
        found = [answer.json() for answer in answers]
        assert found == [{"label": label, "score": 1.0} for label in ("empty", "txt", "unknown")]

    run(main())


@pytest.mark.parametrize(
    ("path", "body", "status", "detail"),
    [
        ("/scores", b"[1, 2, 3]", 422, "must be int32[batch, 2048], got shape [1, 3]"),
        ("/scores", b"[257]", 422, "less than or equal to 256"),
        ("/scores", b"tokens", 422, "JSON"),
        ("/identify/archive", b"no archive", 400, "not a tar archive"),
        ("/identify", b"x" * 20_001, 413, "more than 20000 bytes"),
    ],
)
def test_what_is_wrong_with_a_request_is_said(
    path: str, body: bytes, status: int, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example, "MOST_BYTES", 20_000)

    async def main() -> None:
        async with serving(example.create_app(cheap_network, deadline_s=WAIT_S)) as client:
            answer = await client.post(
                path, content=body, headers={"content-type": "application/json"}
            )
            assert (answer.status_code, detail in answer.text) == (status, True)
            assert (await client.post("/identify", content=CONTENT)).status_code == 200

    run(main())


def test_scores_come_by_label() -> None:
    async def main() -> None:
        async with serving(example.create_app(cheap_network, deadline_s=WAIT_S)) as client:
            tokens = [index % 257 for index in range(magika_pipeline.N_TOKENS)]
            found = (await client.post("/scores", json=tokens)).json()
        assert found == dict(zip(magika_pipeline.labels(), tokens[:214], strict=False))

    run(main())


def test_a_late_file_of_an_archive_says_so_and_the_others_go_on() -> None:
    async def main() -> None:
        async with serving(example.create_app(cheap_network, deadline_s=1e-9)) as client:
            answer = await client.post("/identify/archive", content=tar({"a": CONTENT}))
        assert "not done within" in json.loads(answer.text.splitlines()[0])["error"]

    run(main())


def test_a_truncated_archive_ends_with_an_error() -> None:
    archive = tar({"a": CONTENT, "b": b"x" * 5000})[:3000]

    async def main() -> None:
        async with serving(example.create_app(cheap_network, deadline_s=WAIT_S)) as client:
            answer = await client.post("/identify/archive", content=archive)
        first, last = map(json.loads, answer.text.splitlines())
        assert (first["name"], last) == ("a", {"error": "unexpected end of data"})

    run(main())


def test_the_status_counts_items() -> None:
    async def main() -> None:
        async with serving(example.create_app(cheap_network, deadline_s=WAIT_S)) as client:
            for _ in range(3):
                await client.post("/identify", content=CONTENT)
            await client.post("/scores", json=[1])
            found = (await client.get("/status")).json()
        assert (found["done"], found["failed"], found["in_flight"]) == (4, 1, 0)
        assert found["devices"] == {"cpu": {"at_work": 0, "waiting": 0}}

    run(main())
