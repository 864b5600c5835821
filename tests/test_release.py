"""Releases: changelog, version, commit and tag; nothing of it where something fails."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import distributions
import pytest
import release

ROOT = Path(__file__).parents[1]
CHANGES = "\n\n".join(
    ("# Changelog", "## [Unreleased]", "### Added", "- One.", "## [0.1.0] - 2026-01-01", "- Old.\n")
)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a repository of the files that a release writes; nothing is built in it."""
    for name in release.PLACES:
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "Begun"]):
        identity = ["-c", "user.name=A", "-c", "user.email=a@host.example"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *command], check=True)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "A")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@host.example")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setattr(distributions, "build", lambda *_: [tmp_path / "dist" / "a.whl"])
    monkeypatch.setattr(release, "try_out", lambda *_: None)
    return tmp_path


def test_a_release_is_dated_committed_and_tagged(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    release.main(["9.8.7"])
    for name, line in release.PLACES.items():
        assert re.findall(line, (checkout / name).read_text(), re.MULTILINE) == ["9.8.7"]
    changes = (checkout / "CHANGELOG.md").read_text()
    assert re.search(r"## \[Unreleased\]\n\n## \[9.8.7\] - \d{4}-\d\d-\d\d\n\n### Added", changes)
    assert release.git("describe", "--exact-match") == "v9.8.7"
    assert release.git("log", "-1", "--format=%s") == "Version 9.8.7"
    assert release.git("status", "--porcelain") == ""
    assert "twine upload dist/a.whl" in capsys.readouterr().out


def test_where_a_trial_fails_nothing_is_left(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = release.git("rev-parse", "HEAD")

    def fail(version: str, files: Sequence[Path]) -> None:
        raise SystemExit("it does not compute")

    monkeypatch.setattr(release, "try_out", fail)
    with pytest.raises(SystemExit, match="it does not compute"):
        release.main(["9.8.7"])
    assert release.git("rev-parse", "HEAD") == before
    assert release.git("status", "--porcelain") == ""
    assert release.git("tag") == ""
    assert (checkout / "CHANGELOG.md").read_text() == CHANGES


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "say which version"),
        (["1"], r"write it as 1\.2\.3"),
        (["0.0.1"], "does not follow"),
        (["one"], "is not a version"),
        (["9.08.7"], "is not a version"),
    ],
)
@pytest.mark.usefixtures("checkout")
def test_what_is_no_next_version_is_refused(arguments: list[str], told: str) -> None:
    with pytest.raises(SystemExit, match=told):
        release.main(arguments)
    assert release.git("status", "--porcelain") == ""


def test_changes_that_are_not_committed_are_refused(checkout: Path) -> None:
    (checkout / "version.py").write_text("")
    with pytest.raises(SystemExit, match="not committed"):
        release.main(["9.8.7"])


def test_a_tag_that_is_there_is_refused(checkout: Path) -> None:
    release.git("tag", "v9.8.7")
    with pytest.raises(SystemExit, match=r"there is a tag v9\.8\.7"):
        release.main(["9.8.7"])


def test_a_section_that_is_named_is_the_one_that_is_released() -> None:
    named = CHANGES.replace("[Unreleased]", "[0.2.0] - unreleased")
    assert "## [0.2.0] - 2026-12-24\n\n### Added" in release.dated(named, "0.2.0", "2026-12-24")
    with pytest.raises(SystemExit, match="no section"):
        release.dated(named, "0.3.0", "2026-12-24")


def test_a_release_without_changes_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"says nothing of 0\.2\.0"):
        release.dated("## [Unreleased]\n\n## [0.1.0] - 2026-01-01\n\n- Old.\n", "0.2.0", "")


def test_the_changelog_has_a_section_to_release() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text()
    heading = release.UNRELEASED.search(changes)
    assert heading is not None
    assert changes.index("\n## ") == heading.start() - 1
