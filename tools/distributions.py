"""Build the source distribution and the wheel: checked, and the same bytes from the same files.

The wheel is built from the source distribution, and that from a copy of the checkout's files, so
that nothing which lies around gets in, and nothing is left behind.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
UMASK = 0o022
"""Modes of files are in both, and not those that somebody's checkout has."""

WARNING = re.compile(r"(?!warning: no previously-included )(?:.*(?:\bwarning:|Warning\b)|WARNING)")
"""All but that MANIFEST.in excludes what is not there, since the copy is clean."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Build into a folder, which is emptied before."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist", metavar="FOLDER")
    options = parser.parse_args(arguments)
    shutil.rmtree(options.output, ignore_errors=True)
    for file in build(ROOT, options.output):
        print(file)


def build(checkout: Path, output: Path) -> list[Path]:
    """Build both distributions of a checkout into a folder, check them, and return their files.

    Raises
    ------
    SystemExit
        If a tool fails or warns; its words are in the message.
    """
    os.umask(UMASK)
    epoch = source_date(checkout)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # setuptools warns of it
    output = output.resolve()
    with TemporaryDirectory() as folder:
        source = Path(folder, "source")
        copy_files(checkout, source)
        run("build", "--no-isolation", "--outdir", output, source, environment=environment)
    made = sorted(output.glob("*.tar.gz")) + sorted(output.glob("*.whl"))
    sdist, wheel = made
    sdist.write_bytes(without_circumstances(sdist.read_bytes(), epoch))
    run("twine", "check", "--strict", *made, environment=environment)
    run("check_wheel_contents", wheel, environment=environment)
    return made


def source_date(checkout: Path) -> int:
    """Return SOURCE_DATE_EPOCH, else when the last commit was made, else 1980-01-02 as zips can."""
    told = os.environ.get("SOURCE_DATE_EPOCH")
    if told:
        return int(told)
    if (checkout / ".git").exists():
        command = ["git", "-C", str(checkout), "log", "-1", "--format=%ct"]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return 315619200


def copy_files(checkout: Path, target: Path) -> None:
    """Copy what belongs to a checkout: what git tracks or would add; without git, all there is."""
    for name in names_of_files(checkout):
        if (checkout / name).is_file():  # else deleted, and not committed yet
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(checkout / name, target / name)
            mode = 0o755 if os.access(checkout / name, os.X_OK) else 0o644
            (target / name).chmod(mode)


def names_of_files(checkout: Path) -> list[str]:
    """Return the paths of a checkout's files, relative to it."""
    if (checkout / ".git").exists():
        listing = ["git", "-C", str(checkout), "ls-files", "-co", "--exclude-standard", "-z"]
        listed = subprocess.run(listing, capture_output=True, text=True, check=True).stdout
        return sorted(filter(None, listed.split("\0")))
    files = (path.relative_to(checkout) for path in checkout.rglob("*") if path.is_file())
    return sorted(str(file) for file in files if not is_made(file))


def is_made(file: Path) -> bool:
    """Return whether a file is one that tools make in a checkout without git."""
    parts = file.parts
    return (
        file.name in ("PKG-INFO", "setup.cfg")
        or parts[0] in ("build", "dist", "site", ".cache")
        or any(
            part == "__pycache__" or part.endswith((".egg-info", "_cache")) for part in parts[:-1]
        )
        or parts[0].startswith((".venv", ".hypothesis", ".fuzz"))
    )


def run(module: str, *arguments: object, environment: Mapping[str, str]) -> None:
    """Run a module of this environment; what it warns of is an error."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    warnings = [line for line in done.stdout.splitlines() if WARNING.match(line)]
    if done.returncode or warnings:
        sys.exit(f"{' '.join(command)}\n{done.stdout}\nrefused: {warnings or done.returncode}")


def without_circumstances(data: bytes, epoch: int) -> bytes:
    """Return a .tar.gz with the same files in one order, without owners, of one time."""
    packed = BytesIO()
    with (
        tarfile.open(fileobj=BytesIO(data)) as before,
        gzip.GzipFile("", "wb", 9, packed, mtime=epoch) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as after,
    ):
        for member in sorted(before.getmembers(), key=lambda one: one.name):
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = epoch
            member.pax_headers = {}
            executable = member.isdir() or member.mode & 0o100
            member.mode = 0o755 if executable else 0o644
            after.addfile(member, before.extractfile(member) if member.isfile() else None)
    return packed.getvalue()


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    print(f"built and checked in {time.perf_counter() - started:.0f} s")
