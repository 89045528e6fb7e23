"""Old names keep working for one release, with a DeprecationWarning."""

import pickle
import sys
import warnings
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn

import weightclip as wc
from weightclip import lab
from weightclip._renamed import ARGUMENTS, FIELDS, MODULES, NAMES, new_module
from weightclip.lab import analysis
from weightclip.lab.config import field_types, rename_presets
from weightclip.lab.registry import experiments


@pytest.fixture(autouse=True)
def _forget_old_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if new_module(name) is not None:
            monkeypatch.delitem(sys.modules, name)
    for old in MODULES:
        for package in (wc, lab):
            monkeypatch.delitem(vars(package), old.rpartition(".")[2], raising=False)


@pytest.mark.filterwarnings("ignore:weightclip.lab:DeprecationWarning")  # attribute of the parent package
@pytest.mark.parametrize(("old", "new"), [pair for pair in MODULES.items() if "results" not in pair[0]])
def test_an_old_module_name_is_an_alias_that_warns(old: str, new: str) -> None:
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        found = import_module(old)
    assert f"{old} is now {new}" in [str(each.message) for each in raised]
    assert {each.category for each in raised} == {DeprecationWarning}
    assert found is import_module(new)
    assert found.__spec__ is not None
    assert found.__spec__.name == new


def test_a_submodule_of_an_old_module_is_an_alias() -> None:
    with pytest.warns(DeprecationWarning, match="weightclip.lab.streaming is now"):
        found = import_module("weightclip.lab.streaming.rules")
    assert found is import_module("weightclip.lab.experiments.streaming.rules")


def test_an_old_module_is_an_attribute_of_lab() -> None:
    with pytest.warns(DeprecationWarning, match="weightclip.lab.nets is now weightclip.lab.networks"):
        assert lab.nets is lab.networks  # type: ignore[attr-defined]


def test_results_exports_the_names_of_records_and_analysis() -> None:
    with pytest.warns(DeprecationWarning, match="weightclip.lab.results is now weightclip.lab.load"):
        results = import_module("weightclip.lab.results")
    assert results.load is lab.load
    assert results.select is lab.analysis.select


@pytest.mark.filterwarnings("ignore:weightclip.lab:DeprecationWarning")
@pytest.mark.parametrize(
    "name",
    [
        "data.load",
        "experiment.Experiment",
        "results.curves.curves",
        "results.load",
        "results.panels.panels",
        "results.peaks.peaks",
        "results.problems.across_problems",
        "results.record.read_record",
        "results.selection.select",
        "results.statistics.trend",
        "running.run",
        "streaming.Problem",
        "streaming.Rule",
        "streaming.config.Config",
        "streaming.metrics.METRICS",
        "streaming.problem.Problem",
        "streaming.reference.Reference",
        "warm_start.authors.authors_table",
    ],
)
def test_every_name_in_the_documentation_of_the_last_release_is_there(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert hasattr(import_module(f"weightclip.lab.{module}"), attribute)


def test_a_file_of_rules_may_use_the_old_name(tmp_path: Path) -> None:
    from weightclip.lab.experiments.streaming.rules import load_rules

    path = tmp_path / "mine.py"
    path.write_text("from weightclip.lab.streaming.rules import Rule\nMINE = Rule('mine', after=lambda w: w)\n")
    with pytest.warns(DeprecationWarning, match="weightclip.lab.streaming is now"):
        assert list(load_rules(path)) == ["mine"]


def test_an_unknown_module_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError):
        import_module("weightclip.lab.stream")
    with pytest.raises(AttributeError, match="no attribute 'stream'"):
        _ = lab.stream  # type: ignore[attr-defined]


@pytest.mark.parametrize(("module", "old", "new"), [(m, old, new) for m in NAMES for old, new in NAMES[m].items()])
def test_an_old_name_is_an_alias_that_warns(module: str, old: str, new: str) -> None:
    home = import_module(module)
    with pytest.warns(DeprecationWarning, match=rf"^{module}\.{old} is now {module}\.{new}$") as raised:
        assert getattr(home, old) is getattr(home, new)
    assert raised[0].filename == __file__
    assert old not in dir(wc)


def test_old_names_are_imported_from_the_package() -> None:
    with pytest.warns(DeprecationWarning, match="lipschitz is now weightclip.lipschitz_bounds"):
        from weightclip import lipschitz
    assert lipschitz is wc.lipschitz_bounds
    with pytest.warns(DeprecationWarning, match="weightclip.rivals is now weightclip.regularizers"):
        assert wc.rivals.l2.l2 is wc.l2  # type: ignore[attr-defined]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_old_arguments_of_clip_weights_warn_at_the_call() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
    with pytest.warns(DeprecationWarning, match="clip_weights: the argument") as raised:
        clipper = wc.clip_weights(sgd(model), model, 1.0, last_layer=False, statistics=True)  # type: ignore[call-arg]
    assert sorted(str(each.message).partition("argument ")[2] for each in raised) == [
        "last_layer is now clip_output_layers",
        "statistics is now track_clipped",
    ]
    assert {each.filename for each in raised} == {__file__}
    with pytest.warns(DeprecationWarning, match="Clipper.statistics is now Clipper.track_clipped"):
        assert clipper.statistics is clipper.track_clipped is True
    assert clipper.bounds["2.weight"].s is None
    with pytest.warns(DeprecationWarning, match="resolve_bounds: the argument last_layer is now clip_output_layers"):
        assert wc.resolve_bounds(model, last_layer=False)["2.weight"].s is None  # type: ignore[call-arg]


def test_an_old_argument_together_with_the_new_one_raises_an_error() -> None:
    model = nn.Linear(4, 3)
    with (
        pytest.warns(DeprecationWarning, match="the argument statistics is now track_clipped"),
        pytest.raises(TypeError, match="clip_weights: got statistics and track_clipped"),
    ):
        wc.clip_weights(sgd(model), model, 1.0, statistics=True, track_clipped=True)  # type: ignore[call-arg]


def test_old_arguments_of_madam() -> None:
    parameters = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))]
    with pytest.warns(DeprecationWarning, match="Madam: the argument largest is now max_update"):
        optimizer = wc.Madam(parameters[:1], largest=2.0)  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match="Madam: the argument largest is now max_update"):
        optimizer.add_param_group({"params": parameters[1:], "largest": 3.0})
    assert [group["max_update"] for group in optimizer.param_groups] == [2.0, 3.0]
    assert not any("largest" in group for group in optimizer.param_groups)


def test_every_renamed_argument_belongs_to_a_public_function() -> None:
    assert all(hasattr(wc, function) or hasattr(analysis, function) for function in ARGUMENTS)


def test_a_pickle_of_0_1_0_finds_the_class_of_a_clipped_optimizer() -> None:
    with pytest.warns(DeprecationWarning, match="weightclip.optimizer_class is now weightclip._optimizer_class"):
        found = pickle.loads(b"cweightclip.optimizer_class\nClippedAdam\n.")
    assert found is wc.clipped(torch.optim.Adam)


def test_every_old_field_is_renamed_in_its_experiment() -> None:
    for name, renamed in FIELDS.items():
        known = field_types(experiments()[name].config)
        assert not renamed.keys() & known.keys()
        assert {*renamed.values()} <= known.keys()


def test_old_arguments_of_run_give_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="^rollout is now num_steps$") as caught:
        table = lab.run(
            "policy-collapse",
            env="Pendulum-v1",
            steps=40,
            rollout=16,
            num_minibatches=2,
            update_epochs=1,
            hidden=(4,),
            progress=False,
        )
    assert len(table) == 2
    assert caught[0].filename == __file__
    with pytest.raises(ValueError, match="rollout: it is now num_steps, which is given as well"):
        lab.run("policy-collapse", rollout=16, num_steps=16)


def test_old_keys_of_a_grid_are_renamed() -> None:
    presets = {
        "grid": {"lam": [0.9], "methods": {"adam": {"clip": [0.1]}}, "settings": {"largest": [1.0]}},
        "best": {"policy-collapse": {"adam": {"lam": 0.9}}},
    }
    with pytest.warns(DeprecationWarning, match="is now"):
        found = rename_presets(experiments()["policy-collapse"].config, presets)
    assert found == {
        "grid": {
            "gae_lambda": [0.9],
            "methods": {"adam": {"clip_coef": [0.1]}},
            "settings": {"max_update": [1.0]},
        },
        "best": {"policy-collapse": {"adam": {"gae_lambda": 0.9}}},
    }
