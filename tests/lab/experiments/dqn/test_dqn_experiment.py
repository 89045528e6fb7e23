import math
from collections.abc import Mapping
from typing import Any

import polars as pl
import pytest

from weightclip.cli import main
from weightclip.lab.experiment import score_text, summarize
from weightclip.lab.experiments.dqn.experiment import EXPERIMENT
from weightclip.lab.paper import reproductions
from weightclip.lab.registry import experiment_of


def test_the_experiment_is_found_by_name() -> None:
    assert experiment_of("replay-ratio").name == "replay-ratio"


def test_every_atari_figure_can_be_reproduced() -> None:
    known = reproductions()
    assert all(known[f"figure {number}"][""] is not None for number in (8, 9, 12, 13, 14, 15))
    assert all(known[table]["Atari"] is not None for table in ("table 1", "table 2"))


def test_the_papers_setting_is_known_only_for_its_games() -> None:
    row = {"method": "adam+wc", "suite": "atari", "agent": "rainbow", "game": "seaquest"}

    def setting(**changes: Any) -> Mapping[str, Any] | None:
        return EXPERIMENT.compare_with_paper(EXPERIMENT.configure("replay-ratio", {**row, **changes}))[0]

    assert setting() == {"lr": 6.25e-5, "kappa": 1.0}
    assert setting(suite="minatar") is None
    assert setting(game="pong") is None
    assert setting(method="adam+l2", decay=0.1) is None


def test_replay_ratios_missing_from_the_paper_are_deviations() -> None:
    configs = [
        EXPERIMENT.configure("replay-ratio", {"method": "adam", "game": "seaquest", "replay_ratio": ratio})
        for ratio in (1.0, 0.1, 0.25)
    ]
    found = [EXPERIMENT.compare_with_paper(config)[1] for config in configs]
    assert found == [{}, {}, {"replay_ratio": 0.25}]


def test_there_is_no_return_before_the_first_game_ends() -> None:
    shown = score_text(EXPERIMENT.schema)
    assert shown(math.nan) == "return, evaluated –"
    assert shown(12.5) == "return, evaluated 12.5"
    table = pl.DataFrame({"test_return": [None, 3.0, 5.0], "weight_l2": [20.0] * 3}, strict=False)
    expected = "return, evaluated 3 in the first part, 5 in the last of 3, 4 on average"
    assert summarize(EXPERIMENT.schema, [table]) == expected
    assert summarize(EXPERIMENT.schema, [table[:1]]) == "no return, evaluated yet"


def test_all_minatar_games_selects_the_papers_games(capsys: pytest.CaptureFixture[str], tmp_path: object) -> None:
    options = "--suite minatar --agents dqn --replay-ratios 0.1,1 --frames 400 --points 4"
    sizes = "--learning-starts 60 --buffer-size 300"
    command = f"sweep replay-ratio {options} {sizes} --seeds 2 --dry-run --out {tmp_path}"
    assert main(command.split()) == 0
    assert "24 runs: 0 done, 24 to run" in capsys.readouterr().out


def test_an_unknown_game_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "replay-ratio", "--suite", "minatar", "--game", "pong"]) == 2
    assert "game: got 'pong', expected one of asterix" in capsys.readouterr().err
