"""Takes the pictures in README.md: what its own pipeline looks like when it has run.

It runs the code of README.md, then the same stream again with its nodes timed, and has a browser
draw the page. Needs chromium with its driver, and what the README needs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import replace
from io import BytesIO, StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import plait as pl
import trio
from PIL import Image
from selenium import webdriver
from tutorials import BLOCK

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
COLOURS = 128
WINDOW = (1200, 900)
STREAMS, ITEMS = 100, 8
"""The timeline shows the fastest stream: in the first, programs are bound, and others may compute
on the same cores."""


def main() -> None:
    """Run the pipeline, and write the pictures."""
    with TemporaryDirectory() as scratch:
        page = Path(scratch) / "page.html"
        with contextlib.chdir(scratch):
            draw(page)
        browser = opened(Path(scratch) / "browser")
        try:
            browser.get(page.as_uri())
            browser.execute_async_script(
                "const done = arguments[0]; const look = () => document.documentElement.dataset"
                ".ready === 'true' ? done() : requestAnimationFrame(look); look();"
            )
            for label in ("measured: ", "Theme: "):  # the second: light, then
                press(browser, label)
            write(browser, "timeline", "timeline.png")
            browser.execute_script("plait.selection.pick(3, 'picture')")
            write(browser, "graph", "page.png")
        finally:
            browser.quit()


def draw(page: Path) -> None:
    """Run the code of README.md, then its stream with every node timed, and save the page."""
    text = (ROOT / "README.md").read_text()
    names: dict[str, Any] = {"__name__": "readme"}
    with contextlib.redirect_stdout(StringIO()):
        for block in BLOCK.findall(text):
            exec(compile(block, "README.md", "exec"), names)
    plan = names["plan"]

    files = [{"file": path.read_bytes()} for path in sorted(Path("photos").iterdir())]

    async def measured() -> pl.Profile:
        async with pl.Session(plan, measure=True) as session:
            for _ in range(STREAMS):
                async with session.stream(files[:ITEMS]) as results:
                    async for item in results:
                        item["label"]
            return session.profile()

    profile = trio.run(measured)
    records = profile.records
    streams = (records[at : at + ITEMS] for at in range(0, len(records), ITEMS))
    fastest = min((replace(profile, records=one) for one in streams), key=lambda one: one.wall_s)
    plan.save_html(page, profile=fastest)


def opened(profile: Path) -> webdriver.Chrome:
    """Return a browser without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    flags = ("--headless=new", "--disable-gpu", f"--user-data-dir={profile}")
    root = ("--no-sandbox",) if os.geteuid() == 0 else ()
    for flag in (*flags, *root, f"--window-size={WINDOW[0]},{WINDOW[1]}"):
        options.add_argument(flag)
    return webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))


def press(browser: webdriver.Chrome, label: str) -> None:
    """Press the button whose label begins so."""
    browser.execute_script(
        "[...document.querySelectorAll('button')]"
        ".find((one) => one.textContent.startsWith(arguments[0])).click()",
        label,
    )


def write(browser: webdriver.Chrome, part: str, name: str) -> None:
    """Write a picture of a part of the page, with few colours."""
    element = browser.find_element("id", part)
    browser.execute_script("arguments[0].scrollIntoView()", element)
    picture = Image.open(BytesIO(element.screenshot_as_png)).convert("RGB")
    PICTURES.mkdir(exist_ok=True)
    picture.quantize(COLOURS).save(PICTURES / name, optimize=True)


if __name__ == "__main__":
    main()
