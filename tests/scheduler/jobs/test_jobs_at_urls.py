"""Jobs with folders and files at URLs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import killed_job
import plait as pl
import pytest
from job_cases import TEXTS, make_pipe, read_lines
from plait.scheduler.jobs.commits import show_status
from plait.scheduler.jobs.folders import to_path

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("upath")


@pytest.fixture
def url() -> Iterator[str]:
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    yield "memory://bucket/job"
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


@contextmanager
def serve(status: int = 201) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Run a server that accepts files by PUT, and has no names to list, change or delete."""
    received = dict[str, bytes]()

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            received[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", received
        server.shutdown()
        thread.join()


@contextmanager
def serve_s3(bucket: str) -> Iterator[str]:
    """Run a server of S3 in this process, and yield the URL of a bucket."""
    pytest.importorskip("s3fs")
    servers = pytest.importorskip("moto.server")
    server = servers.ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    settings = {"endpoint_url": f"http://{host}:{port}", "key": "a", "secret": "b"}
    before = dict(fsspec.config.conf)
    fsspec.config.conf["s3"] = settings
    try:
        fsspec.filesystem("s3", skip_instance_cache=True).mkdir(bucket)
        yield f"s3://{bucket}/job"
    finally:
        fsspec.config.conf.clear()
        fsspec.config.conf.update(before)
        server.stop()


@pytest.mark.parametrize("kind", ["stateless", "stateful"])
def test_a_job_that_is_stopped_ends_with_the_bytes_of_a_local_one(
    tmp_path: Path, url: str, kind: str
) -> None:
    check_stops(tmp_path, url, kind)


def check_stops(tmp_path: Path, url: str, kind: str) -> None:
    """Stop a job at a URL twice, and compare its files with those of a local one."""
    plan, stops_at = killed_job.make_plan(kind), 33

    def read(position: int) -> Iterator[Any]:
        for number, item in enumerate(killed_job.read(position), position):
            if number == stops_at:
                raise ConnectionError("the server is away")
            yield item

    def make(folder: Any) -> pl.Job:
        sink = "jsonl" if kind == "stateful" else "arrow"
        return pl.Job(plan, read, sink, folder, part_items=40, commit_items=10)

    for position in (33, 95):
        stops_at = position
        with pytest.raises(ConnectionError):
            make(url).run()
        (to_path(url) / "parts" / f"part-{position:012d}-{position + 1:012d}.arrow").write_bytes(
            b""
        )
        (to_path(url) / f".manifest.json.{position:016x}").write_bytes(b"")
        assert show_status(to_path(url)).position == position
    stops_at = -1
    job = make(url)
    assert not job.at_least_once
    assert job.run().is_done
    assert make(url).run() == job.status()
    make(tmp_path / "local").run()
    assert killed_job.read_files(job.folder) == killed_job.read_files(tmp_path / "local")
    # Listings that a file system keeps would show deleted files.
    files = [path for path in job.folder.iterdir() if path.name.endswith("json") or path.is_file()]
    assert [path.name for path in files] == ["manifest.json"]
    if kind == "stateful":
        assert len(list((job.folder / "variables").iterdir())) == 1


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["stateless", "stateful"])
def test_a_job_runs_in_a_bucket_of_s3(tmp_path: Path, kind: str) -> None:
    with serve_s3(kind) as url:
        check_stops(tmp_path, url, kind)


def test_failed_items_are_repaired_at_a_url(url: str) -> None:
    is_broken = True

    def check(text: str) -> dict[str, Any]:
        if is_broken and text == "two words":
            raise ValueError
        return {"text": text}

    job = pl.Job(make_pipe(check), TEXTS, "jsonl", url)
    assert job.run().failed == 7
    is_broken = False
    assert job.repair().failed == 0
    assert len(read_lines(job)) == 21


def test_a_process_whose_job_another_one_resumed_stops_and_loses_nothing(url: str) -> None:
    """Nothing locks at a URL, and a machine can be slow rather than dead."""
    pipe, taken = make_pipe(), list[pl.jobs.JobStatus]()

    def read(position: int) -> Iterator[str]:
        for number in range(position, 21):
            if number == 13:
                taken.append(pl.Job(pipe, TEXTS, "jsonl", url, commit_items=4).run())
            yield TEXTS[number]

    first = pl.Job(pipe, pl.jobs.JobSource(read, 21), "jsonl", url, commit_items=4)
    with pytest.raises(pl.JobError, match="another process began to run the job"):
        first.run()
    assert first.status() == taken[0]
    assert [row["position"] for row in read_lines(first)] == [*range(21)]


def test_a_damaged_manifest_at_a_url_is_refused(url: str) -> None:
    job = pl.Job(make_pipe(), TEXTS, "jsonl", url)
    job.run()
    (job.folder / "manifest.json").write_bytes(b"{")
    for call in (job.run, job.status):
        with pytest.raises(pl.JobError, match="the manifest cannot be used"):
            call()


def test_variables_that_are_gone_are_named(url: str) -> None:
    plan = killed_job.make_plan("stateful")
    job = pl.Job(plan, list(killed_job.read(230)), "jsonl", url)
    (job.folder / job.run().variables).unlink()
    with pytest.raises(pl.JobError, match="a file of the last commit cannot be read"):
        job.run()


def test_items_get_files_at_a_url(url: str) -> None:
    job = pl.Job(make_pipe(), TEXTS[:3], f"{url}/{{position}}.json", f"{url}-folder")
    assert not job.at_least_once
    job.run()
    found = {path.name: path.read_bytes() for path in to_path(url).iterdir()}
    assert found["1.json"] == b'{"position":1,"words":2,"text":"two words"}'
    assert sorted(found) == ["0.json", "1.json", "2.json"]


def test_files_are_sent_to_a_server_at_least_once(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    with serve() as (server, received):
        job = pl.Job(make_pipe(), TEXTS[:3], f"{server}/out/{{words}}.json", tmp_path / "a")
        assert job.at_least_once
        job.run()
        assert sorted(received) == ["/out/1.json", "/out/2.json", "/out/3.json"]
        with pytest.raises(pl.JobError, match="cannot write to the folder http"):
            pl.Job(make_pipe(), TEXTS, "jsonl", f"{server}/job").run()
        sink = pl.jobs.Files(lambda row: f"{server}/{row['words']}.json")
        assert pl.Job(make_pipe(), TEXTS[:3], sink, tmp_path / "c").run().failed == 3
    with serve(403) as (server, _), pytest.raises(pl.JobError, match=r"cannot write http.*403"):
        pl.Job(make_pipe(), TEXTS, f"{server}/{{position}}.json", tmp_path / "b").run()
