"""Some damaged files for every reader; `make fuzz` tries as many as there is time for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fuzzers import campaign as campaigns
from fuzzers.all_readers import READERS
from fuzzers.campaign import Findings, campaign

pytest.importorskip("onnx")
pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="how much memory an input takes is asked of Linux"
)

COUNT, SEED = 40, 19


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Findings]:
    keep = tmp_path_factory.mktemp("kept")
    return {one.reader: one for one in campaign([*READERS], SEED, count=COUNT, keep=keep)}


@pytest.mark.parametrize("reader", READERS)
def test_damaged_files_load_or_are_refused(found: dict[str, Findings], reader: str) -> None:
    assert found[reader].failures == {}
    assert found[reader].count == COUNT


@pytest.mark.parametrize("reader", READERS)
def test_damage_is_neither_always_seen_nor_never(found: dict[str, Findings], reader: str) -> None:
    """A campaign whose inputs are all refused, or none, would look for nothing."""
    outcomes = found[reader].outcomes
    assert 0 < outcomes["loaded"] < COUNT


FAULTS = """
import itertools, os
from fuzzers import all_readers, readers

class Faulty(readers.Wire):
    name = "faulty"
    calls = itertools.count()

    def read(self, data):
        return FAULT if next(self.calls) >= WARM_UP else None

all_readers.READERS["faulty"] = Faulty
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("{}[1]", "KeyError in "),
        ("os.abort()", "ends the process with -6"),
        ("[0 for _ in iter(int, 1)]", "takes more than|MemoryError"),
        ("len(bytearray(1 << 32))", "MemoryError in "),
        ("len(b'x' * (200 << 20))", " MiB for "),
    ],
)
def test_what_a_reader_must_not_do_is_found(
    fault: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = FAULTS.replace("WARM_UP", str(2 * campaigns.WARM_UP))
    (tmp_path / "faulty_reader.py").write_text(source.replace("FAULT ", f"{fault} "))
    program = Path(campaigns.__file__).read_text()
    program = program.replace(
        "    from fuzzers.all_readers import READERS\n",
        "    import faulty_reader\n    from fuzzers.all_readers import READERS\n",
    ).replace("HANG_S = 10.0", "HANG_S = 0.5")
    (tmp_path / "campaign.py").write_text(program)
    monkeypatch.setattr(campaigns, "__file__", str(tmp_path / "campaign.py"))
    monkeypatch.syspath_prepend(str(tmp_path))
    (found,) = campaign(["faulty"], 1, count=1, keep=tmp_path / "kept")
    (what,) = found.failures
    assert any(part in what for part in message.split("|"))
    assert Path(found.failures[what]).exists()
