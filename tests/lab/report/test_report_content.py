import json
from dataclasses import asdict, replace
from pathlib import Path

import polars as pl
import pytest
from report_store import EMNIST, MNIST, write_failed, write_run, write_store

from lab.records.synthetic_records import make_record, store
from weightclip.lab.paper import all_figures
from weightclip.lab.records.record import read_record, write_record
from weightclip.lab.records.table import load
from weightclip.lab.report.content import Content, gather
from weightclip.lab.report.provenance import Sweep
from weightclip.lab.report.tables import Across, Best, Runs
from weightclip.lab.sweep.manifest import FOLDER, Manifest, PlannedRun


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> Content:
    return gather(write_store(tmp_path_factory.mktemp("store")))


def test_the_content_summarizes_the_runs(content: Content) -> None:
    assert content.facts == {
        "runs": "20",
        "problems": "2",
        "methods": "4",
        "seeds": "0–1",
        "computing time": "20 s",
        "failed": "1",
    }
    assert content.summary == "20 runs, 2 problems, 4 methods, seeds 0–1, 20 s computing time, 1 failed"


def test_each_method_has_a_row_with_its_runs_seeds_and_settings(content: Content) -> None:
    (mnist, emnist) = content.parts[0].setups
    assert [row.method for row in mnist.runs] == ["sgd", "adam", "adam+wc"]
    assert emnist.runs[1] == Runs("sgd+wc", 12, "0–1", 6, "lr 0.01, 0.1; kappa 1, 2, 3", "12 s")
    assert mnist.setup.configuration == "steps 6,000, period 100, hidden 30,20, activation leaky_relu"


def test_setups_of_a_problem_are_separate_and_named_by_their_differences(tmp_path: Path) -> None:
    write_run(tmp_path, tasks=4, accuracy=0.9)
    write_run(tmp_path, tasks=6, accuracy=0.1)
    write_run(tmp_path, tasks=6, accuracy=0.5, official=False)
    setups = gather(tmp_path).parts[0].setups
    assert [one.setup.name for one in setups] == [
        f"{MNIST}, steps 600, data official",
        f"{MNIST}, steps 600, data stand-in",
        f"{MNIST}, steps 400, data official",
    ]
    assert [one.best[0].score for one in setups] == ["10.00%", "50.00%", "90.00%"]
    assert [one.setup.label.endswith("(stand-in data)") for one in setups] == [False, True, False]


def test_data_that_is_not_official_is_marked(content: Content) -> None:
    assert [(data.name, data.problems, data.official, data.runs) for data in content.data] == [
        ("mnist", (MNIST,), True, 6),
        ("emnist", (EMNIST,), False, 14),
    ]
    assert [one.setup.stand_in for one in content.parts[0].setups] == [False, True]


def test_the_best_setting_is_compared_with_the_papers(content: Content) -> None:
    (mnist, emnist) = content.parts[0].setups
    assert emnist.best[1] == Best(
        "sgd+wc",
        setting="lr 0.01, kappa 2",
        score="39.05% ± 0.05%",
        seeds=2,
        compared=6,
        paper="lr 0.01, kappa 2",
        paper_score="39.05%",
        same=True,
        notes=("lr at the edge of the values tried",),
    )
    adam = mnist.best[1]
    assert (adam.setting, adam.paper, adam.paper_score, adam.same) == ("lr 0.001", "lr 0.0001", "–", False)


def test_the_papers_setting_has_a_score_if_it_was_run(tmp_path: Path) -> None:
    write_run(tmp_path, "adam", lr=0.0001, accuracy=0.4)
    write_run(tmp_path, "adam", lr=0.01, accuracy=0.5)
    best = gather(tmp_path).parts[0].setups[0].best[0]
    assert (best.setting, best.paper, best.paper_score) == ("lr 0.01", "lr 0.0001", "40.00%")


def test_methods_and_problems_missing_from_the_paper_have_no_comparison(tmp_path: Path) -> None:
    write_run(tmp_path, "mine", settings={"beta": 0.5})
    write_run(tmp_path, "mine", settings={"beta": 0.7}, accuracy=0.6)
    best = gather(tmp_path).parts[0].setups[0].best[0]
    assert (best.setting, best.paper, best.same) == ("lr 0.001, beta 0.7", None, False)


def test_ties_and_settings_with_fewer_seeds_are_reported(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path, "sgd+wc", seed=seed, kappa=1.0)
        write_run(tmp_path, "sgd+wc", seed=seed, kappa=2.0)
    write_run(tmp_path, "sgd+wc", kappa=3.0, accuracy=0.9)
    notes = gather(tmp_path).parts[0].setups[0].best[0].notes
    assert notes == (
        "kappa at the edge of the values tried",
        "tied with 1 other setting",
        "1 setting with fewer seeds excluded",
    )


def test_a_slope_has_an_interval_and_a_verdict_with_several_seeds(content: Content, tmp_path: Path) -> None:
    trends = content.parts[0].setups[0].trends
    assert [(row.slope, row.interval, row.verdict) for row in trends] == [
        ("−20.00", "−20.00 to −20.00", "falling"),
        ("+0.00", "+0.00 to +0.00", "flat"),
        ("+20.00", "+20.00 to +20.00", "rising"),
    ]
    write_run(tmp_path, slope=0.01)
    (trend,) = gather(tmp_path).parts[0].setups[0].trends
    assert (trend.slope, trend.interval, trend.verdict) == ("+100.00", "–", "–")


def test_only_selected_runs_are_reported(content: Content, tmp_path: Path) -> None:
    store = write_store(tmp_path)
    chosen = gather(store, chosen={"problem": EMNIST, "method": "sgd"})
    assert chosen.facts["runs"] == "2"
    assert chosen.commands[0].command == f"weightclip report {store} --where problem={EMNIST} --where method=sgd"


def test_exactly_the_available_figures_have_a_command(tmp_path: Path) -> None:
    store = tmp_path / "my results"
    write_run(store)
    commands = {one.title: one.command for one in gather(store, figures=all_figures()).commands}
    assert list(commands.values()) == [
        f"weightclip report '{store}'",
        f"weightclip best '{store}'",
        f"weightclip figure streaming '{store}'",  # other figures require diagnostics or several settings
    ]
    write_run(store, lr=0.1)
    assert f"weightclip figure streaming-sensitivity '{store}'" in [
        one.command for one in gather(store, figures=all_figures()).commands
    ]


def test_the_criterion_determines_the_best_setting_and_is_in_every_command(tmp_path: Path) -> None:
    write_run(tmp_path, lr=0.1, accuracy=0.7, slope=-0.1)
    write_run(tmp_path, lr=0.2, accuracy=0.3, slope=0.02)
    by_area, by_end = gather(tmp_path), gather(tmp_path, criterion="final")
    assert [content.criterion for content in (by_area, by_end)] == ["area under the curve", "mean over the last tenth"]
    for content, setting, score, slope in (
        (by_area, "lr 0.1", "45.00%", "−1000.00"),
        (by_end, "lr 0.2", "40.00%", "+200.00"),
    ):
        (one,) = content.parts[0].setups
        assert (one.best[0].setting, one.best[0].score, one.trends[0].slope) == (setting, score, slope)
    curves = [content.parts[0].curves.spec["datasets"] for content in (by_area, by_end)]
    assert curves[0] != curves[1]
    assert by_end.parts[0].sensitivity[0].metrics[0].label == "Accuracy, mean over the last tenth"
    assert {one.command.endswith(" --criterion final") for one in by_end.commands} == {True}
    assert not any("--criterion" in one.command for one in by_area.commands)


def test_methods_are_compared_over_problems(tmp_path: Path) -> None:
    for seed in (0, 1):
        for problem in (MNIST, EMNIST):
            write_run(tmp_path, seed=seed, problem=problem, accuracy=0.5)
            write_run(tmp_path, "adam", seed=seed, problem=problem, accuracy=0.6)
    (part,) = gather(tmp_path).parts
    assert part.across == (
        Across("sgd", "", "50.05%", "50.00% to 50.10%", problems=2, runs=4),
        Across("adam", "", "60.05%", "60.00% to 60.10%", problems=2, runs=4),
    )


def test_one_problem_has_no_mean_over_problems(tmp_path: Path) -> None:
    write_run(tmp_path)
    assert gather(tmp_path).parts[0].across == ()


def test_counts_of_one_are_singular(tmp_path: Path) -> None:
    write_run(tmp_path, seed=3)
    content = gather(tmp_path)
    assert content.summary == "1 run, 1 problem, 1 method, seed 3, 1.0 s computing time, 0 failed"
    assert list(content.labels)[:4] == ["run", "problem", "method", "seed"]


def test_a_store_with_only_failed_runs_has_only_failures_and_sweeps(tmp_path: Path) -> None:
    write_failed(tmp_path)
    content = gather(tmp_path, chosen={"steps": "1M"})
    assert content.facts == {"runs": "0", "failed": "1"}
    assert (content.parts, content.data, content.software) == ((), (), ())
    assert [one.title for one in content.commands] == ["This report"]
    assert content.failures[0].reason == "MemoryError: no memory"


def test_failures_are_reported_by_reason_until_their_runs_have_records(tmp_path: Path) -> None:
    record = write_run(tmp_path)
    write_failed(tmp_path, identity="1" * 12)
    write_failed(tmp_path, identity="2" * 12)
    write_failed(tmp_path, "ValueError: lr", identity=record.identity)
    (failed,) = gather(tmp_path).failures
    assert (failed.reason, failed.runs) == ("MemoryError: no memory", 2)
    assert failed.traceback.startswith("Traceback")


def test_only_some_of_many_failures_are_listed(tmp_path: Path) -> None:
    write_run(tmp_path)
    for number in range(30):
        write_failed(tmp_path, identity=f"{number:012}")
    (failed,) = gather(tmp_path).failures
    assert (failed.runs, len(failed.places)) == (30, 20)


def test_sweeps_are_listed_with_their_finished_runs(tmp_path: Path) -> None:
    runs = [PlannedRun(name, "place", "sgd") for name in (write_run(tmp_path).identity, "f" * 12)]
    manifest = Manifest("weightclip sweep x", "streaming", MNIST, "2024-05-01T12:00:00+00:00", tuple(runs))
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "sweep.json").write_text(json.dumps(asdict(manifest)))
    assert gather(tmp_path).sweeps == (Sweep("weightclip sweep x", "2024-05-01T12:00:00+00:00", runs=2, done=1),)


def test_versions_and_machines_are_counted(tmp_path: Path) -> None:
    for seed in range(3):
        record = write_run(tmp_path, seed=seed)
    path = next(tmp_path.rglob(f"*{record.identity}.parquet"))
    write_record(replace(read_record(path), platform="another machine"), path)
    here, other = gather(tmp_path).software
    assert (here.runs, other.runs, other.platform) == (2, 1, "another machine")
    assert here.versions["polars"] == pl.__version__


def test_damaged_files_are_reported_and_skipped(tmp_path: Path) -> None:
    write_run(tmp_path)
    (tmp_path / "broken_0123456789ab.parquet").write_bytes(b"PAR1 no")
    content = gather(tmp_path)
    assert content.facts["runs"] == "1"
    (note,) = content.notes
    assert "broken_0123456789ab.parquet" in note


def test_a_report_can_be_made_from_a_saved_table(tmp_path: Path) -> None:
    saved = tmp_path / "saved.csv"
    load(write_store(tmp_path / "store")).write_csv(saved)
    content = gather(saved)
    assert content.facts["runs"] == "20"
    assert (content.software, content.failures, content.sweeps) == ((), (), ())


def test_versions_of_a_rule_are_separate_settings_of_a_method(tmp_path: Path) -> None:
    store(tmp_path, make_record(method="lion", rules="old"), make_record((0.9, 0.9), method="lion", rules="new"))
    assert gather(tmp_path).facts["runs"] == "2"
