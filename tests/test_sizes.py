"""The report of sizes, its limit, and the table of docs/policies.md that describes the folders."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import sizes

FILES = {
    "graph/ir.py": "a = 1\nb = 2\n",
    "graph/passes/one.py": "c = 3\n",
    "graph/passes/deep/two.py": "d = 4\n",
    "cli/run.py": "e = 5\n",
    "other/not_counted.py": "f = 6\n",
    "tests/graph/test_ir.py": "def test_a(): ...\nasync def test_b(): ...\ndef helps(): ...\n",
    "tests/graph/passes/deep/test_two.py": "class TestTwo:\n    def test_c(self): ...\n",
    "tests/cli/deep/test_run.py": "def test_d(): ...\n",
    "tests/test_all.py": "def test_e(): ...\n",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_lines_and_tests_are_counted_by_folder(checkout: Path) -> None:
    lines, tests = sizes.count(checkout)
    assert lines == {"graph": 2, "graph/passes": 2, "cli": 1}
    assert tests == {"graph": 2, "graph/passes": 1, "cli": 1, "elsewhere": 1}


def test_too_many_lines_are_an_error(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes.main(checkout, most_lines=5)
    assert capsys.readouterr().out.splitlines()[-1].split()[:3] == ["all", "5", "5"]
    with pytest.raises(SystemExit, match="has 5 lines, at most 4"):
        sizes.main(checkout, most_lines=4)


def test_the_check_measures_sizes() -> None:
    makefile = (sizes.ROOT / "Makefile").read_text()
    check = makefile.partition("\ncheck:")[2].partition("\n\n")[0]
    assert "tools/sizes.py" in check


def test_the_policies_describe_each_folder_once() -> None:
    rows = re.findall(
        r"^\| `([a-z_/]+)` \| [^|]+ \| (?:stable|evolving|frozen) \| [a-z, ]+ \|$",
        (sizes.ROOT / "docs" / "policies.md").read_text(),
        re.MULTILINE,
    )
    lines, _ = sizes.count(sizes.ROOT)
    assert sorted(rows) == sorted(lines)
