"""Jobs over data sets: sources with positions, and sinks that write in parts.

Examples
--------
>>> import plait as pl
>>> source = pl.jobs.JobSource(lambda position: iter(range(position, 5)), total=5)
>>> list(source.open_at(3))
[3, 4]
"""

from typing import TYPE_CHECKING

from ...lazily import lazily

if TYPE_CHECKING:
    from .commits import JobStatus
    from .job import Job
    from .sinks import Parquet
    from .sources import JobSource, read_files, read_json_lines, read_rows

__all__ = [
    "Job",
    "JobSource",
    "JobStatus",
    "Parquet",
    "read_files",
    "read_json_lines",
    "read_rows",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        ".commits": "JobStatus",
        ".job": "Job",
        ".sinks": "Parquet",
        ".sources": "JobSource read_files read_json_lines read_rows",
    },
)
