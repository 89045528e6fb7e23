"""Old names -> new names: one table for Python, the command line and the record reader.

Old names work for one release, with a DeprecationWarning.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar, cast

MODULES = MappingProxyType(
    {
        "weightclip.checks": "weightclip._validation",
        "weightclip.lazy": "weightclip._lazy",
        "weightclip.numerals": "weightclip._text",
        "weightclip.optimizer_class": "weightclip._optimizer_class",
        "weightclip.output_layers": "weightclip._output_layers",
        "weightclip.patterns": "weightclip._validation",
        "weightclip.remedy": "weightclip._hooks",
        "weightclip.rivals": "weightclip.regularizers",
        "weightclip.rivals.madam": "weightclip.madam",
        "weightclip.rivals.penalty": "weightclip.regularizers._penalty",
        "weightclip.scratch": "weightclip._box",
        "weightclip.lab.diagram": "weightclip.lab.figure_1",
        "weightclip.lab.experiments.ppo.watching": "weightclip.lab.experiments.ppo.video",
        "weightclip.lab.experiments.streaming.learner": "weightclip.lab.experiments.streaming.training",
        "weightclip.lab.experiments.streaming.translate": "weightclip.lab.experiments.streaming.code_generation",
        "weightclip.lab.experiments.warm_start.authors": "weightclip.lab.experiments.warm_start.published_curves",
        "weightclip.lab.nets": "weightclip.lab.networks",
        "weightclip.lab.plugins": "weightclip.lab.registry",
        "weightclip.lab.policy.normalise": "weightclip.lab.experiments.ppo.environments",
        "weightclip.lab.policy": "weightclip.lab.experiments.ppo",
        "weightclip.lab.replay.games": "weightclip.lab.experiments.dqn.environments",
        "weightclip.lab.replay.memory": "weightclip.lab.experiments.dqn.replay_buffer",
        "weightclip.lab.replay": "weightclip.lab.experiments.dqn",
        "weightclip.lab.results.best": "weightclip.lab.analysis.best",
        "weightclip.lab.results.criteria": "weightclip.lab.records.schema",
        "weightclip.lab.results.curves": "weightclip.lab.analysis.curves",
        "weightclip.lab.results.figure": "weightclip.lab.plotting.figure",
        "weightclip.lab.results.loading": "weightclip.lab.records.table",
        "weightclip.lab.results.metrics": "weightclip.lab.records.schema",
        "weightclip.lab.results.panels": "weightclip.lab.plotting.panels",
        "weightclip.lab.results.peaks": "weightclip.lab.analysis.curves",
        "weightclip.lab.results.problems": "weightclip.lab.analysis.statistics",
        "weightclip.lab.results.record": "weightclip.lab.records.record",
        "weightclip.lab.results.selection": "weightclip.lab.analysis.selection",
        "weightclip.lab.results.setups": "weightclip.lab.analysis.setups",
        "weightclip.lab.results.statistics": "weightclip.lab.analysis.statistics",
        "weightclip.lab.results.store": "weightclip.lab.records.store",
        "weightclip.lab.results.style": "weightclip.lab.plotting.style",
        "weightclip.lab.results": "weightclip.lab._results",
        "weightclip.lab.running": "weightclip.lab._run",
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

OPTIONS: Mapping[str, Mapping[str, str]] = MappingProxyType({"data features": {"batch": "batch_size"}})
"""Command -> old -> new option, of commands without a configuration."""

NAMES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "weightclip": {
            "Lipschitz": "LipschitzBounds",
            "lipschitz": "lipschitz_bounds",
            "update_bound": "output_change_bound",
        },
        "weightclip._hooks": {"Remedy": "Regularizer", "find_remedy": "find_regularizer"},
        "weightclip._validation": {"unwanted": "name_filter"},
        "weightclip.certificate": {
            "Lipschitz": "LipschitzBounds",
            "lipschitz": "lipschitz_bounds",
            "update_bound": "output_change_bound",
        },
        "weightclip.lab.data": {"Description": "DatasetInfo"},
        "weightclip.diagnostics": {
            "dormant_share": "dormant_fraction",
            "negative_share": "negative_fraction",
            "saturated_share": "saturated_fraction",
        },
    }
)
"""Module -> old attribute -> new attribute."""

ATTRIBUTES: Mapping[str, Mapping[str, str]] = MappingProxyType({"Clipper": {"statistics": "track_clipped"}})
"""Class -> old attribute -> new attribute of its objects."""

KEYS: Mapping[str, str] = MappingProxyType({"place": "relative_path"})
"""Old -> new key in the JSON of failure notes and manifests (format 2)."""

ARGUMENTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "Madam": {"largest": "max_update"},
        "clip_weights": {"last_layer": "clip_output_layers", "statistics": "track_clipped"},
        "resolve_bounds": {"last_layer": "clip_output_layers"},
        "trend": {"share": "fraction"},
    }
)
"""Function or class -> old argument -> new argument."""

_F = TypeVar("_F", bound=Callable[..., Any])


def new_field(experiment: str, name: str) -> str:
    """The current name of a configuration field or column of an experiment.

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
    """Fields of a configuration, or columns of a table, under their current names.

    Args:
        experiment: its name.
        values: by old or new name; the mapping `settings` is renamed as well.
        stacklevel: level of the DeprecationWarning for each old name; None disables it.
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
        >>> new_module("weightclip.lab.policy.watching")
        'weightclip.lab.experiments.ppo.video'
    """
    for old in sorted(MODULES, key=len, reverse=True):
        if name == old or name.startswith(f"{old}."):
            new = MODULES[old] + name.removeprefix(old)
            return new_module(new) or new
    return None


def find_old_name(module: str, name: str) -> Any:
    """Resolve the old name of an attribute or submodule with a DeprecationWarning; for `module.__getattr__`."""
    new = NAMES.get(module, {}).get(name)
    if new is not None:
        _warn(f"{module}.{name} is now {module}.{new}", stacklevel=4)
        return getattr(import_module(module), new)
    if new_module(f"{module}.{name}") is not None:
        return import_module(f"{module}.{name}")
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def rename_arguments(function: str, arguments: Mapping[str, Any], stacklevel: int = 4) -> dict[str, Any]:
    """Replace old argument names of a function with a DeprecationWarning for each."""
    renamed: dict[str, Any] = {}
    for name, value in arguments.items():
        new = ARGUMENTS[function].get(name, name)
        if new != name:
            _warn(f"{function}: the argument {name} is now {new}", stacklevel)
        if new in renamed or (new != name and new in arguments):
            raise TypeError(f"{function}: got {name} and {new}, expected {new} alone")
        renamed[new] = value
    return renamed


def new_keys(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of a failure note or of a run in a manifest, with the current keys."""
    return {KEYS.get(name, name): value for name, value in facts.items()}


def old_attribute(owner: str, name: str) -> Any:
    """A property for the old name of an attribute, which gives the new one with a DeprecationWarning."""
    new = ATTRIBUTES[owner][name]

    def read(instance: Any) -> Any:
        _warn(f"{owner}.{name} is now {owner}.{new}", stacklevel=3)
        return getattr(instance, new)

    return property(read, doc=f"Deprecated name of `{new}`.")


def accept_old_arguments(function: _F) -> _F:
    """Decorate a function to accept the old argument names that `ARGUMENTS` lists for it."""
    name = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not ARGUMENTS[name].keys().isdisjoint(kwargs):
            kwargs = rename_arguments(name, kwargs)
        return function(*args, **kwargs)

    return cast(_F, call)


def _warn(message: str, stacklevel: int) -> None:
    warnings.warn(message, DeprecationWarning, stacklevel)


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
        """Restore the spec, which the import system replaced by that of the old name; the module has already run."""
        spec = module.__spec__
        if spec is not None and spec.loader_state is not None:
            module.__spec__ = spec.loader_state


def import_old_modules() -> None:
    """Make old module names importable."""
    if not any(isinstance(finder, _OldModules) for finder in sys.meta_path):
        # First: the default finder would import a submodule of an old package a second time, under its old name.
        sys.meta_path.insert(0, _OldModules())
