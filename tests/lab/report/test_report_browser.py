"""The report in headless Chromium."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from report_store import EMNIST, HOSTILE, write_run, write_store

from weightclip.lab.report import gather, render

selenium = pytest.importorskip("selenium", reason="needs selenium")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="needs chromium and chromedriver"),
]

LINES = ".mark-line.role-mark path"
NARROW = {"width": 375, "height": 800, "deviceScaleFactor": 1, "mobile": True}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("report")
    write_store(directory / "store")
    for kappa in (1.0, 2.0):
        write_run(directory / "store", HOSTILE, problem=HOSTILE, kappa=kappa)
    page = directory / "report.html"
    page.write_text(render(gather(directory / "store"), "Browser"), encoding="utf-8")
    return page


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = str(CHROMIUM)
    home = tmp_path_factory.mktemp("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", f"--user-data-dir={home}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = Chrome(options, ChromeService(DRIVER))
    yield started
    started.quit()


@pytest.fixture
def page(driver: Any, report: Path) -> Any:
    """The report with all charts drawn, on a wide screen with the light color scheme."""
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    driver.set_window_size(1200, 900)
    driver.get(report.as_uri())
    charts = len(driver.find_elements("css selector", ".chart"))
    wait(driver, lambda: len(driver.find_elements("css selector", ".chart svg.marks")) == charts)
    return driver


def wait(driver: Any, until: Callable[[], Any]) -> Any:
    from selenium.webdriver.support.wait import WebDriverWait

    return WebDriverWait(driver, 30, poll_frequency=0.05).until(lambda _: until())


def find(page: Any, selector: str) -> list[Any]:
    """Return elements of the first chart."""
    found: list[Any] = page.find_elements("css selector", f"#chart-1 {selector}")
    return found


def choose(page: Any, name: str, label: str) -> None:
    from selenium.webdriver.support.select import Select

    (select,) = find(page, f"select[name={name}]")
    Select(select).select_by_visible_text(label)


def click_legend(page: Any, label: str) -> None:
    from selenium.webdriver import ActionChains

    (entry,) = (text for text in find(page, ".role-legend-label text") if text.text == label)
    ActionChains(page).move_to_element(entry).click().perform()


def hover(page: Any) -> str:
    """Return the tooltip text in the middle of the first chart."""
    from selenium.webdriver import ActionChains

    (plot,) = find(page, ".mark-rule.role-mark")
    ActionChains(page).move_to_element(plot).perform()
    tooltip = "#vg-tooltip-element.visible"
    text: str = wait(page, lambda: [found.text for found in page.find_elements("css selector", tooltip)])[0]
    return text


def overflow(page: Any) -> int:
    """Return by how many pixels the page is wider than the screen."""
    wider: int = page.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
    return wider


def test_the_page_loads_without_errors_or_requests(page: Any) -> None:
    page.get_log("performance")
    page.refresh()
    wait(page, lambda: find(page, "svg.marks"))
    assert page.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    sent = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    assert {url.partition(":")[0] for url in sent} <= {"file", "data"}


def test_clicking_the_legend_toggles_a_method(page: Any) -> None:
    assert len(find(page, LINES)) == 3
    click_legend(page, "Adam")
    wait(page, lambda: len(find(page, LINES)) == 2)
    click_legend(page, "SGD")
    wait(page, lambda: len(find(page, LINES)) == 1)
    click_legend(page, "Adam")
    wait(page, lambda: len(find(page, LINES)) == 2)


def test_hovering_shows_the_values_of_visible_methods(page: Any) -> None:
    assert hover(page).splitlines() == [
        "Task 30",
        "Adam 75.05% ± 0.05%",
        "Adam + WC, κ = 1 75.75% ± 0.05%",
        "SGD 74.35% ± 0.05%",
    ]
    click_legend(page, "SGD")
    wait(page, lambda: len(find(page, LINES)) == 2)
    assert "SGD" not in hover(page)


def test_selecting_another_metric_or_problem_redraws_the_lines(page: Any) -> None:
    before = [line.get_attribute("d") for line in find(page, LINES)]
    choose(page, "metric", "Loss")
    wait(page, lambda: find(page, ".role-title text")[0].text == "Loss (nats)")
    assert [line.get_attribute("d") for line in find(page, LINES)] != before
    choose(page, "setup", f"{EMNIST} (stand-in data)")
    wait(page, lambda: len(find(page, LINES)) == 2)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lines_and_text_are_visible_in_light_and_dark_mode(page: Any, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    colors = page.execute_script(
        "const line = document.querySelector(arguments[0]);"
        "return [getComputedStyle(document.body).backgroundColor, getComputedStyle(line).stroke]",
        f"#chart-1 {LINES}",
    )
    paper, ink = (sum(map(int, color.strip("rgb()").split(","))) / 3 for color in colors)
    assert (paper > 200 and ink < 60) if scheme == "light" else (paper < 60 and ink > 200)


def test_nothing_is_wider_than_a_narrow_screen(page: Any) -> None:
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", NARROW)
    wait(page, lambda: find(page, "svg.marks")[0].size["width"] < 375)
    assert overflow(page) <= 0
    (chart,) = find(page, "svg.marks")
    bottom = chart.rect["y"] + chart.rect["height"]
    for label in find(page, ".role-legend-label text"):
        assert label.rect["y"] + label.rect["height"] <= bottom


@pytest.fixture
def page_with_notes(driver: Any, tmp_path: Path) -> Any:
    """The report of two short tasks with many notes on one setting."""
    for number, decay in enumerate((0.1, 0.01, 0.001)):
        for seed in range(2 + number):
            settings = {"lr": 0.01, "decay": decay, "sigma": 0.01, "settings": {"beta1": 1 - decay}}
            write_run(tmp_path / "store", "sgd+sp", seed=seed, tasks=2, accuracy=decay, **settings)
    write_run(tmp_path / "store", "sgd+sp", tasks=2, lr=0.001, decay=0.01, sigma=0.1)
    page = tmp_path / "report.html"
    page.write_text(render(gather(tmp_path / "store")), encoding="utf-8")
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.set_window_size(1200, 900)
    driver.get(page.as_uri())
    wait(driver, lambda: find(driver, "svg.marks"))
    return driver


def hidden(page: Any) -> list[int]:
    """Return the scrollable width of each table in pixels."""
    script = "return [...document.querySelectorAll('.scroll')].map(place => place.scrollWidth - place.clientWidth)"
    found: list[int] = page.execute_script(script)
    return found


def test_tables_are_not_truncated_on_a_typical_screen(page_with_notes: Any) -> None:
    (notes,) = page_with_notes.find_elements("css selector", ".notes")
    assert "compared on 2 seeds" in notes.text
    assert notes.size["height"] < 60
    assert set(hidden(page_with_notes)) == {0}


def test_a_shadow_marks_scrollable_tables_on_a_narrow_screen(page_with_notes: Any) -> None:
    page_with_notes.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", NARROW)
    wait(page_with_notes, lambda: find(page_with_notes, "svg.marks")[0].size["width"] < 375)
    assert max(hidden(page_with_notes)) > 0
    (best,) = page_with_notes.find_elements("css selector", "#best .scroll")
    assert best.value_of_css_property("background-image").count("gradient") == 4


def test_task_axes_have_integer_ticks(page_with_notes: Any) -> None:
    labels = [label.text for label in find(page_with_notes, ".role-axis .role-axis-label text")]
    assert [label for label in labels if label and not label.endswith("%")] == ["1", "2"]


def test_names_from_results_are_escaped_in_charts_and_tooltips(page: Any) -> None:
    choose(page, "setup", HOSTILE)
    wait(page, lambda: len(find(page, LINES)) == 1)
    assert HOSTILE in hover(page)
    assert page.execute_script("return window.injected") is None
