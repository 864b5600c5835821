"""Jobs on a real cluster, whose hosts are killed in the middle."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import killed_job
import numpy as np
import plait as pl
import pytest
from plait.scheduler.ray import Cluster, RayNode

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
    return pl.Job(work, source, "arrow", folder, part_items=50, commit_items=20, **options)


def test_a_job_on_replicas_that_are_killed_ends_with_the_bytes_of_one_here(
    ray_cluster: Cluster, tmp_path: Path
) -> None:
    plan, killed = pl.plan(make_graph()), list[int]()
    make_job(plan, tmp_path / "here").run()
    with ray_cluster.blocking_replicas(plan, n=2) as pool:
        job = make_job(plan, tmp_path / "there", pool=pool)

        def kill(done: int) -> None:
            if len(killed) == 2 or done < 70 * (len(killed) + 1):
                return
            every = pool.status().replicas.values()
            ready = [one for one in every if one.ready and one.process not in killed]
            if ready:  # a replica that takes the place of a killed one may still start
                killed.append(max(ready, key=lambda one: one.under_way).process)
                os.kill(killed[-1], signal.SIGKILL)

        assert job.run(progress=kill).is_done
    assert killed
    assert killed_job.read_files(tmp_path / "there") == killed_job.read_files(tmp_path / "here")
    assert job.status().failed == 12


@pytest.mark.extended
def test_nodes_leave_and_join_in_the_middle_of_a_job(ray_cluster: Cluster, tmp_path: Path) -> None:
    plan = pl.plan(make_graph())
    make_job(plan, tmp_path / "here").run()
    number = ray_cluster.add_node(RayNode({"gpu": "c"}))
    with ray_cluster.blocking_replicas(plan, n=1, select={"gpu": "c"}) as pool:

        def move(done: int) -> None:
            nonlocal number
            if done in (60, 120):
                ray_cluster.remove_node(number)
                number = ray_cluster.add_node(RayNode({"gpu": "c"}))

        job = make_job(plan, tmp_path / "there", pool=pool)
        assert job.run(progress=move).is_done
    ray_cluster.remove_node(number)
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
    job = make_job(killed_job.make_plan("stateful"), tmp_path / "job", pool=object())
    with pytest.raises(pl.JobError, match="each host would have its own"):
        job.run()
