"""The page on a package index: README.md, whose links lead from there to the published source.

All else about the distribution is in pyproject.toml.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from setuptools import setup

REPOSITORY = ""
"""Where the source is published, as an address without a slash at the end; empty while nowhere.

With one, links of README.md become absolute and the index shows links to source, documentation,
changes and issues. Without one, only the words of relative links are kept, and no pictures.
"""

ROOT = Path(__file__).parent
LINK = re.compile(r"(?<!!)\[([^][]*)\]\((?!\w+:|#)([^()\s]+)\)")
"""A link to a file of the repository: its words, and the path."""
PICTURE = re.compile(r"!\[([^][]*)\]\((?!\w+:)([^()\s]+)\)\n*")
"""A picture of the repository, likewise."""


def index_page(readme: str, repository: str, version: str) -> str:
    """Return the text with links that work elsewhere: to the files as they were at a version."""
    if not repository:
        return LINK.sub(r"\1", PICTURE.sub("", readme))
    readme = PICTURE.sub(rf"![\1]({repository}/raw/v{version}/\2)\n\n", readme)
    return LINK.sub(rf"[\1]({repository}/blob/v{version}/\2)", readme)


def addresses(repository: str, version: str) -> dict[str, str]:
    """Return the links beside the page, by their labels."""
    if not repository:
        return {}
    at = f"{repository}/blob/v{version}"
    return {
        "Source": repository,
        "Documentation": f"{at}/docs/index.md",
        "Changelog": f"{at}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


if __name__ == "__main__":
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    setup(
        script_name="setup.py",  # which lies beside the modules, and is none of them
        long_description=index_page(readme, REPOSITORY, declared["version"]),
        long_description_content_type="text/markdown",
        project_urls=addresses(REPOSITORY, declared["version"]),
    )
