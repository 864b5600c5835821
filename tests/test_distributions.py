"""Distributions: complete, reproducible, without warnings; hints fit what they offer."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

import pytest
from patience import WAIT_S
from plait.graph.values.extras import get_install_command
from plait.version import DISTRIBUTION, VERSION

for package in ("build", "twine", "check_wheel_contents", "setuptools"):
    pytest.importorskip(package, reason="builds with what comes with [dev]")
import distributions  # noqa: E402

ROOT = Path(__file__).parents[1]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = DECLARED["optional-dependencies"]
LAYERS = ("graph", "devices", "scheduler", "dialects", "cli")
PUBLISHED = "https://host.example/owner/plait"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the source distribution and the wheel, of a copy of this checkout."""
    sdist, wheel = distributions.build(ROOT, tmp_path_factory.mktemp("dist"))
    return sdist, wheel


def hinted_extras() -> Iterator[str]:
    """Yield the extras in all hints of the package."""
    for file in (*ROOT.glob("*.py"), *(f for one in LAYERS for f in (ROOT / one).rglob("*.py"))):
        if "get_install_command(" not in (source := file.read_text()):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "get_install_command":
                for argument in node.args:
                    if not isinstance(argument, ast.Starred):  # else it is the function itself
                        yield ast.literal_eval(argument)


def build_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_script", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_hints_name_the_distribution_and_extras_that_it_has() -> None:
    found = set(hinted_extras())
    assert {"cli", "compiled", "cuda", "onnx", "opencl", "ort", "ray", "torch", "video"} <= found
    assert found <= EXTRAS.keys()
    assert DECLARED["name"] == DISTRIBUTION
    # Metadata has no other names, and pips of 2023 find extras by the letter.
    assert [extra for extra in EXTRAS if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", extra)] == []


def test_hints_are_written_in_one_place() -> None:
    written = [
        str(file.relative_to(ROOT))
        for layer in LAYERS
        for file in (ROOT / layer).rglob("*.py")
        if re.search(r"pip install [^\n]*plait", file.read_text())
    ]
    assert written == ["graph/values/extras.py"]


def brought_by(extra: str) -> set[str]:
    """Return what an extra requires, with what the extras require that it names."""
    own = re.compile(rf"{DISTRIBUTION}\[([^\]]*)\]")
    found: set[str] = set()
    for requirement in EXTRAS[extra]:
        listed = own.match(requirement)
        found |= set().union(*map(brought_by, listed[1].split(","))) if listed else {requirement}
    return found


def is_installed(requirement: str) -> bool:
    """Return whether there is some release of a package."""
    try:
        version(re.split(r"[^\w-]", requirement)[0])
    except PackageNotFoundError:
        return False
    return True


def test_all_brings_all_extras_that_any_machine_can_use() -> None:
    # A GPU's or a processor's own, gigabytes, and what is for work on plait itself.
    special = {
        "cuda",
        "cudnn",
        "openvino",
        "ort-openvino",
        "webgpu",
        "torch",
        "bench",
        "docs",
        "test",
        "dev",
        "all",
    }
    assert brought_by("all") == set().union(*map(brought_by, EXTRAS.keys() - special))
    assert any(one.startswith("onnx>=") for one in brought_by("ort"))


def test_the_page_on_versions_lists_the_extras_that_users_may_take() -> None:
    page = (ROOT / "docs" / "policies.md").read_text()
    table = page.partition("| extra |")[2].partition("\n\n")[0]
    firsts = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    listed = {name for first in firsts for name in re.findall(r"`([\w-]+)`", first)}
    assert listed == EXTRAS.keys() - {"bench", "docs", "test", "dev"}


def test_the_version_stands_the_same_everywhere() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [VERSION]
    assert DECLARED["version"] == VERSION


@pytest.mark.slow
@pytest.mark.extended
def test_a_source_distribution_has_all_files_of_the_checkout(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = {one.name.partition("/")[2] for one in archive.getmembers() if one.isfile()}
    made = {name for name in names if ".egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
    assert names - made == set(distributions.names_of_files(ROOT)) - made


@pytest.mark.extended
def test_an_unpacked_source_distribution_tests_itself(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    """In a folder of a name that no package can have."""
    with tarfile.open(built[0]) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "tests/test_hosted_ci.py"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.extended
def test_the_same_files_make_the_same_bytes(
    built: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of another folder, later, by who has another umask, in another time zone."""
    checkout = tmp_path / "elsewhere"
    distributions.copy_files(ROOT, checkout)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(distributions.source_date(ROOT)))
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    before = os.umask(0o077)
    try:
        again = distributions.build(checkout, tmp_path / "dist")
    finally:
        os.umask(before)
    for file, other in zip(built, again, strict=True):
        assert file.name == other.name
        assert file.read_bytes() == other.read_bytes()


@pytest.mark.slow
@pytest.mark.extended
def test_the_wheel_says_what_an_index_shows(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(archive.read(name).decode())
        tops = {one.partition("/")[0] for one in archive.namelist()}
        assert not [one for one in archive.namelist() if one.endswith(("setup.py", ".pyc"))]
    assert tops == {"plait", f"{DISTRIBUTION.replace('-', '_')}-{VERSION}.dist-info"}
    assert metadata["Author"] == "The plait developers"
    assert metadata["License-Expression"] == "Apache-2.0"
    page = metadata.get_payload()
    assert isinstance(page, str)
    assert page.startswith("# plait")
    assert not re.search(r"\]\((?!\w+:|#)", page)


def test_links_on_the_index_lead_to_the_files_of_the_release() -> None:
    page = build_script().index_page
    readme = "[a](docs/a.md#b), [benchmarks](benchmarks) [x](https://x.example) [here](#top)"
    at = f"{PUBLISHED}/blob/v1.2.3"
    assert page(readme, PUBLISHED, "1.2.3") == (
        f"[a]({at}/docs/a.md#b), [benchmarks]({at}/benchmarks) [x](https://x.example) [here](#top)"
    )
    assert page(readme, "", "1.2.3") == "a, benchmarks [x](https://x.example) [here](#top)"


def test_the_index_links_to_the_source_once_it_is_published() -> None:
    script = build_script()
    assert script.addresses("", VERSION) == {}
    links = script.addresses(PUBLISHED, VERSION)
    assert links["Source"] == PUBLISHED
    assert all(address.startswith(PUBLISHED) for address in links.values())
    files = [one.partition(f"/blob/v{VERSION}/")[2] for one in links.values() if "/blob/" in one]
    assert [name for name in files if not (ROOT / name).is_file()] == []


@pytest.fixture(scope="module")
def environment(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment where the wheel is installed, beside the packages of the tests."""
    folder = tmp_path_factory.mktemp("installed") / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    done = pip(folder, "install", "--no-deps", "--no-index", "--no-compile", str(built[1]))
    assert done.returncode == 0, done.stderr
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "packages_of_tests.pth").write_text("\n".join(filter(os.path.isdir, sys.path)))
    return folder


def pip(environment: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pip on an environment that has none."""
    python = environment / "bin" / "python"
    here = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    return subprocess.run([*here, *arguments], capture_output=True, text=True, timeout=WAIT_S)


@pytest.mark.extended
def test_hints_can_be_followed_where_the_wheel_is_installed(environment: Path) -> None:
    """Without an index: the extras are those of what is installed, their packages are here."""
    told = f"from importlib.metadata import requires; print(*requires('{DISTRIBUTION}'))"
    asked = [str(environment / "bin" / "python"), "-c", told]
    listed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    offered = set(re.findall(r"""extra == ['"]([\w-]+)['"]""", listed))
    assert set(hinted_extras()) <= offered
    here = {extra for extra in hinted_extras() if all(map(is_installed, brought_by(extra)))}
    assert {"cli", "onnx", "ort"} <= here
    for extras in (here, {"nothing-of-the-kind"}):
        commands = [shlex.split(get_install_command(extra)) for extra in sorted(extras)]
        assert {tuple(command[:2]) for command in commands} == {("pip", "install")}
        asked = [argument for command in commands for argument in command[2:]]
        followed = pip(environment, "install", "--no-index", "--dry-run", *asked)
        assert ("does not provide the extra" in followed.stderr) == (not extras <= EXTRAS.keys())
        assert followed.returncode == 0, followed.stderr


@pytest.mark.extended
def test_a_user_of_the_wheel_has_its_types(environment: Path, tmp_path: Path) -> None:
    """Mypy refuses what is marked in that module, and would refuse a mark without reason."""
    pytest.importorskip("mypy", reason="mypy comes with [dev]")
    user = tmp_path / "user.py"
    user.write_text((ROOT / "tests" / "support" / "typed_tensors.py").read_text())
    command = [sys.executable, "-m", "mypy", "--strict", "--verbose", "--config-file", os.devnull]
    python = environment / "bin" / "python"
    done = subprocess.run(
        [*command, "--python-executable", str(python), "--cache-dir", "cache", user.name],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stdout
    # Where a package says nothing of its types, mypy looks for another one of its name.
    (site,) = environment.glob("lib/python3*/site-packages")
    assert f"Parsing {site / 'plait' / '__init__.py'} (plait)" in done.stderr
