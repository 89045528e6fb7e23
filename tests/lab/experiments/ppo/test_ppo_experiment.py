import math
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from toy_env import NAME, config

from weightclip.cli import main
from weightclip.lab.experiment import summarize
from weightclip.lab.experiments.ppo.config import LOCKSTEP, Config
from weightclip.lab.experiments.ppo.experiment import EXPERIMENT
from weightclip.lab.paper import reproductions
from weightclip.lab.records.table import load
from weightclip.lab.registry import experiment_of
from weightclip.lab.sweep.grid import best, search
from weightclip.lab.sweep.plan import batches, make_runs


def test_the_experiment_is_found_by_name() -> None:
    assert experiment_of("policy-collapse").name == "policy-collapse"


def test_seeds_of_one_configuration_are_batched_by_eight() -> None:
    configs = [config(method, seed) for method in ("adam", "adam+wc") for seed in range(LOCKSTEP + 2)]
    sizes = [len(together) for together in batches(make_runs(EXPERIMENT, configs, None))]
    assert sizes == [LOCKSTEP, 2, LOCKSTEP, 2]


def test_each_environment_has_a_best_setting() -> None:
    found = [
        best(EXPERIMENT, "policy-collapse", ["adam+wc"], EXPERIMENT.presets({"env": env}), {"env": env})[0]
        for env in EXPERIMENT.presets()["axes"]["env"]
    ]
    assert [row["kappa"] for row in found] == [5.0, 3.0, 3.0, 3.0]
    configs = [EXPERIMENT.configure("policy-collapse", row) for row in found]
    assert all(one.settings == {"eps": 1e-5} for one in configs)
    papers, other, by_layer = (
        EXPERIMENT.configure("policy-collapse", {"method": "adam+wc", **setup})
        for setup in ({"env": "Ant-v4"}, {"env": "Ant-v5"}, {"env": "Ant-v4", "bounds": "fan_in"})
    )
    assert EXPERIMENT.compare_with_paper(papers) == ({"lr": 0.0003, "kappa": 5.0}, {})
    assert EXPERIMENT.compare_with_paper(other) == (None, {"env": "Ant-v5"})
    assert EXPERIMENT.compare_with_paper(by_layer) == (None, {"bounds": "fan_in"})


def test_the_search_varies_kappa() -> None:
    found = search(EXPERIMENT, "policy-collapse", ["adam", "adam+wc"], EXPERIMENT.presets(), {})
    assert [row.get("kappa") for row in found] == [None, 1.0, 3.0, 5.0]


def test_a_summary_averages_the_seeds_that_did_not_diverge() -> None:
    tables = [
        pl.DataFrame({"return": [1.0, last], "weight_l2": [2.0, norm]})
        for last, norm in ((3.0, 4.0), (math.nan, math.nan), (5.0, 6.0))
    ]
    ends = "episodic return 1 in the first iteration, 4 in the last of 2"
    assert summarize(EXPERIMENT.schema, tables[::2]) == f"{ends}, 2.5 on average"
    assert summarize(EXPERIMENT.schema, tables) == f"{ends}, 2 on average; 1 of 3 seeds diverged"
    diverged = "episodic return 1 in the first iteration, – in the last of 2, 1 on average; 1 of 1 seed diverged"
    assert summarize(EXPERIMENT.schema, tables[1:2]) == diverged
    silent = pl.DataFrame(
        {"return": [None] * 2, "weight_l2": [2.0] * 2}, schema=dict.fromkeys(("return", "weight_l2"), pl.Float64)
    )
    assert summarize(EXPERIMENT.schema, [silent]) == "no episodic return yet"
    assert summarize(EXPERIMENT.schema, [silent, *tables[::2]]) == f"{ends}, 2.5 on average"


def test_a_missing_environment_is_reported_before_the_run() -> None:
    with pytest.raises(ValueError, match="env: got 'Nope-v1'"):
        EXPERIMENT.load(replace(Config(), env="Nope-v1"), None)


def test_every_ppo_figure_can_be_reproduced() -> None:
    known = reproductions()
    assert all(known[f"figure {number}"][""] is not None for number in (5, 6, 7, 11))
    assert known["table 2"]["MuJoCo"] is not None
    commands = [known[f"figure {number}"][""].commands[-1] for number in (5, 6, 7, 11)]  # type: ignore[union-attr]
    assert len(set(commands)) == 4  # no figure overwrites another's files


def test_a_sweep_from_the_command_line(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--num-steps 64 --num-minibatches 4 --update-epochs 2 --steps 256 --hidden 8,8 --best"
    command = (
        f"sweep policy-collapse --envs {NAME} --methods adam,adam+wc --seeds 2 {options} --dry-run --out {tmp_path}"
    )
    assert main(command.split()) == 0
    assert "4 runs: 0 done, 4 to run" in capsys.readouterr().out


@pytest.mark.parametrize(("option", "loss"), [("--no-clip-vloss", "value_loss"), ("--no-norm-adv", "policy_loss")])
def test_an_option_that_disables_part_of_a_loss_changes_the_run(option: str, loss: str, tmp_path: Path) -> None:
    small = "--num-steps 64 --num-minibatches 4 --update-epochs 2 --steps 64 --hidden 8,8 --lr 0.01 --clip-coef 0.01"
    for out, given in (("usual", []), ("off", [option])):
        command = f"run policy-collapse --env {NAME} --method adam {small} --out {tmp_path / out}"
        assert main([*command.split(), *given]) == 0
    usual, off = (load(tmp_path / out)[loss].item() for out in ("usual", "off"))
    assert abs(usual - off) > 0.001
