from pathlib import Path

import polars as pl
import pytest

from weightclip.cli import main
from weightclip.lab import paper
from weightclip.lab.experiments.streaming.config import PAPER_METHODS
from weightclip.lab.paper import ITEMS
from weightclip.lab.registry import experiments

pytestmark = pytest.mark.usefixtures("empty_directory")

SWEEP = "sweep input-permuted-mnist --methods all --best --seeds {} --out {}"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the started commands without running them."""
    commands: list[str] = []

    def start(words: list[str]) -> int:
        commands.append(" ".join(words))
        return 0

    monkeypatch.setattr("weightclip.cli.main", start)
    return commands


@pytest.fixture
def only_streaming(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide all experiments except streaming."""
    monkeypatch.setattr(paper, "experiments", lambda: {"streaming": experiments()["streaming"]})


@pytest.mark.usefixtures("only_streaming")
def test_every_item_of_the_paper_is_listed_with_its_commands_or_as_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list"]) == 0
    shown = capsys.readouterr().out
    items = [part.partition(":")[0] for part in shown.split("\n") if part and not part.startswith(" ")]
    assert items == list(ITEMS)
    below = dict(zip(items, shown.replace("\ntable", "\nfigure").split("\nfigure"), strict=True))
    assert f"    weightclip {SWEEP.format(20, 'results')}\n" in below["figure 4"]
    assert "    weightclip figure streaming-diagnostics results -o figures" in below["figure 4"]
    assert below["figure 8"].endswith("no experiment reproduces it yet")
    assert below["table 2"].count("no experiment reproduces it yet") == 3
    assert "weightclip best results" in below["table 2"]


def test_without_an_item_everything_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["reproduce", "--list"])
    listed = capsys.readouterr().out
    assert main(["reproduce"]) == 0
    assert capsys.readouterr().out == listed


@pytest.mark.parametrize("item", [["figure", "4"], ["figure 4"], ["4"]])
def test_the_commands_of_an_item_are_run_sequentially(
    item: list[str], started: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *item]) == 0
    assert started == [SWEEP.format(20, "results"), "figure streaming-diagnostics results -o figures"]
    assert capsys.readouterr().out.splitlines() == [f"weightclip {command}" for command in started]


def test_one_panel_or_all_panels_can_be_run(started: list[str]) -> None:
    draw = "figure streaming results -o figures"
    assert main(["reproduce", "figure", "3(a)"]) == 0
    panel = [SWEEP.format(20, "results"), draw]
    assert started == panel
    started.clear()
    assert main(["reproduce", "3"]) == 0
    others = [SWEEP.replace("input-permuted-mnist", f"label-permuted-{name}") for name in ("emnist", "mini-imagenet")]
    assert started == [*panel, others[0].format(20, "results"), draw, others[1].format(20, "results"), draw]


def test_seeds_directories_and_sweep_options_are_passed_on(started: list[str]) -> None:
    options = ["--seeds", "0-4", "--results", "r", "-o", "f", "--steps", "50k", "--data-dir", "d", "--workers", "2"]
    assert main(["reproduce", "figure", "4", *options]) == 0
    assert started == [
        SWEEP.format("0-4", "r") + " --steps 50k --data-dir d --workers 2",
        "figure streaming-diagnostics r -o f --where steps=50k",
    ]


@pytest.mark.parametrize(("item", "length"), [("2", "epochs"), ("5", "steps"), ("8", "frames")])
def test_the_length_option_has_the_experiments_name(item: str, length: str, started: list[str]) -> None:
    assert main(["reproduce", item, "--steps", "50k"]) == 0
    sweep, figure = started
    assert sweep.endswith(f" --{length} 50k")
    assert figure.endswith(f" --where {length}=50k")


def test_each_covariance_figure_selects_its_agent_and_games(started: list[str]) -> None:
    for item in ("12", "14"):
        assert main(["reproduce", item]) == 0
    games = "asterix,beam_rider,demon_attack,ice_hockey"
    for number, agent, (sweep, figure) in ((12, "dqn", started[:2]), (14, "rainbow", started[2:])):
        assert sweep.startswith(f"sweep replay-ratio --agents {agent} --games {games} ")
        chosen = "--where suite=atari --where replay_ratio=1"
        assert figure == f"figure gradient-covariance-{number} results -o figures {chosen}"


def test_a_dry_run_counts_runs_and_draws_nothing(started: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "4", "--dry-run"]) == 0
    assert started == [SWEEP.format(20, "results") + " --dry-run"]
    assert "weightclip figure streaming-diagnostics results -o figures" in capsys.readouterr().out


def test_a_failing_command_stops_the_reproduction(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("weightclip.cli.main", lambda words: 130)
    assert main(["reproduce", "figure", "3"]) == 130
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_options_for_retries_and_slurm_are_passed_on(started: list[str]) -> None:
    options = ["--executor", "slurm", "--slurm", "time=60", "--slurm", "partition=cpu", "--retry-failed"]
    assert main(["reproduce", "figure", "4", *options]) == 0
    assert started[0] == f"{SWEEP.format(20, 'results')} {' '.join(options)}"


def test_failed_runs_are_reported_and_the_figure_is_drawn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[str] = []

    def start(words: list[str]) -> int:
        started.append(words[0])
        return 1 if words[0] == "sweep" else 0

    monkeypatch.setattr("weightclip.cli.main", start)
    assert main(["reproduce", "figure", "4"]) == 1
    assert started == ["sweep", "figure"]
    out = capsys.readouterr().out
    assert "some runs of this sweep failed; the next commands use the others" in out
    assert out.splitlines()[-1] == "figure 4 is incomplete because runs failed; weightclip status results lists them"


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("figure 8", "figure 8: no experiment reproduces it yet; weightclip reproduce --list shows all items"),
        ("figur 3", "did you mean 'figure 3'?"),
        ("16", "item: got '16', expected one of figure 1, "),
    ],
)
@pytest.mark.usefixtures("only_streaming")
def test_an_unsupported_item_prints_one_line(item: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", *item.split()]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.slow
def test_figure_4_from_scratch() -> None:
    """With the bundled digits, few samples and two seeds; a repeated command has nothing to run."""
    command = ["reproduce", "figure", "4", "--seeds", "2", "--steps", "600", "--workers", "1"]
    assert main(command) == 0
    table = pl.read_csv("figures/streaming-diagnostics.csv")
    assert table["method"].unique(maintain_order=True).to_list() == list(PAPER_METHODS)
    assert set(table["seeds"]) == {2}
    records = {path: path.stat().st_mtime_ns for path in Path("results").rglob("*.parquet")}
    assert len(records) == 18
    assert main(command) == 0
    assert {path: path.stat().st_mtime_ns for path in Path("results").rglob("*.parquet")} == records
