"""Names that changed: one table for Python, the command line and the record reader. They go in the next release."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Any

MODULES = MappingProxyType(
    {
        "weightclip.lab.nets": "weightclip.lab.networks",
        "weightclip.lab.plugins": "weightclip.lab.registry",
        "weightclip.lab.policy.normalise": "weightclip.lab.experiments.ppo.normalize",
        "weightclip.lab.policy": "weightclip.lab.experiments.ppo",
        "weightclip.lab.replay.games": "weightclip.lab.experiments.dqn.environments",
        "weightclip.lab.replay.memory": "weightclip.lab.experiments.dqn.replay_buffer",
        "weightclip.lab.replay": "weightclip.lab.experiments.dqn",
        "weightclip.lab.results": "weightclip.lab._results",
        "weightclip.lab.streaming": "weightclip.lab.experiments.streaming",
        "weightclip.lab.warm_start": "weightclip.lab.experiments.warm_start",
    }
)
"""Old module -> new module; submodules move with it, unless they precede it here.

`_results` has the names of `records` and `analysis`.
"""

FIELDS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "streaming": {},
        "warm-start": {"batch": "batch_size"},
        "policy-collapse": {
            "rollout": "num_steps",
            "lam": "gae_lambda",
            "clip": "clip_coef",
            "clip_values": "clip_vloss",
            "normalise_advantages": "norm_adv",
            "value_weight": "vf_coef",
            "entropy_weight": "ent_coef",
            "gradient_norm": "max_grad_norm",
            "epochs": "update_epochs",
            "minibatches": "num_minibatches",
            "anneal": "anneal_lr",
            "bootstrap": "bootstrap_truncated",
        },
        "replay-ratio": {
            "environments": "num_envs",
            "memory": "buffer_size",
            "save_memory": "save_buffer",
            "batch": "batch_size",
            "warm_up": "learning_starts",
            "target_every": "target_update_interval",
            "epsilon": "exploration_initial_eps",
            "epsilon_final": "exploration_final_eps",
            "epsilon_steps": "exploration_steps",
            "epsilon_test": "evaluation_eps",
            "episodes": "eval_episodes",
            "lives": "terminal_on_life_loss",
            "sticky": "sticky_action_prob",
            "scaled": "scale_pixels",
            "noise": "noisy_sigma",
        },
    }
)
"""Experiment -> old -> new configuration field, which is also an option (`--num-steps`) and a column of tables."""

SETTINGS: Mapping[str, str] = MappingProxyType({"largest": "max_update"})
"""Old -> new setting of methods: an entry of the field `settings`, in tables a column `settings.NAME`."""


def new_field(experiment: str, name: str) -> str:
    """The present name of a configuration field or column of an experiment.

    Examples:
        >>> new_field("policy-collapse", "rollout"), new_field("policy-collapse", "lr")
        ('num_steps', 'lr')
        >>> new_field("streaming", "settings.largest")
        'settings.max_update'
    """
    prefix, dot, setting = name.partition(".")
    if dot and prefix == "settings":
        return f"settings.{SETTINGS.get(setting, setting)}"
    return FIELDS.get(experiment, {}).get(name, name)


def new_fields(experiment: str, values: Mapping[str, Any], stacklevel: int | None = None) -> dict[str, Any]:
    """Fields of a configuration, or columns of a table, under their present names.

    Args:
        experiment: its name.
        values: by old or new name; the mapping `settings` is renamed as well.
        stacklevel: gives a DeprecationWarning for each old name, at this level; None: no warning.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        new = new_field(experiment, name)
        if name == "settings" and isinstance(value, Mapping):
            inner = {f"settings.{key}": one for key, one in value.items()}
            renamed = new_fields(experiment, inner, None if stacklevel is None else stacklevel + 1)
            value = {key.removeprefix("settings."): one for key, one in renamed.items()}
        if new != name and new in values:
            raise ValueError(f"{name}: it is now {new}, which is given as well; expected one of the two")
        if new != name and stacklevel is not None:
            warnings.warn(f"{name} is now {new}", DeprecationWarning, stacklevel=stacklevel + 1)
        found[new] = value
    return found


def new_module(name: str) -> str | None:
    """The new name of a module, or None if it did not move.

    Examples:
        >>> new_module("weightclip.lab.streaming.rules")
        'weightclip.lab.experiments.streaming.rules'
    """
    for old, new in MODULES.items():
        if name == old or name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    return None


class _OldModules(MetaPathFinder, Loader):
    """Imports an old module name as the module of the new name."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if new_module(name) is None else ModuleSpec(name, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = new_module(spec.name)
        assert new is not None
        if spec.name in MODULES:
            public = new.replace("weightclip.lab._results", "weightclip.lab.load, weightclip.lab.records and .analysis")
            warnings.warn(f"{spec.name} is now {public}", DeprecationWarning, stacklevel=2)
        module = import_module(new)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """The module has run; the import system replaced its spec by that of the old name."""
        spec = module.__spec__
        if spec is not None and spec.loader_state is not None:
            module.__spec__ = spec.loader_state


def import_old_modules() -> None:
    """Make old module names importable."""
    if not any(isinstance(finder, _OldModules) for finder in sys.meta_path):
        # First: the default finder would import a submodule of an old package a second time, under its old name.
        sys.meta_path.insert(0, _OldModules())
