"""A real browser for tests of reports: Debian's chromium, driven by selenium."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from selenium import webdriver

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,1000",
)


class Browser:
    """A page in a browser, and what it has complained about and asked for."""

    def __init__(self, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        assert CHROMIUM is not None, "tests are skipped where there is none"
        options.binary_location = CHROMIUM
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = webdriver.ChromeService(executable_path=DRIVER)
        self.driver = webdriver.Chrome(options=options, service=service)

    def open(self, file: Path) -> None:
        """Load a page, and forget what an earlier one did."""
        self._log("performance")
        self._log("browser")
        self.driver.get(file.as_uri())
        self.wait_until("document.documentElement.dataset.ready === 'true'")

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what a script returns."""
        return self.driver.execute_script(script, *arguments)

    def wait_until(self, condition: str) -> None:
        """Wait for a condition in the page."""
        self.driver.execute_async_script(
            "const done = arguments[0];"
            f"const look = () => ({condition}) ? done() : requestAnimationFrame(look); look();"
        )

    def settle(self) -> None:
        """Wait until what was asked for is drawn."""
        self.driver.execute_async_script(
            "const done = arguments[0];"
            "requestAnimationFrame(() => requestAnimationFrame(() => done()));"
        )

    def _log(self, kind: str) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self.driver.get_log(kind)  # type: ignore[no-untyped-call]
        return entries

    def complaints(self) -> list[str]:
        """Return what stands in the console."""
        return [entry["message"] for entry in self._log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses that the page asked for."""
        events = (json.loads(row["message"]) for row in self._log("performance"))
        return [
            event["message"]["params"]["request"]["url"]
            for event in events
            if event["message"]["method"] == "Network.requestWillBeSent"
        ]

    def click(self, canvas: str, x: float, y: float) -> None:
        """Press and release at a point of a canvas, in its own pixels."""
        element = self.run(f"return {canvas}.canvas")
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        width, height = self.run(
            "return [arguments[0].clientWidth, arguments[0].clientHeight]", element
        )
        actions = webdriver.ActionChains(self.driver, duration=0)
        actions.move_to_element_with_offset(element, round(x - width / 2), round(y - height / 2))
        actions.click().perform()
        self.settle()

    def click_box(self, kind: str, index: int) -> None:
        """Click a box of the graph, in its middle."""
        x, y = self.run(
            """
            const view = plait.views.graph;
            const [kind, index] = arguments;
            const {boxes} = view.scene.model;
            const box = boxes.find((one) => one.kind === kind && one.index === index);
            return [view.toScreenX(box.x + box.width / 2), view.toScreenY(box.y + box.height / 2)];
            """,
            kind,
            index,
        )
        self.click("plait.views.graph", x, y)

    def press(self, css: str) -> None:
        """Click an element."""
        element = self.driver.find_element("css selector", css)
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()
        self.settle()

    def text(self, css: str) -> str:
        """Return the text of an element."""
        found: str = self.driver.find_element("css selector", css).text
        return found

    def column(self, table: str, place: int) -> list[str]:
        """Return the texts of a column of a table, as shown."""
        found: list[str] = self.run(
            "return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)]"
            ".map((row) => row.children[arguments[1]].textContent)",
            table,
            place,
        )
        return found

    def colours(self, canvas: str) -> int:
        """Return how many colours a canvas shows."""
        found: int = self.run(
            f"""
            const {{canvas, context}} = {canvas};
            const {{data}} = context.getImageData(0, 0, canvas.width, canvas.height);
            return new Set(new Uint32Array(data.buffer)).size;
            """
        )
        return found
