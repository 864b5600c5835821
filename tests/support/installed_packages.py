"""Packages as an installer leaves them: modules, and beside them what importlib.metadata reads."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

Entries = Mapping[str, Mapping[str, str]]
"""For each group of entry points, what its names stand for."""


def install(folder: Path, name: str, version: str, entries: Entries) -> None:
    """Write a package's metadata into a folder that is, or will be, on `sys.path`."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    sections = (
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in names.items())
        for group, names in entries.items()
    )
    (info / "entry_points.txt").write_text("\n".join(sections))


def install_project(folder: Path, project: Path) -> None:
    """Do as `pip install --target folder project`, with its modules and its own metadata."""
    declared = tomllib.loads((project / "pyproject.toml").read_text())
    for package in declared["tool"]["setuptools"]["packages"]:
        target = folder / package
        target.mkdir(parents=True)
        for file in (project / package).glob("*.py"):
            (target / file.name).write_text(file.read_text())
    about = declared["project"]
    install(folder, about["name"], about["version"], about["entry-points"])
