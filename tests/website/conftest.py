"""The site, built and served once, and a browser that looks at it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from report_browser import Browser

BUILD_S = 400.0
"""Twenty seconds, where nothing else runs."""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, strictly, and return its folder."""
    pytest.importorskip("zensical", reason="zensical is not installed")
    folder = tmp_path_factory.mktemp("site") / "html"
    script = Path(__file__).parents[2] / "docs" / "site" / "build_site.py"
    built = subprocess.run(
        [sys.executable, str(script), str(folder)],
        capture_output=True,
        text=True,
        timeout=BUILD_S,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


class _Quiet(SimpleHTTPRequestHandler):
    """Serves files, and says nothing of it."""

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    """Serve the site to this machine alone, and return where."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=site)) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def visitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Open a browser, or skip the test where there is none."""
    pytest.importorskip("selenium", reason="selenium is not installed")
    from report_browser import CHROMIUM, DRIVER, Browser

    if CHROMIUM is None or DRIVER is None:
        pytest.skip("there is no chromium with its chromedriver")
    opened = Browser(tmp_path_factory.mktemp("visitor"))
    yield opened
    opened.driver.quit()
