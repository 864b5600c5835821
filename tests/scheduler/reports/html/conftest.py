"""A browser, opened once, and the reports that tests look at in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import plait as pl
import pytest
from report_pages import branches, profiled, split, written

if TYPE_CHECKING:
    from report_browser import Browser

BLOCKS, LARGE_BLOCKS, SPLIT_EVERY = 4, 1000, 8


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Open a browser, or skip the test where there is none."""
    pytest.importorskip("selenium", reason="selenium is not installed")
    from report_browser import CHROMIUM, DRIVER, Browser

    if CHROMIUM is None or DRIVER is None:
        pytest.skip("there is no chromium with its chromedriver")
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.driver.quit()


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Browser:
    """Open the report of 20 nodes on two devices, with a profile."""
    plan = split(branches(BLOCKS))
    profile = profiled(plan, {"x": np.ones((64, 32), "float32")}, 12)
    written(plan, tmp_path, profile)
    browser.open(tmp_path / "report.html")
    return browser


@pytest.fixture(scope="session")
def large_plan() -> pl.Plan:
    """Return a plan of 5,000 nodes in hundreds of subgraphs."""
    return split(branches(LARGE_BLOCKS, prefix="model/encoder/", every=SPLIT_EVERY))
