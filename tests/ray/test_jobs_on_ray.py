"""Jobs on a real cluster, whose hosts are killed in the middle."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import killed_job
import numpy as np
import plait as pl
import pytest
from job_cases import read_lines
from plait.scheduler.ray import BlockingReplicaPool, Cluster, RayNode

ITEMS = 200


def make_graph() -> pl.Graph:
    b = pl.GraphBuilder("noise")
    y = b.input("x", "float32", (1, 64)) * 2.0
    b.output("y", b.op("Add", y, b.op("RandomUniformLike", y)))
    return b.build()


def read(position: int) -> Iterator[Any]:
    """Yield items, of which some cannot be fed."""
    for number in range(position, ITEMS):
        yield {"x": np.full(64, number, "float32") if number % 17 else "text"}


def make_job(work: Any, folder: Path, **options: Any) -> pl.Job:
    source = pl.jobs.JobSource(read, ITEMS)
    given = {"part_items": 50, "commit_items": 20, **options}
    return pl.Job(work, source, "arrow", folder, **given)


class Watched:
    """A cluster that keeps the pool that a job has opened."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def dump(self, *arguments: Any, **more: Any) -> Any:
        return self._cluster.dump(*arguments, **more)

    def blocking_replicas(self, *arguments: Any, **more: Any) -> BlockingReplicaPool:
        self.pool = self._cluster.blocking_replicas(*arguments, **more)
        return self.pool

    def make_killer(self, killed: list[int], every: int) -> Callable[[int], None]:
        """Return a progress function that kills two replicas, the busiest first."""

        def kill(done: int) -> None:
            if len(killed) == 2 or done < every * (len(killed) + 1):
                return
            replicas = self.pool.status().replicas.values()
            ready = [one for one in replicas if one.ready and one.process not in killed]
            if ready:  # a replica that takes the place of a killed one may still start
                killed.append(max(ready, key=lambda one: one.under_way).process)
                os.kill(killed[-1], signal.SIGKILL)

        return kill


@pytest.mark.parametrize("order", ["item", "shard"])
def test_a_job_on_replicas_that_are_killed_ends_with_the_bytes_of_one_here(
    ray_cluster: Cluster, tmp_path: Path, order: Any
) -> None:
    plan, killed = pl.plan(make_graph()), list[int]()
    make_job(plan, tmp_path / "here", part_items=25).run()
    cluster = Watched(ray_cluster)
    options = {"part_items": 25, "order": order, "cluster": cluster, "replicas": {"n": 2}}
    job = make_job(plan, tmp_path / "there", **options)
    assert job.run(progress=cluster.make_killer(killed, 70)).is_done
    assert killed
    assert killed_job.read_files(tmp_path / "there") == killed_job.read_files(tmp_path / "here")
    assert job.status().failed == 12
    assert job.status().bytes_in > 0


def test_a_pipeline_runs_over_files_by_shard_and_is_repaired_here(
    ray_cluster: Cluster, tmp_path: Path
) -> None:
    for number in range(3):
        lines = (json.dumps(f"{number} {item}") for item in range(5))
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines))
    broken = tmp_path / "broken"
    broken.touch()

    def check(text: str) -> dict[str, str]:
        if broken.exists() and text.endswith("3"):
            raise ValueError("three")
        return {"text": text, "process": str(os.getpid())}

    pipe = pl.pipeline(pl.step(check, ordered=False), example="a")
    job = pl.Job(
        pipe, f"{tmp_path}/*.jsonl", "jsonl", tmp_path / "job", order="shard", cluster=ray_cluster
    )
    status = job.run()
    assert (status.position, status.failed, status.shards) == (15, 3, (0, 1, 2))
    rows = read_lines(job)
    assert [row["text"] for row in rows] == [f"{f} {n}" for f in range(3) for n in (0, 1, 2, 4)]
    assert str(os.getpid()) not in {row["process"] for row in rows}
    broken.unlink()
    assert job.repair().failed == 0
    ordered = pl.Job(pipe, ["1 a", "2 3"], "jsonl", tmp_path / "ordered", cluster=ray_cluster)
    assert ordered.run().failed == 0
    assert [row["text"] for row in read_lines(ordered)] == ["1 a", "2 3"]


def test_a_folder_that_hosts_do_not_share_is_refused(
    ray_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(pl.plan(make_graph()), tmp_path / "job", order="shard", cluster=ray_cluster)
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: exists(path) and "part-" not in path.name)
    with pytest.raises(pl.JobError, match="which this process does not see"):
        job.run()


@pytest.mark.extended
@pytest.mark.parametrize("order", ["item", "shard"])
def test_nodes_leave_and_join_in_the_middle_of_a_job(
    ray_cluster: Cluster, tmp_path: Path, order: Any
) -> None:
    plan, moved = pl.plan(make_graph()), list[int]()
    make_job(plan, tmp_path / "here", part_items=20).run()
    number = ray_cluster.add_node(RayNode({"gpu": "c"}))

    def move(done: int) -> None:
        nonlocal number
        if len(moved) < 2 and done >= 60 * (len(moved) + 1):
            moved.append(done)
            ray_cluster.remove_node(number)
            number = ray_cluster.add_node(RayNode({"gpu": "c"}))

    options = {"order": order, "cluster": ray_cluster, "replicas": {"select": {"gpu": "c"}}}
    job = make_job(plan, tmp_path / "there", part_items=20, **options)
    assert job.run(progress=move).is_done
    ray_cluster.remove_node(number)
    assert len(moved) == 2
    assert killed_job.read_files(tmp_path / "there") == killed_job.read_files(tmp_path / "here")


def test_a_job_with_a_plan_for_a_host_that_is_killed_loses_nothing(
    ray_cluster: Cluster, tmp_path: Path
) -> None:
    graph = make_graph()
    with closing(ray_cluster.host("job", select={"gpu": "a"})) as host:
        plan = pl.plan(graph, ["ray:job/cpu"], max_in_flight=4)

        def kill(done: int) -> None:
            if done == 90:
                assert host.pid is not None
                os.kill(host.pid, signal.SIGKILL)

        assert make_job(plan, tmp_path / "there").run(progress=kill).failed == 12
    make_job(pl.plan(graph), tmp_path / "here").run()
    assert killed_job.read_files(tmp_path / "there") == killed_job.read_files(tmp_path / "here")


def test_a_plan_with_variables_is_refused(tmp_path: Path) -> None:
    job = make_job(killed_job.make_plan("stateful"), tmp_path / "job", cluster=object())
    with pytest.raises(pl.JobError, match="each host would have its own"):
        job.run()
