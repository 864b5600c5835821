"""Builds the site: the pages of docs/, those that are written from the code, and what they link to.

All is laid out in a folder of its own, where Zensical makes HTML of it. Any warning is an error:
a link that leads nowhere, an anchor that is not there, a public name without a page.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from code_pages import code_pages
from example_page import example_page
from figure_pages import results_page
from tutorials import TUTORIALS, notebook_of, offered

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DOCS = ROOT / "docs"
FILES = "files"
"""The folder of the site for files of the repository that pages link to."""

OWN_PAGES = {
    "README.md": "about.md",
    "benchmarks": "figures/results.md",
    "benchmarks/results": "figures/results.md",
    "docs/index.md": "index.md",
    "examples": "examples.md",
}
"""What of the repository has a page of another name."""

LINK = re.compile(r"(?<=\]\()([^()\s]+)(?=\))")
FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json"}


def main() -> None:
    """Build the site into the folder that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, nargs="?", default=ROOT / "site")
    build(parser.parse_args().output)


def build(output: Path) -> None:
    """Write the whole site into a folder, in place of what is there.

    Raises
    ------
    SystemExit
        If Zensical warns of anything; it has said of what.
    """
    with TemporaryDirectory(prefix="plait-site-") as scratch:
        folder = Path(scratch)
        lay_out(folder / "docs")
        shutil.copy(HERE / "zensical.toml", folder)
        command = [sys.executable, "-m", "zensical", "build", "--strict"]
        if subprocess.run(command, cwd=folder, check=False).returncode:
            sys.exit("the site has warnings: it was not written")
        shutil.rmtree(output, ignore_errors=True)
        shutil.copytree(folder / "site", output)


def lay_out(folder: Path) -> None:
    """Write all pages as Markdown, and what belongs to them."""
    shutil.copytree(DOCS / "pictures", folder / "pictures")
    folder.joinpath("site.css").write_text((HERE / "site.css").read_text())
    for name in TUTORIALS:
        notebook = folder / "notebooks" / f"{name}.ipynb"
        _write(notebook, notebook_of((DOCS / f"{name}.md").read_text()))
    for page, text in pages().items():
        _write(folder / page, text)


def pages() -> dict[str, str]:
    """Return all pages: what is linked to has one, and so has what that links to."""
    found: dict[str, str] = {}
    waiting = dict(_first_pages())
    while waiting:
        page, (origin, text) = waiting.popitem()
        text = COMMENT.sub("", text)
        linked = _linked(origin, text)
        found[page] = _with_links(text, page, linked)
        for file in linked.values():
            target = page_of(file)
            if target.endswith(".md") and target not in found and target not in waiting:
                waiting[target] = (file, _file_page(file))
    return found


def page_of(file: str) -> str:
    """Return the page of a file or folder of the repository."""
    if file in OWN_PAGES:
        return OWN_PAGES[file]
    if file.startswith("docs/pictures/"):
        return file.removeprefix("docs/")
    if file.startswith("docs/") and file.endswith(".md"):
        return file.removeprefix("docs/")
    return f"{FILES}/{file}" if file.endswith(".md") else f"{FILES}/{file}.md"


def _first_pages() -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each page with the file whose links it has, and its text."""
    for file in sorted(DOCS.glob("*.md")):
        text = file.read_text()
        if file.stem in TUTORIALS:
            text = offered(text, f"notebooks/{file.stem}.ipynb")
        yield file.name, (f"docs/{file.name}", text)
    for page, text in code_pages().items():
        yield page, (f"docs/{page}", text)
    yield "examples.md", ("examples.md", example_page(ROOT))
    yield "figures/results.md", ("results.md", results_page(ROOT / "benchmarks"))
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        yield page_of(name), (name, (ROOT / name).read_text())


def _linked(origin: str, text: str) -> dict[str, str]:
    """Return the files of the repository that a text links to, by what its links say."""
    prose = FENCE.sub("", text)
    targets = {target.partition("#")[0] for target in LINK.findall(prose) if "://" not in target}
    folder = (ROOT / origin).parent
    found = {}
    for target in filter(None, targets):
        path = (folder / target).resolve()
        if path.is_relative_to(ROOT) and path.exists():
            found[target] = path.relative_to(ROOT).as_posix()
    return found


def _with_links(text: str, page: str, linked: Mapping[str, str]) -> str:
    """Return a text whose links to files lead to their pages."""
    up = "../" * page.count("/")

    def link(match: re.Match[str]) -> str:
        target, mark, anchor = match[1].partition("#")
        return f"{up}{page_of(linked[target])}{mark}{anchor}" if target in linked else match[1]

    parts = FENCE.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


def _file_page(file: str) -> str:
    """Return the page that shows a file, or lists a folder; searches do not find it."""
    path = ROOT / file
    if path.suffix == ".md":
        return path.read_text()
    head = f"---\nsearch:\n  exclude: true\n---\n# `{file}`\n\n"
    if path.is_dir():
        return head + "\n".join(f"- `{one.name}`" for one in sorted(path.iterdir())) + "\n"
    return f"{head}````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text().rstrip()}\n````\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    main()
