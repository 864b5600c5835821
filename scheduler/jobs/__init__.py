"""Jobs over data sets: sources with positions, and sinks that write in parts.

Examples
--------
>>> from tempfile import TemporaryDirectory
>>> import plait as pl
>>> with TemporaryDirectory() as folder:
...     with open(f"{folder}/a.jsonl", "w") as file:
...         _ = file.write('{"text": "two words"}')
...     for row in pl.jobs.read_json_lines(f"{folder}/a.jsonl").open_at(0):
...         print(row)
{'text': 'two words'}
"""

from typing import TYPE_CHECKING

from ...lazily import lazily

if TYPE_CHECKING:
    from .commits import JobStatus
    from .item_files import Files
    from .job import Job
    from .queue import Queue
    from .sinks import Arrow, Parquet
    from .sources import JobSource, read_files, read_json_lines, read_rows, read_shards

__all__ = [
    "Arrow",
    "Files",
    "Job",
    "JobSource",
    "JobStatus",
    "Parquet",
    "Queue",
    "read_files",
    "read_json_lines",
    "read_rows",
    "read_shards",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        ".commits": "JobStatus",
        ".job": "Job",
        ".item_files": "Files",
        ".queue": "Queue",
        ".sinks": "Arrow Parquet",
        ".sources": "JobSource read_files read_json_lines read_rows read_shards",
    },
)
