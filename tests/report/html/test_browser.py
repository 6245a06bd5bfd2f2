"""The page in headless Chromium: drawn, quiet, fast, reachable by keyboard, narrow, on paper."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from netbench.records import read_run
from netbench.report.html.page import render_page
from netbench.testbed.machine.packages import find_command
from tests.report.html.recorded import CASE3, check, hostile_plan, small_plans, write_small_run

pytestmark = pytest.mark.browser

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--window-size=1180,900",
)  # fmt: skip
PATIENCE_S = 240
"""For machines that do much else at the same time."""

MAX_LOAD_CPU_S = 2.0
"""Processor time of the page's main thread until everything is drawn."""

PHONE_PX = 390


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """Start Chromium with a profile of its own."""
    chromium, driver = find_command("chromium"), find_command("chromedriver")
    assert chromium, "no chromium; run: netbench doctor --install browser"
    assert driver, "no chromedriver; run: netbench doctor --install browser"
    options = ChromeOptions()
    options.binary_location = str(chromium)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = Chrome(options=options, service=ChromeService(str(driver)))
    started.set_page_load_timeout(PATIENCE_S)
    yield started
    started.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write the page of case 3, of two runs in two settings, and of a run with hostile texts."""
    folder = tmp_path_factory.mktemp("pages")
    plan, other, larger = small_plans()
    first = write_small_run(
        folder / "a",
        {plan: [1.0, 1.01], other: [2.0, 2.1], larger: [3.0, 3.1]},
        checks=[check(), check(0.01, quantity="one_way_s")],
    )
    second = write_small_run(folder / "b", {plan: [1.2, 1.21], other: [2.0, 2.2]})
    hostile = write_small_run(
        folder / "c", {hostile_plan(): [1.0, 1.1]}, checks=[check(0.5)], reasons=["too slow"]
    )
    texts = {
        "case3": render_page([read_run(CASE3)]),
        "two": render_page([first, second]),
        "hostile": render_page([hostile]),
    }
    found = {}
    for name, text in texts.items():
        found[name] = folder / f"{name}.html"
        found[name].write_text(text, encoding="utf-8")
    return found


def load(browser: Chrome, page: Path, *, width_px: int = 1180, dark: bool = False) -> None:
    """Load a page and wait until its charts are drawn."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width_px, "height": 900, "deviceScaleFactor": 1, "mobile": width_px < 500},
    )
    theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme]})
    browser.get(page.as_uri())
    WebDriverWait(browser, PATIENCE_S).until(
        lambda _: run(browser, "return document.documentElement.dataset.ready") == "true"
    )


def run(browser: Chrome, script: str, *arguments: object) -> Any:
    return browser.execute_script(script, *arguments)


def drain(browser: Chrome) -> list[str]:
    """Return the addresses requested since the last call, without the browser's own pages."""
    messages = [json.loads(entry["message"])["message"] for entry in logs(browser, "performance")]
    found = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    return [url for url in found if not url.startswith(("chrome:", "data:"))]


def logs(browser: Chrome, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = browser.get_log(kind)  # type: ignore[no-untyped-call]
    return found


@pytest.mark.parametrize("name", ["case3", "two", "hostile"])
def test_pages_draw_every_chart_without_a_message_or_a_request(
    browser: Chrome, pages: dict[str, Path], name: str
) -> None:
    """The console stays empty, and the file is all that is read."""
    drain(browser)
    logs(browser, "browser")
    load(browser, pages[name])
    assert logs(browser, "browser") == []
    assert drain(browser) == [pages[name].as_uri()]
    charts = browser.find_elements(By.CSS_SELECTOR, ".chart")
    assert len(charts) >= 4
    for chart in charts:
        key = chart.get_attribute("id")
        assert chart.get_attribute("data-drawn") == "true", key
        assert chart.get_attribute("aria-label"), key
        assert num_shapes(browser, key) >= 1, key
    for section in browser.find_elements(By.CSS_SELECTOR, "section"):
        assert section.size["height"] > 60, section.get_attribute("id")
    assert run(browser, "return window.hacked === undefined")
    assert browser.find_elements(By.TAG_NAME, "img") == []


def num_shapes(browser: Chrome, key: str | None) -> int:
    """Return the number of marks in an SVG, or of colours beside the background in a canvas."""
    count: int = run(
        browser,
        """
        const chart = document.getElementById(arguments[0]);
        const canvas = chart.querySelector("canvas");
        if (!canvas) {
          const marks = [".mark-symbol path", ".mark-rect path", ".mark-line path"];
          return chart.querySelectorAll(marks.join(",")).length;
        }
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        const seen = new Set();
        for (let i = 0; i < data.length; i += 4) {
          if (data[i + 3] === 255) seen.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
        }
        return seen.size - 1;
        """,
        key,
    )
    return count


def test_case3_loads_in_two_seconds_of_processor_time(
    browser: Chrome, pages: dict[str, Path]
) -> None:
    """Processor time, because a machine that runs other tests at the same time is not the page."""
    browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    load(browser, pages["case3"])
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    taken = {metric["name"]: metric["value"] for metric in metrics}
    browser.execute_cdp_cmd("Performance.disable", {})
    assert 0 < taken["TaskDuration"] < MAX_LOAD_CPU_S


def test_everything_is_reachable_by_keyboard(browser: Chrome, pages: dict[str, Path]) -> None:
    """Tab leads from the first link through switches, charts and tables to the downloads."""
    load(browser, pages["case3"])
    seen: list[Any] = []
    for _ in range(200):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        found = run(
            browser,
            "const e = document.activeElement; return e === document.body ? '' : "
            "e.id || e.dataset.themeChoice || e.dataset.do || e.download || e.hash || e.tagName",
        )
        if not found or (seen and found == seen[0]):
            break
        seen.append(found)
    assert seen[0] == "#main"
    expected = {"dark", "#run1-times", "run1-timeline-chart", "run1-timeline-chart-choice", "in"}
    assert expected <= set(seen)
    assert f"{CASE3.name}.jsonl" in seen


def test_a_timeline_is_zoomed_and_chosen_by_keyboard(
    browser: Chrome, pages: dict[str, Path]
) -> None:
    """Plus halves the stretch, 0 shows all; another plan has another length and description."""
    load(browser, pages["case3"])
    chart = browser.find_element(By.ID, "run1-timeline-chart")
    stretch = browser.find_element(By.CSS_SELECTOR, "[data-zoom] output")
    whole = stretch.text
    chart.send_keys("+")
    begin, end = (float(text.split()[0]) for text in stretch.text.split(" to "))
    length = float(whole.split(" to ")[1].split()[0])
    assert end - begin == pytest.approx(length / 2, abs=0.02)
    chart.send_keys(Keys.ARROW_RIGHT)
    assert float(stretch.text.split()[0]) == pytest.approx(begin + length / 8, abs=0.02)
    chart.send_keys("0")
    assert stretch.text == whole
    browser.find_element(By.ID, "run1-timeline-chart-choice").send_keys("zero3")
    assert stretch.text != whole
    assert "zero3" in (chart.get_attribute("aria-label") or "")


def test_the_theme_follows_the_system_and_the_switch(
    browser: Chrome, pages: dict[str, Path]
) -> None:
    """Paper is dark where the system is, until the switch says otherwise. Charts follow."""
    text = "return getComputedStyle(document.querySelector('.chart svg text')).fill"
    paper = "return getComputedStyle(document.body).backgroundColor"
    load(browser, pages["two"], dark=True)
    assert run(browser, paper) == "rgb(20, 25, 30)"
    dark_text = run(browser, text)
    browser.find_element(By.CSS_SELECTOR, "[data-theme-choice=light]").click()
    assert run(browser, paper) == "rgb(255, 255, 255)"
    WebDriverWait(browser, PATIENCE_S).until(lambda _: run(browser, text) != dark_text)


@pytest.mark.parametrize("name", ["case3", "two"])
def test_a_phone_needs_no_sideways_scrolling(
    browser: Chrome, pages: dict[str, Path], name: str
) -> None:
    """Wide tables scroll on their own."""
    load(browser, pages[name], width_px=PHONE_PX)
    assert run(browser, "return document.documentElement.scrollWidth") <= PHONE_PX
    widest = "return Math.max(...[...document.querySelectorAll('.chart')].map(e => e.scrollWidth))"
    assert run(browser, widest) <= PHONE_PX


def test_the_page_prints(browser: Chrome, pages: dict[str, Path]) -> None:
    """Several sheets, without the page's controls."""
    load(browser, pages["case3"])
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    data = base64.b64decode(printed["data"])
    assert data.startswith(b"%PDF")
    assert data.count(b"/Type /Page\n") + data.count(b"/Type/Page\n") >= 3
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert not browser.find_element(By.TAG_NAME, "nav").is_displayed()
        assert browser.find_element(By.CSS_SELECTOR, ".chart svg").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
