"""The site as it is built: whole, its links lead somewhere, and a browser finds its way in it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import plait as pl
import pytest
from code_pages import all_names

if TYPE_CHECKING:
    from report_browser import Browser

pytestmark = pytest.mark.extended

WIDE, NARROW, HEIGHT = 1300, 400, 900
SECTIONS = ["Start", "How to", "Why", "Reference", "Figures"]
NARROW_PAGES = ["", "about/", "streams/", "figures/", "reference/plans/", "reference/command_line/"]


class Page(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if key in ("href", "src") and value:
                self.links.append(value)
            elif key == "id" and value:
                self.anchors.add(value)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """Return every page of the site, by its file."""
    root = site.resolve()
    return {file: Page(file.read_text()) for file in root.rglob("*.html")}


def test_every_document_has_a_page(site: Path) -> None:
    documents = (Path(__file__).parents[2] / "docs").glob("*.md")
    stems = {file.stem for file in documents} - {"index"}
    assert [stem for stem in stems if not (site / stem / "index.html").is_file()] == []
    assert (site / "index.html").is_file()


def test_every_link_and_anchor_is_there(site: Path, pages: dict[Path, Page]) -> None:
    broken = []
    for file, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            start = site.resolve() if parts.path.startswith("/") else file.parent
            target = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            anchors = pages[target].anchors if target in pages else None
            lost = anchors is not None and unquote(parts.fragment) not in {"", *anchors}
            if lost or not target.is_file():
                broken.append((file.relative_to(site.resolve()).as_posix(), link))
    assert broken == []


def test_every_public_name_is_in_the_reference(pages: dict[Path, Page]) -> None:
    anchors = {anchor for page in pages.values() for anchor in page.anchors}
    assert [name for name in all_names() if name not in anchors] == []


def test_every_name_of_the_reference_shows_its_example(site: Path) -> None:
    """Of `plait` itself: the examples are in the docstrings, where they are run."""
    shown = "".join(file.read_text() for file in (site / "reference").rglob("index.html"))
    assert shown.count(">>>") + shown.count("&gt;&gt;&gt;") > len(pl.__all__)


def test_the_page_on_what_plait_is_shows_its_pictures_and_no_comments(site: Path) -> None:
    about = (site / "about" / "index.html").read_text()
    assert "pictures/timeline.png" in about
    assert "to run this page with" not in about
    assert "def convolved" not in about


def test_figures_have_their_dates_and_machines(site: Path) -> None:
    results = Path(__file__).parents[2] / "benchmarks" / "results"
    page = (site / "figures" / "results" / "index.html").read_text()
    for file in results.glob("*.json"):
        record = json.loads(file.read_text())
        assert f"Taken on {record['date'][:10]}" in page
        assert record["cpu"] in page
    assert page.count("Taken on ") == len(list(results.glob("*.json")))


def show(visitor: Browser, url: str, width: int = WIDE) -> None:
    """Load a page in a window of some width."""
    sizes = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": width < WIDE}
    visitor.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", sizes)
    visitor.requests()
    visitor.complaints()
    visitor.driver.get(url)
    visitor.wait_until("document.readyState === 'complete'")


def test_the_navigation_is_sorted_by_what_one_wants_to_do(visitor: Browser, address: str) -> None:
    show(visitor, address)
    tabs = visitor.run(
        "return [...document.querySelectorAll('.md-tabs__link')].map((a) => a.textContent.trim())"
    )
    assert tabs == SECTIONS


def test_a_reader_gets_from_the_start_to_five_minutes(visitor: Browser, address: str) -> None:
    show(visitor, address)
    visitor.run("document.querySelector(\".md-nav a[href*='five_minutes']\").click()")
    visitor.wait_until("document.querySelector('h1').textContent.includes('five minutes')")
    assert visitor.driver.current_url == f"{address}five_minutes/"


def test_the_search_finds_a_name_and_leads_to_it(visitor: Browser, address: str) -> None:
    show(visitor, address)
    visitor.run("document.querySelector('.md-search__button').click()")
    box = "[...document.querySelectorAll('*')].find((one) => one.shadowRoot)?.shadowRoot"
    visitor.wait_until(f"!!{box}?.querySelector('input')")
    visitor.run(f"return {box}.querySelector('input')").send_keys("MicroBatches")
    found = f"[...{box}.querySelectorAll('a')].find((a) => a.href.includes('plait.MicroBatches'))"
    visitor.wait_until(f"!!{found}")
    visitor.run(f"{found}.click()")
    visitor.wait_until("location.hash.includes('plait.MicroBatches')")
    assert visitor.text("h1").startswith("Sessions")


def test_the_page_is_dark_where_the_system_is_and_light_where_it_is(
    visitor: Browser, address: str
) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    shades = {}
    for wanted in ("dark", "light"):
        media = [{"name": "prefers-color-scheme", "value": wanted}]
        visitor.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
        show(visitor, address)
        shades[wanted] = visitor.run(ground)[:3]
    assert max(shades["dark"]) < 80
    assert min(shades["light"]) > 200


def test_a_reader_chooses_light_and_then_dark(visitor: Browser, address: str) -> None:
    show(visitor, address)
    for scheme in ("default", "slate"):
        visitor.run(
            "[...document.querySelectorAll('form[data-md-component=palette] label')]"
            ".find((label) => !label.hidden).click()"
        )
        visitor.wait_until(f"document.body.dataset.mdColorScheme === '{scheme}'")
    show(visitor, f"{address}streams/")
    assert visitor.run("return document.body.dataset.mdColorScheme") == "slate"
    visitor.run("localStorage.clear()")


@pytest.mark.parametrize("page", NARROW_PAGES)
def test_no_page_scrolls_sideways_on_a_phone(visitor: Browser, address: str, page: str) -> None:
    show(visitor, address + page, NARROW)
    width, shown = visitor.run("return [document.documentElement.scrollWidth, innerWidth]")
    assert (width, shown) == (NARROW, NARROW)


@pytest.mark.parametrize("page", ["", "reference/sessions/", "figures/results/"])
def test_a_page_asks_no_other_host_and_complains_of_nothing(
    visitor: Browser, address: str, page: str
) -> None:
    show(visitor, address + page)
    asked = [url for url in visitor.requests() if url.startswith(("http:", "https:"))]
    assert asked
    assert [url for url in asked if not url.startswith(address)] == []
    assert visitor.complaints() == []
