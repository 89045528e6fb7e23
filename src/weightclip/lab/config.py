"""Configurations: the options of the command line are made from the fields of a dataclass."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from weightclip._ranges import ByLayer, Graded, Kappa, parse_kappa, read_kappa
from weightclip._validation import check_name, check_seed
from weightclip.lab.methods import (
    REMEDIES,
    check_other_settings,
    choose_settings,
    named_settings,
    optimizer_settings,
    split_method,
)

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

METHOD, PROBLEM, ALGORITHM, OUTPUT = "method", "problem", "algorithm", "output"
GROUPS = (METHOD, PROBLEM, ALGORITHM, OUTPUT)
"""How `--help` groups the fields."""


KAPPA = "KAPPA"
"""The name of values that are a number or a rule of ranges, as text."""


def option(help_text: str, group: str = ALGORITHM, metavar: str = "") -> dict[str, str]:
    """The metadata of a field: its line of help, the group it is listed in, and the name of its value."""
    return {"help": help_text, "group": group, "metavar": metavar}


def kappa_option(methods: str) -> dict[str, str]:
    """The metadata of the field `kappa`, which these methods have."""
    help_text = (
        f"clipping range in units of s_l ({methods}): a number, graded, graded(0.5,8,output=1) or hidden=5,output=1"
    )
    return option(help_text, METHOD, KAPPA)


class Ranged:
    """A configuration with a `kappa`, or a rule of ranges in `kappa_rule`."""

    kappa: float | None
    kappa_rule: str | None

    def clipping_range(self) -> Kappa | None:
        """What `clip_weights` takes as kappa; of a resolved configuration."""
        return self.kappa if self.kappa_rule is None else parse_kappa(self.kappa_rule)


def split_kappa(kappa: Any, rule: str | None) -> tuple[Any, str | None]:
    """A kappa as the fields `kappa` and `kappa_rule`: a number and None, or None and the rule as text.

    Args:
        kappa: a number, a rule of ranges (`weightclip.graded()`, a mapping), either of them as text, or None.
        rule: the text of a rule that was split before.
    """
    if kappa is None:
        return None, None if rule is None else str(parse_kappa(rule))
    if isinstance(kappa, str):
        kappa = parse_kappa(kappa)
    if isinstance(kappa, (Graded, ByLayer, Mapping)):
        return None, str(read_kappa(kappa)[1])
    return kappa, None


_SYNONYMS = (
    ("lr", "learning-rate", "step-size", "stepsize"),
    ("steps", "frames", "epochs", "samples", "timesteps", "total-timesteps", "num-steps", "iterations", "length"),
    ("kappa", "kappas", "clip", "clip-range", "bound", "range"),
    ("decay", "weight-decay", "lambda", "l2"),
    ("sigma", "noise-std", "std"),
    ("method", "methods", "optimizer", "optimizers", "optim", "algorithm", "algo"),
    ("env", "envs", "env-id", "environment", "gym-id", "game", "games"),
    ("environments", "num-envs", "n-envs"),
    ("hidden", "layers", "units", "net-arch", "hidden-sizes"),
    ("batch", "batch-size"),
    ("memory", "buffer-size", "replay-size"),
    ("seed", "seeds", "num-seeds", "n-seeds"),
    ("out", "output", "output-dir", "save-dir", "results"),
    ("data-dir", "data", "dataset", "data-path"),
    ("wandb", "wandb-project", "track"),
    ("workers", "jobs", "num-workers", "n-jobs", "processes"),
)
"""Other names of a field. The first one that a configuration has is suggested."""


def nearest_name(name: str, known: Sequence[str]) -> str | None:
    """The name that a user may have meant: another name of the same thing, one spelt alike, or one that contains it."""
    plain = name.replace("_", "-")
    fields = {one.replace("_", "-"): one for one in known}
    for names in _SYNONYMS:
        if plain in names:
            for other in names:
                if other in fields and other != plain:
                    return fields[other]
    near = difflib.get_close_matches(plain, fields, n=1, cutoff=0.7)
    within = [one for one in fields if plain in one.split("-")]
    return fields[(near or within)[0]] if near or within else None


def check_field(argument: str, name: str, known: Sequence[str]) -> None:
    """A ValueError that suggests the nearest name unless it is one of the known ones."""
    if name not in known:
        near = nearest_name(name, known)
        hint = f"; did you mean {near!r}?" if near else ""
        raise ValueError(f"{argument}: got {name!r}, expected one of {', '.join(known)}{hint}")


NAMED = ("lr", "kappa", "decay", "sigma")
"""Settings with a field of their own; other ones (Adam's `beta2`, ...) go into `settings`."""


BOUNDS = ("paper", "fan_in")
"""Of clipping: by shape and order alone, as the paper's authors did, or by the type of a layer."""


@dataclass(frozen=True)
class MethodConfig(Ranged):
    """A method and its settings; experiments add fields of their own.

    Class attributes:
        how: fields that say how a run is made, or stand for others; the run's numbers are not theirs.
    """

    how: ClassVar[tuple[str, ...]] = ()

    problem: str = field(default="", metadata=option("the problem"))
    method: str = field(
        default="adam+wc", metadata=option("optimizer+regularizer+..., for example adam, adam+wc, adam+l2init", METHOD)
    )
    lr: float | None = field(default=None, metadata=option("step size", METHOD))
    kappa: float | None = field(default=None, metadata=kappa_option("wc"))
    kappa_rule: str | None = field(default=None, metadata=option("the rule of ranges, where kappa is not a number"))
    decay: float | None = field(default=None, metadata=option("lambda of l2, l2init and sp", METHOD))
    sigma: float | None = field(default=None, metadata=option("standard deviation of the noise of sp", METHOD))
    settings: Mapping[str, float] = field(
        default_factory=dict, metadata=option("other arguments of the optimizer, for example beta2=0.9", METHOD)
    )
    seed: int = field(default=0, metadata=option("of all random numbers"))

    @classmethod
    def split(cls, method: str) -> tuple[str, tuple[str, ...]]:
        """The optimizer and the remedies of a method; a ValueError for what nobody knows."""
        return split_method(method)

    @classmethod
    def named_settings(cls, method: str) -> tuple[str, ...]:
        """The settings of a method that have a field of their own."""
        return named_settings(*cls.split(method), NAMED)

    @classmethod
    def other_settings(cls, method: str) -> tuple[str, ...]:
        """The other arguments of a method's optimizer."""
        names = optimizer_settings(cls.split(method)[0])
        betas = ("beta1", "beta2") if "betas" in names else ()
        return (*betas, *(name for name in names if name not in ("betas", *NAMED)))

    def parts(self) -> tuple[str, tuple[str, ...]]:
        """The optimizer and the remedies."""
        return self.split(self.method)

    def all_settings(self) -> dict[str, float]:
        """Every setting of the method by name; of a resolved configuration."""
        return {**self.given(), **self.settings}

    def given(self) -> dict[str, float]:
        """The settings with a field of their own that are not None."""
        return {name: getattr(self, name) for name in NAMED if getattr(self, name) is not None}

    def facts(self) -> dict[str, Any]:
        """What the run's numbers depend on."""
        own = {name: value for name, value in asdict(self).items() if name not in self.how}
        if own["kappa_rule"] is None:  # as in records of older versions
            del own["kappa_rule"]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in own.items()}

    def make_optimizer(self, model: nn.Module, bounds: str | None = None, **more: Any) -> Optimizer:
        """An optimizer of all parameters with its remedies attached; `more` as for `methods.make_optimizer`."""
        from weightclip.lab.optimizers import make_optimizer

        bounds = bounds or "fan_in"
        settings: dict[str, Any] = dict(self.all_settings())
        if "wc" in self.parts()[1]:
            settings["kappa"] = self.clipping_range()
        return make_optimizer(model, *self.parts(), settings, seed=self.seed, bounds=bounds, **more)

    def display_settings(self) -> dict[str, Any]:
        """Every setting, with the rule of ranges if there is one."""
        return {**self.all_settings(), "kappa_rule": self.kappa_rule}

    def checked_bounds(self, bounds: str | None, usual: str) -> str | None:
        """Those of clipping; None, whatever is given, where the method does not clip: they make no other run of it."""
        check_name("bounds", usual if bounds is None else bounds, BOUNDS)
        return bounds or usual if "wc" in self.parts()[1] else None


M = TypeVar("M", bound=MethodConfig)


def check_names(config: MethodConfig, names: tuple[str, ...]) -> None:
    """A ValueError if one of these fields is no text."""
    for name in names:
        if not isinstance(getattr(config, name), str):
            raise ValueError(f"{name}: got {getattr(config, name)!r}, expected a name")


def with_settings(config: M, best: Mapping[str, Mapping[str, Any]]) -> M:
    """The configuration with every setting of its method: given, or those of a table by method; checked.

    A combination takes its settings from its parts: `adam+l2init+wc` from `adam`, `adam+l2init` and `adam+wc`.
    """
    kappa, rule = split_kappa(config.kappa, config.kappa_rule)
    config = replace(config, kappa=kappa, kappa_rule=rule)
    optimizer, remedies = config.parts()
    if rule is not None:
        if "kappa" not in config.named_settings(config.method) or "kappa" in optimizer_settings(optimizer):
            raise ValueError(f"kappa: got {rule!r}, but {config.method} does not take ranges; wc does")
        config = replace(config, kappa=1.0)  # the rule has the ranges
    parts = (optimizer, *(f"{optimizer}+{remedy}" for remedy in remedies), config.method)
    tables = [best.get(part, {}) for part in parts]
    found = choose_settings(config.method, config.named_settings(config.method), tables, config.given())
    others = {name: value for table in tables for name, value in table.get("settings", {}).items()}
    others |= check_other_settings(config.settings, [one.name for one in fields(config)])
    for name in others:
        check_name("settings", name, config.other_settings(config.method))
    named: dict[str, Any] = {name: found.get(name) for name in NAMED} | ({} if rule is None else {"kappa": None})
    return replace(config, **named, settings=others, seed=check_seed(config.seed))


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_toml(text: str) -> dict[str, Any]:
    """The tables in a text; a ValueError says what is no TOML in it."""
    return tomllib.loads(text)


@cache
def packaged_presets(package: str) -> dict[str, Any]:
    """The tables of a package's `presets.toml`."""
    return read_toml((files(package) / "presets.toml").read_text(encoding="utf-8"))


@cache
def commands(package: str) -> dict[str, Any]:
    """The tables `examples` and `reproductions` of a package's `paper.toml`."""
    return read_toml((files(package) / "paper.toml").read_text(encoding="utf-8"))


TORCH_OPTIMIZERS = "an optimizer of torch.optim in lower case, or madam"


def methods_help(
    paper: Sequence[str], regularizers: Sequence[str] = tuple(REMEDIES), optimizers: str = TORCH_OPTIMIZERS
) -> str:
    """The methods of an experiment, for the help of commands.

    Args:
        paper: the paper's methods.
        regularizers: the names that can follow a "+".
        optimizers: the names that can stand first, as text.
    """
    return f"methods:\n  {optimizers}, with +regularizer: {', '.join(regularizers)}\n  the paper's: {', '.join(paper)}"
