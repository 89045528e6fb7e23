"""Experiments, problems and methods added by another package through entry points."""

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from weightclip.cli.arguments import epilog
from weightclip.lab.records.record import read_record
from weightclip.lab.registry import experiment_of, experiments

PACKAGE = """
from dataclasses import asdict, dataclass, field

import numpy as np
import polars as pl

from weightclip.lab.data import Dataset, Source
from weightclip.lab.experiment import Experiment, config_fields
from weightclip.lab.records.record import Record, identity, write_record
from weightclip.lab.records.schema import Metric, Schema, by_name
from weightclip.lab.records.store import record_path, relative_path
from weightclip.lab.experiments.streaming import Problem, Rule


def blobs(data_dir):
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(3, dtype=np.uint8), 40)
    inputs = (random.integers(0, 60, (120, 6)) + 90 * np.eye(3, 6, dtype=int)[labels]).astype(np.uint8)
    source = Source("bundled", "made here", "blobs-1", False, "blobs")
    return Dataset("blobs", inputs, labels, 3, source, (6,))


PROBLEM = Problem("label-permuted-blobs", "blobs", "labels", 60, own_data=blobs)


def half(w, g, lr=0.1):
    return w - lr * g * 0.5


HALF = Rule("half", update=half)


@dataclass(frozen=True)
class Config:
    problem: str = field(default="random-walk", metadata={"help": "the problem"})
    method: str = field(default="plain", metadata={"help": "plain or fancy"})
    depth: int = field(default=2, metadata={"help": "how deep"})
    seed: int = field(default=0, metadata={"help": "a number"})


class Walk(Experiment):
    name = "walk"
    config = Config
    schema = Schema(
        "walk",
        "step",
        "height",
        problems=("random-walk",),
        methods=("plain", "fancy"),
        settings=("depth",),
        fields=config_fields(Config),
        metrics=by_name(Metric("height", "Height", "of the walk", direction="higher")),
    )

    def presets(self, options={}):
        return {"axes": {"method": self.schema.methods}}

    def configure(self, problem, settings):
        return Config(problem, **settings)

    def settings(self, problem, method, options={}):
        return ("depth",)

    def identify(self, config, data):
        return identity(self.name, asdict(config), None)

    def length(self, config):
        return 5

    def run(self, configs, data, out, overwrite=False, callbacks=None):
        records = []
        for config in configs:
            heights = np.random.default_rng(config.seed).normal(config.depth, 1, 5)
            table = pl.DataFrame({"seed": [config.seed] * 5, "step": range(5), "height": heights})
            record = Record(self.schema, self.identify(config, data), asdict(config), table, {}, 0.01)
            write_record(record, record_path(out, relative_path(self.schema, config), record.identity))
            records.append(record)
        return records


EXPERIMENT = Walk()
"""

ENTRY_POINTS = """
[weightclip.experiments]
walk = my_plugin:EXPERIMENT
[weightclip.problems]
label-permuted-blobs = my_plugin:PROBLEM
[weightclip.methods]
half = my_plugin:HALF
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A directory with the package and its metadata, as created by an installer."""
    site = tmp_path / "site"
    metadata = site / "my_plugin-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "my_plugin.py").write_text(PACKAGE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-plugin\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    return site


def environment_with(site: Path) -> dict[str, str]:
    """Return the environment of a process that also finds the packages in `site`."""
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def weightclip(site: Path, command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "weightclip", *command.split()],
        env=environment_with(site),
        capture_output=True,
        text=True,
        timeout=300,
        cwd=site.parent,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_experiment_of_another_package_runs_and_sweeps(installed: Path) -> None:
    assert "seed 0: height " in weightclip(installed, "run random-walk --depth 3 --out out")
    weightclip(installed, "sweep random-walk --methods all --depth 3 --seeds 2 --workers 1 --out out")
    records = [read_record(path) for path in sorted((installed.parent / "out").rglob("*.parquet"))]
    assert {(one.experiment, one.config["method"], one.config["seed"]) for one in records} == {
        ("walk", method, seed) for method in ("plain", "fancy") for seed in (0, 1)
    }


def test_a_problem_and_a_method_of_another_package_run_like_built_in_ones(installed: Path) -> None:
    command = "run label-permuted-blobs --method half+wc --kappa 5 --steps 120 --hidden 4 --out out"
    assert "accuracy" in weightclip(installed, command)
    (path,) = (installed.parent / "out").rglob("*.parquet")
    record = read_record(path)
    assert record.config["method"] == "half+wc"
    assert record.data["name"] == "blobs"
    assert record.rules is not None
    assert "0.5" in record.rules  # the source of the rule is saved and part of the identity


def test_plugins_are_in_the_help(installed: Path) -> None:
    assert "label-permuted-blobs" in weightclip(installed, "run --help")
    assert "half" in weightclip(installed, "run label-permuted-blobs --help")
    assert "--depth" in weightclip(installed, "run random-walk --help")


def test_an_entry_point_that_does_not_load_is_reported_and_the_others_run(installed: Path) -> None:
    (installed / "my_plugin.py").write_text("raise OSError('no license')")
    done = subprocess.run(
        [sys.executable, "-m", "weightclip", "reproduce", "--list"],
        env=environment_with(installed),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0
    assert "entry point walk = my_plugin:EXPERIMENT: OSError: no license: skipped\n" in done.stderr
    assert "Traceback" not in done.stderr
    assert "weightclip sweep input-permuted-mnist" in done.stdout


def test_unknown_names_get_a_suggestion() -> None:
    assert experiment_of("label-permuted-emnist").name == "streaming"
    with pytest.raises(ValueError, match=r"problem: got 'label-permuted-emnits'.*did you mean 'label-permuted-emnist'"):
        experiment_of("label-permuted-emnits")


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (
            "input-permuted-mnist",
            ("sgd, adam, madam, with +regularizer: l2, l2init, sp, wc", "the paper's: sgd, adam, "),
        ),
        ("policy-collapse", ("torch.optim", "adam-equal-betas, Adam with beta2 = beta1", "the paper's: Ant-v4, ")),
        ("replay-ratio", ("torch.optim", "the paper's: asterix, beam_rider, ", "with --suite minatar: asterix, ")),
        ("warm-start", ("wc@switch", "@switch: once, when the second half of the data arrives")),
    ],
)
@pytest.mark.parametrize("command", ["run", "sweep"])
def test_the_help_of_a_problem_lists_methods_and_examples(
    command: str, problem: str, expected: tuple[str, ...]
) -> None:
    text = epilog(experiment_of(problem), command)
    assert text.startswith("methods:\n  ")
    assert all(part in text for part in expected)
    assert f"examples:\n  weightclip {command} {problem}" in text


@pytest.mark.parametrize("name", experiments())
def test_no_metric_is_named_like_an_option(name: str) -> None:
    """Both are columns of the tidy table."""
    experiment = experiments()[name]
    assert not {one.name for one in fields(experiment.config)} & set(experiment.schema.metrics)
