"""Pages that are written from the code: complete, and with examples that other tests run."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import click
import plait as pl
import pytest
from code_pages import PAGES, all_names, code_pages, command_line_page, look_up, operators_page
from plait.cli.group import cli

IN_DOCUMENTS = {
    "plait.conformance.run_suite",
    "plait.devices.Program",
    "plait.operators.kernel",
    "plait.operators.gradient",
}
"""Their examples would leave something registered, or take minutes: docs/operators.md and
docs/devices.md have them."""


ROOT = Path(__file__).parents[2]
DEFINED = re.compile(r'@define\(\s*"(\w+)"')
"""An operator that a file defines by name."""


def list_imported_names() -> set[str]:
    """Return the names that documents and examples import from `plait.devices`."""
    files = [*(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.py")]
    texts = "".join(file.read_text() for file in files)
    imports = re.findall(r"^from plait\.devices import (\([^)]+\)|.+)$", texts, re.MULTILINE)
    return {f"plait.devices.{name}" for names in imports for name in re.findall(r"\w+", names)}


def with_examples() -> list[str]:
    """Return the names that need examples; of modules such as `plait.learning` one is enough."""
    parts = {f"plait.{name}" for name in pl.__all__ if inspect.ismodule(getattr(pl, name))}
    parts.remove("plait.devices")
    own = [name for name in all_names() if name.rpartition(".")[0] not in parts]
    own = [name for name in own if name not in list_imported_names()]
    return sorted({*own, *parts} - IN_DOCUMENTS)


def test_every_public_name_is_on_one_page() -> None:
    names = list(all_names())
    assert len(names) == len(set(names))
    values = {name for name in pl.__all__ if not inspect.ismodule(getattr(pl, name))}
    assert {f"plait.{name}" for name in values} <= set(names)


@pytest.mark.parametrize("name", with_examples())
def test_a_public_name_has_an_example(name: str) -> None:
    assert ">>>" in (inspect.getdoc(look_up(name)) or "")


def test_the_page_of_commands_has_every_option() -> None:
    page = command_line_page()
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command: Any = cli.get_command(context, name)
        assert f"## plait {name}\n" in page
        options = [text for one in command.params for text in one.opts if text.startswith("--")]
        assert [text for text in options if text not in page] == []


def test_the_page_of_operators_has_all_of_plaits_own() -> None:
    page = operators_page()
    files = (Path(pl.__path__[0]) / "graph" / "operators").glob("*.py")
    own = {name for file in files for name in DEFINED.findall(file.read_text())}
    assert len(own) > 50
    assert [name for name in own if f"| `{name}` |" not in page] == []


def test_every_page_has_a_title() -> None:
    pages = code_pages()
    assert {f"reference/{name}.md" for name in PAGES} <= set(pages)
    assert [name for name, text in pages.items() if not text.startswith("# ")] == []
