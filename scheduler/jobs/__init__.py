"""Jobs over data sets: sources with positions, and sinks that write in parts."""

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
