import json
import math
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest
from report_store import EMNIST, HOSTILE, MNIST, write_failed, write_run, write_store

from weightclip.lab.experiments.streaming.experiment import EXPERIMENT
from weightclip.lab.registry import experiments
from weightclip.lab.report import gather, render


class Page(HTMLParser):
    """A page's elements and their text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self._open: list[str] = [""]
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open[-1] not in (tag, ""):  # elements without an end tag
            self._open.pop()
        if self._open[-1]:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        self.text.setdefault(self._open[-1], []).append(data)


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    return render(gather(write_store(tmp_path_factory.mktemp("store"))), "A title")


def test_the_page_has_a_title_and_a_section_per_entry_of_the_contents(html: str) -> None:
    page = Page(html)
    assert page.text["title"] == page.text["h1"] == ["A title"]
    linked = [attributes["href"] for tag, attributes in page.elements if tag == "a"]
    sections = [attributes["id"] for tag, attributes in page.elements if tag == "section"]
    charts = [attributes["id"] for tag, attributes in page.elements if tag == "figure"]
    assert charts == ["curves-streaming", "sensitivity-streaming-lr", "sensitivity-streaming-kappa"]
    assert list(dict.fromkeys(linked)) == [f"#{name}" for name in (*charts, *sections)]
    assert all(linked.count(f"#{chart}") == 2 for chart in charts)  # at the top and at the chart
    assert sections == [
        "runs",
        "data",
        "curves",
        "best",
        "trend",
        "sensitivity",
        "failures",
        "commands",
        "software",
    ]


def test_the_page_begins_with_a_finding_for_each_setup(html: str) -> None:
    page = Page(html)
    first, second, *_ = (text.replace("\N{NO-BREAK SPACE}", " ") for text in page.text["p"])
    assert first == (
        "On input-permuted-mnist, Adam + WC (κ = 1) has the highest accuracy, 75.95% ± 0.05% (area under the curve, "
        "2 seeds); next is Adam, 75.05% ± 0.05%."
    )
    assert second.startswith("On label-permuted-emnist (stand-in data), SGD + WC (κ = 2) has the highest accuracy, ")


def test_without_records_only_failures_are_shown(tmp_path: Path) -> None:
    write_failed(tmp_path)
    page = Page(render(gather(tmp_path)))
    sections = [attributes["id"] for tag, attributes in page.elements if tag == "section"]
    linked = [attributes["href"] for tag, attributes in page.elements if tag == "a"]
    assert linked == [f"#{name}" for name in sections] == ["#runs", "#failures", "#commands"]
    assert "No run has a record yet." in page.text["p"]


def test_a_mean_over_problems_has_a_section(tmp_path: Path) -> None:
    for seed in (0, 1):
        for problem, official in ((MNIST, True), (EMNIST, False)):
            write_run(tmp_path, seed=seed, problem=problem, official=official)
    page = Page(render(gather(tmp_path)))
    assert "Over problems" in page.text["h2"]
    assert "50.00% to 50.10%" in page.text["td"]
    assert page.text["span"].count("stand-in data") == 5


def test_notes_on_a_setting_have_a_separate_row(html: str) -> None:
    page = Page(html)
    noted = [attributes.get("class") for tag, attributes in page.elements if tag == "tr"]
    assert noted.count("notes") == noted.count("noted") == 1
    assert "lr at the edge of the values tried" in page.text["td"]


def test_the_page_makes_no_network_requests(html: str) -> None:
    for tag, attributes in Page(html).elements:
        assert tag not in ("link", "iframe", "object", "embed", "base")
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    styles = "".join(Page(html).text["style"])
    assert "url(" not in styles
    assert "@import" not in styles
    assert "default-src 'none'" in html


def test_stand_in_data_is_marked_in_every_section(html: str) -> None:
    assert Page(html).text["span"].count("stand-in data") == 4  # data, runs, best settings, trend


def test_a_simulator_has_no_checksum(tmp_path: Path) -> None:
    write_run(tmp_path, "sgd", has_data=False)
    page = Page(render(gather(tmp_path)))
    assert "simulator" in page.text["td"]
    assert "None" not in [*page.text["td"], *page.text.get("code", [])]


def test_text_from_results_is_escaped(tmp_path: Path) -> None:
    for kappa in (1.0, 2.0):
        write_run(tmp_path, HOSTILE, problem=HOSTILE, kappa=kappa, activation=HOSTILE, official=False)
    write_failed(tmp_path, HOSTILE)
    (tmp_path / "<b>.parquet").write_bytes(b"")
    page = Page(render(gather(tmp_path), HOSTILE))
    scripts = [attributes.get("type") for tag, attributes in page.elements if tag == "script"]
    assert scripts == ["application/json"] * 2 + [None] * 2  # two charts, Vega, and the embedding script
    assert not [tag for tag, _ in page.elements if tag in ("img", "b")]
    assert page.text["h1"] == [HOSTILE]
    assert HOSTILE in "".join(page.text["caption"])
    assert HOSTILE in "".join(page.text["summary"])


def test_charts_contain_the_given_names(tmp_path: Path) -> None:
    write_run(tmp_path, HOSTILE)
    page = Page(render(gather(tmp_path)))
    spec = json.loads(page.text["script"][0])
    (data,) = spec["datasets"].values()
    assert HOSTILE in data


def test_missing_comparisons_and_failures_are_mentioned(tmp_path: Path) -> None:
    write_run(tmp_path)
    text = "".join(Page(render(gather(tmp_path))).text["p"])
    assert "Every method has only one setting" in text
    assert "No run failed." in text


def test_experiments_of_other_packages_are_reported(tmp_path: Path) -> None:
    """The package is not installed: the record contains the schema, whose score has no definition."""
    other = replace(EXPERIMENT.schema, experiment="other", x_column="iteration", score="return")
    assert "other" not in experiments()
    table = pl.DataFrame({"iteration": [1, 2, 3], "return": [10.0, math.nan, 31.0]})
    write_run(tmp_path, experiment="other", table=table, schema=other)
    write_run(tmp_path)
    page = Page(render(gather(tmp_path)))
    assert page.text["h3"] == ["other", "streaming"] * 4  # runs, curves, best settings, trend
    spec = json.loads(page.text["script"][0])
    (data,) = spec["datasets"].values()
    assert data.splitlines() == [
        "setup,label,Iteration,return,return low,return high",
        "input-permuted-mnist,SGD,1,10.0,10.0,10.0",
        "input-permuted-mnist,SGD,2,,,",
        "input-permuted-mnist,SGD,3,31.0,31.0,31.0",
    ]


def test_equal_results_give_equal_pages(html: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    again = write_store(tmp_path_factory.mktemp("store"))
    lines = zip(html.splitlines(), render(gather(again), "A title").splitlines())
    assert not [pair for pair in lines if pair[0] != pair[1] and "<code>weightclip" not in pair[0]]
