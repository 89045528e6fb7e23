"""Old names keep working for one release."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

from weightclip import lab
from weightclip._renamed import FIELDS, MODULES, new_module
from weightclip.lab.config import field_types, rename_presets
from weightclip.lab.registry import find_experiment


@pytest.fixture(autouse=True)
def _forget_old_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if new_module(name) is not None:
            monkeypatch.delitem(sys.modules, name)
    for old in MODULES:
        monkeypatch.delitem(vars(lab), old.rpartition(".")[2], raising=False)


@pytest.mark.filterwarnings("ignore:weightclip.lab:DeprecationWarning")  # of the package that a module is in
@pytest.mark.parametrize(("old", "new"), [pair for pair in MODULES.items() if "results" not in pair[0]])
def test_an_old_module_is_the_new_one_and_warns(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{old} is now {new}"):
        found = import_module(old)
    assert found is import_module(new)
    assert found.__spec__ is not None
    assert found.__spec__.name == new


def test_a_submodule_of_an_old_module_is_the_new_one() -> None:
    with pytest.warns(DeprecationWarning, match="weightclip.lab.streaming is now"):
        found = import_module("weightclip.lab.streaming.rules")
    assert found is import_module("weightclip.lab.experiments.streaming.rules")


def test_an_old_module_is_an_attribute_of_the_laboratory() -> None:
    with pytest.warns(DeprecationWarning, match="weightclip.lab.nets is now weightclip.lab.networks"):
        assert lab.nets is lab.networks  # type: ignore[attr-defined]


def test_results_has_the_names_of_records_and_analysis() -> None:
    with pytest.warns(DeprecationWarning, match="weightclip.lab.results is now weightclip.lab.load"):
        results = import_module("weightclip.lab.results")
    assert results.load is lab.load
    assert results.select is lab.analysis.select


def test_a_file_of_rules_may_use_the_old_name(tmp_path: Path) -> None:
    from weightclip.lab.experiments.streaming.rules import load_rules

    path = tmp_path / "mine.py"
    path.write_text("from weightclip.lab.streaming.rules import Rule\nMINE = Rule('mine', after=lambda w: w)\n")
    with pytest.warns(DeprecationWarning, match="weightclip.lab.streaming is now"):
        assert list(load_rules(path)) == ["mine"]


def test_a_module_that_never_existed_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError):
        import_module("weightclip.lab.stream")
    with pytest.raises(AttributeError, match="no attribute 'stream'"):
        _ = lab.stream  # type: ignore[attr-defined]


def test_every_old_field_has_a_new_one_in_its_experiment() -> None:
    for name, renamed in FIELDS.items():
        known = field_types(find_experiment(name).config)
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
        found = rename_presets(find_experiment("policy-collapse").config, presets)
    assert found == {
        "grid": {
            "gae_lambda": [0.9],
            "methods": {"adam": {"clip_coef": [0.1]}},
            "settings": {"max_update": [1.0]},
        },
        "best": {"policy-collapse": {"adam": {"gae_lambda": 0.9}}},
    }
