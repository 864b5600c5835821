"""Prepare a release: all but to publish it. ``make release VERSION=1.2.3`` calls this.

The changelog's open section gets the version and the date, the version is written where it stands
and committed; the distributions are built from that commit, and tried in an environment of their
own, of which a bill of materials is written; then the commit is tagged. Where something fails, the
checkout is as it was before.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import distributions

ROOT = distributions.ROOT
OUTPUT = ROOT / "dist"
UNRELEASED = re.compile(r"^## \[(?:Unreleased\]|(?P<version>[\d.]+)\] - unreleased)$", re.MULTILINE)
"""The heading of the open section: nameless, or that of a version which is decided."""

PLACES: Mapping[str, str] = {
    "pyproject.toml": r'^version = "(.*)"$',
    "version.py": r'^VERSION = "(.*)"$',
    "CITATION.cff": r"^version: (.*)$",
}
"""Where the version stands: files, and the line in each."""

SMOKE = """
import numpy as np, plait as pl
b = pl.GraphBuilder("smoke")
b.output("y", b.op("Relu", b.input("x", "float32", (3,))))
found = pl.run(b.build(), {"x": np.array([-1, 0, 2], "float32")}, devices=["cpu", "worker:0"])
assert found["y"].tolist() == [0, 0, 2]
print("plait", pl.__version__, "computes")
"""


def main(arguments: Sequence[str]) -> None:
    """Release the version that the arguments name."""
    if len(arguments) != 1:
        sys.exit("say which version: make release VERSION=1.2.3")
    (version,) = arguments
    check(version)
    before = git("rev-parse", "HEAD")
    try:
        write(version)
        git("commit", "--quiet", "--all", "--message", f"Version {version}")
        files = distributions.build(ROOT, OUTPUT)
        try_out(version, files)
        git("tag", "--annotate", f"v{version}", "--message", f"Version {version}")
    except BaseException:
        git("reset", "--quiet", "--hard", before)
        raise
    print(f"v{version} is tagged, and its files are in {OUTPUT.name}/. To publish it:")
    print(f"  git push origin HEAD v{version}")
    print(f"  twine upload {' '.join(str(file.relative_to(ROOT)) for file in files)}")


def check(version: str) -> None:
    """Refuse a version that cannot follow the one there is, and a checkout with changes."""
    now = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", version):
        sys.exit(f"{version!r} is not a version: write it as 1.2.3")
    if tuple(map(int, version.split("."))) <= tuple(map(int, now.split("."))):
        sys.exit(f"{version} does not follow {now}: write a later one")
    if git("tag", "--list", f"v{version}"):
        sys.exit(f"there is a tag v{version}: choose another version")
    if git("status", "--porcelain"):
        sys.exit("there are changes that are not committed: commit or stash them")
    dated((ROOT / "CHANGELOG.md").read_text(), version, "")


def write(version: str) -> None:
    """Write the version, and the date, into the files where they stand."""
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    for name, line in PLACES.items():
        file = ROOT / name
        file.write_text(with_value(file.read_text(), line, version))
    citation = ROOT / "CITATION.cff"
    citation.write_text(with_value(citation.read_text(), r"^date-released: (.*)$", today))
    changes = ROOT / "CHANGELOG.md"
    changes.write_text(dated(changes.read_text(), version, today))


def with_value(text: str, line: str, value: str) -> str:
    """Return a text with another value in the one line that matches."""
    found = re.search(line, text, re.MULTILINE)
    if found is None:
        sys.exit(f"no line is like {line!r}")
    return text[: found.start(1)] + value + text[found.end(1) :]


def dated(changes: str, version: str, date: str) -> str:
    """Return the changelog with its open section closed, and a new one begun above it."""
    heading = UNRELEASED.search(changes)
    if heading is None or heading["version"] not in (None, version):
        sys.exit(f"CHANGELOG.md has no section '## [Unreleased]' or '## [{version}] - unreleased'")
    section = changes[heading.end() :].partition("\n## [")[0]
    if not re.search(r"^- ", section, re.MULTILINE):
        sys.exit(f"CHANGELOG.md says nothing of {version}")
    closed = f"## [Unreleased]\n\n## [{version}] - {date}"
    return changes[: heading.start()] + closed + changes[heading.end() :]


def try_out(version: str, files: Sequence[Path]) -> None:
    """Install the wheel in an environment of its own, run it, and write down what is in there."""
    (wheel,) = (file for file in files if file.suffix == ".whl")
    with TemporaryDirectory() as folder:
        environment = Path(folder, "environment")
        run(sys.executable, "-m", "venv", "--without-pip", environment)
        python = environment / "bin" / "python"
        run(sys.executable, "-m", "pip", "--python", python, "install", f"{wheel}[cli]")
        told = run(python, "-I", "-c", SMOKE)
        if f"plait {version} computes" not in told:
            sys.exit(f"the installed plait is another one: {told}")
        run(environment / "bin" / "plait", "devices", "cpu", "worker:0")
        bill = OUTPUT / f"{wheel.name.partition('-py3')[0]}.cdx.json"
        described = ("--pyproject", ROOT / "pyproject.toml", "--mc-type", "library")
        written = ("--output-reproducible", "--of", "JSON", "-o", bill)
        run(sys.executable, "-m", "cyclonedx_py", "environment", *described, *written, python)


def git(*arguments: str) -> str:
    """Run git in the checkout, and return what it prints."""
    return run("git", "-C", ROOT, *arguments).strip()


def run(*command: object) -> str:
    """Run a command, and return what it prints; end with its words if it fails."""
    done = subprocess.run(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1:])
