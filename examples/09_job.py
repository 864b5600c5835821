"""A job over a folder of files that is stopped in the middle and resumed.

python examples/09_job.py
"""

from __future__ import annotations

import json
import tempfile
import zlib
from pathlib import Path
from typing import Any

import plait as pl

FILES = 60


def write_files(folder: Path) -> None:
    folder.mkdir()
    for number in range(FILES):
        whole = zlib.compress(bytes(range(number, 2 * number + 1)))
        (folder / f"{number:03}.z").write_bytes(b"damaged" if number == 42 else whole)


def summarize(file: bytes) -> dict[str, Any]:
    content = zlib.decompress(file)
    return {"nbytes": len(content), "ratio": len(file) / len(content)}


def main() -> None:
    pipe = pl.pipeline(summarize, example=zlib.compress(b"example"))
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent)
        write_files(folder / "files")
        job = pl.Job(pipe, folder / "files", "jsonl", folder / "job", commit_items=10)

        def stop(done: int) -> None:
            if done == 25:
                raise InterruptedError

        try:
            job.run(progress=stop)
        except InterruptedError:
            print(f"stopped after item 25, committed: {job.status().position}")
        status = job.run()
        print(f"{status.position} of {status.total} items, {status.failed} failed")
        (error,) = (folder / "job" / status.errors[0]).read_text().splitlines()
        print(Path(json.loads(error)["item"]).name, "-", json.loads(error)["error"].splitlines()[0])

        (folder / "files" / "042.z").write_bytes(zlib.compress(b"mended"))
        status = job.repair()
        rows = [
            json.loads(line)
            for name in status.parts
            for line in (folder / "job" / name).read_text().splitlines()
        ]
        assert sorted(row["position"] for row in rows) == list(range(FILES))
        print(f"{len(rows)} rows, {status.failed} failed")


if __name__ == "__main__":
    main()
