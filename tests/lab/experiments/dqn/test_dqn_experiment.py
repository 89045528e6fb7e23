import math

import polars as pl
import pytest

from weightclip.cli import main
from weightclip.lab.experiments.dqn.config import Config
from weightclip.lab.experiments.dqn.experiment import EXPERIMENT
from weightclip.lab.paper import reproductions
from weightclip.lab.registry import experiment_of


def test_it_is_found_by_its_name() -> None:
    assert experiment_of("replay-ratio").name == "replay-ratio"


def test_every_figure_on_atari_can_be_reproduced() -> None:
    known = reproductions()
    assert all(known[f"figure {number}"][""] is not None for number in (8, 9, 12, 13, 14, 15))
    assert all(known[table]["Atari"] is not None for table in ("table 1", "table 2"))


def test_the_papers_setting_is_known_for_its_games_alone() -> None:
    row = {"problem": "replay-ratio", "method": "adam+wc", "suite": "atari", "agent": "rainbow", "game": "seaquest"}
    assert EXPERIMENT.paper_setting(row) == {"lr": 6.25e-5, "kappa": 1.0}
    assert EXPERIMENT.paper_setting({**row, "suite": "minatar"}) is None
    assert EXPERIMENT.paper_setting({**row, "method": "adam+l2"}) is None


def test_other_replay_ratios_than_the_papers_are_remarked() -> None:
    rows = [
        {
            **Config().facts(),
            **EXPERIMENT.papers({"method": "adam", "agent": "dqn", "game": "seaquest", "replay_ratio": 1.0}),
            "replay_ratio": ratio,
        }
        for ratio in (1.0, 0.1, 0.25)
    ]
    assert [EXPERIMENT.remark(row) for row in rows] == ["", "", "not the paper's setting: replay_ratio 0.25"]


def test_before_a_game_has_ended_there_is_no_return() -> None:
    assert EXPERIMENT.shown(math.nan) == "no game ended yet"
    assert EXPERIMENT.shown(12.5) == "return 12.5"
    table = pl.DataFrame({"test_return": [3.0], "return": [None], "weight_l2": [20.0]}, strict=False)
    assert EXPERIMENT.summarise([table]) == "return 3 at the end, – in training; weight norm 20"


def test_all_games_of_minatar_are_those_that_the_paper_has(
    capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    options = "--suite minatar --agents dqn --replay-ratios 0.1,1 --frames 400 --points 4"
    sizes = "--learning-starts 60 --buffer-size 300"
    command = f"sweep replay-ratio {options} {sizes} --seeds 2 --dry-run --out {tmp_path}"
    assert main(command.split()) == 0
    assert "24 runs: 0 done, 24 to run" in capsys.readouterr().out


def test_a_game_that_is_not_there_is_told_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "replay-ratio", "--suite", "minatar", "--game", "pong"]) == 2
    assert "game: got 'pong', expected one of asterix" in capsys.readouterr().err
