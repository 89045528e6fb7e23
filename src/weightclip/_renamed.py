"""Names that changed: one table for Python, the command line and the record reader. They go in the next release."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType

MODULES = MappingProxyType(
    {
        "weightclip.lab.nets": "weightclip.lab.networks",
        "weightclip.lab.plugins": "weightclip.lab.registry",
        "weightclip.lab.policy": "weightclip.lab.experiments.ppo",
        "weightclip.lab.replay": "weightclip.lab.experiments.dqn",
        "weightclip.lab.results": "weightclip.lab._results",
        "weightclip.lab.running": "weightclip.lab._run",
        "weightclip.lab.streaming": "weightclip.lab.experiments.streaming",
        "weightclip.lab.warm_start": "weightclip.lab.experiments.warm_start",
    }
)
"""Old module -> new module; submodules move with it. `_results` has the names of `records` and `analysis`."""


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
