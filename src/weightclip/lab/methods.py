"""Methods: an optimizer and regularizers, written `optimizer+regularizer+...`, for example `adam+l2init+wc`.

This module defines the names, the settings and their defaults without importing PyTorch. Experiments differ only in the
components of their methods (`Components`). `optimizers.py` builds PyTorch optimizers;
`experiments/streaming/rules.py` has the components of the fused backend.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

from weightclip._validation import check_name
from weightclip.lab.constraints import AtLeast, Between, Constraint, Finite, Positive

SWITCH = "@switch"
"""Suffix of a regularizer that acts once, when the second half of the data arrives, instead of after every step."""

NAMED = ("lr", "kappa", "decay", "sigma")
"""Settings with their own configuration field; others (Adam's `beta2`, ...) are in the field `settings`."""

RANGES: Mapping[str, Constraint] = MappingProxyType(
    {"lr": AtLeast(0), "kappa": Positive(infinite=True), "decay": AtLeast(0), "sigma": AtLeast(0)}
)
"""Setting -> accepted values, in every method."""

_BUILT_IN_RANGES: Mapping[str, Constraint] = MappingProxyType(
    {
        "beta": Between(0, 1, below=True),
        "beta1": Between(0, 1, below=True),
        "beta2": Between(0, 1, below=True),
        "eps": AtLeast(0),
        "max_update": Positive(infinite=True),
    }
)
"""Setting -> accepted values in methods of this package; users' rules may use these names differently."""

_NOTHING: Mapping[str, float | None] = MappingProxyType({})


class Part(Protocol):
    """An optimizer or a regularizer."""

    @property
    def name(self) -> str: ...

    @property
    def base(self) -> str:
        """The name in tables of best settings; differs from `name` for a variant of another optimizer."""

    @property
    def settings(self) -> Mapping[str, float | None]:
        """Setting -> default, or None if it comes from a table of best settings or the user."""

    @property
    def options(self) -> tuple[str, ...]:
        """Additional settings, which a run has only if they are given."""

    @property
    def built_in(self) -> bool:
        """Whether this package defines it."""


P = TypeVar("P", bound=Part, covariant=True)


@dataclass(frozen=True)
class TorchPart:
    """An optimizer of `torch.optim`, Madam, or a regularizer of this package."""

    name: str
    settings: Mapping[str, float | None]
    options: tuple[str, ...] = ()
    base: str = ""
    torch_class: str = ""
    built_in: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", self.base or self.name)


@dataclass(frozen=True)
class Components(Generic[P]):
    """The optimizers and regularizers, by name, that the methods of an experiment are made of."""

    optimizers: Mapping[str, P]
    regularizers: Mapping[str, P]


@dataclass(frozen=True)
class Method(Generic[P]):
    """An optimizer and its regularizers, in the order in which they act."""

    optimizer: P
    regularizers: tuple[P, ...] = ()

    @property
    def name(self) -> str:
        """The canonical name: clipping comes last."""
        return "+".join(part.name for part in self.parts)

    @property
    def parts(self) -> tuple[P, ...]:
        """The optimizer and the regularizers."""
        return (self.optimizer, *self.regularizers)

    @property
    def settings(self) -> dict[str, float | None]:
        """Setting -> default, or None if it comes from a table of best settings or the user."""
        found: dict[str, float | None] = {}
        for part in self.parts:
            for name, default in part.settings.items():
                found[name] = default if found.get(name) is None else found[name]
        return found

    @property
    def options(self) -> tuple[str, ...]:
        """Additional settings, which a run has only if they are given."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.options))

    @property
    def setting_names(self) -> tuple[str, ...]:
        """All settings: the named ones first."""
        names = tuple(dict.fromkeys((*self.settings, *self.options)))
        return (*(name for name in NAMED if name in names), *(name for name in names if name not in NAMED))

    @property
    def every_step(self) -> tuple[str, ...]:
        """Names of the regularizers that act after every step."""
        return tuple(part.name for part in self.regularizers if not part.name.endswith(SWITCH))

    @property
    def at_switch(self) -> tuple[str, ...]:
        """Names, without suffix, of the regularizers that act once, at the switch."""
        return tuple(part.name.removesuffix(SWITCH) for part in self.regularizers if part.name.endswith(SWITCH))

    @property
    def clips(self) -> bool:
        """Whether weights are clipped, after every step or at the switch."""
        return "wc" in (*self.every_step, *self.at_switch)


def parse_method(name: str, components: Components[P]) -> Method[P]:
    """Parse a method such as `adam+wc+l2init`; clipping comes last. Unknown or ambiguous names raise a ValueError.

    Examples:
        >>> parse_method("adam+wc+l2init", TORCH).name
        'adam+l2init+wc'
    """
    first, *rest = name.split("+")
    optimizer = components.optimizers[check_name("method", first, sorted(components.optimizers))]
    for part in rest:
        check_name("method", part, components.regularizers)
        if rest.count(part) > 1:
            raise ValueError(f"method: got {name!r}, expected each regularizer once")
    regularizers = (components.regularizers[part] for part in rest)
    method = Method(optimizer, tuple(sorted(regularizers, key=_is_clipping)))
    for setting in ("decay", "kappa"):
        users = [part.name for part in method.parts if setting in part.settings]
        if len(users) > 1:  # one number would have two meanings
            raise ValueError(f"method: got {name!r}, expected one part with a {setting}, not {' and '.join(users)}")
    return method


def default_settings(method: Method[Any], table: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    """The settings of a method from a table of best settings, else its defaults, else None.

    A method in the table uses its row and that of its optimizer. A combination that is not in the table uses the
    rows of its parts (`adam`, `adam+l2init` and `adam+wc` for `adam+l2init+wc`) and the smallest of their step sizes.
    `l2` uses the row of `l2init` if it has none.

    Args:
        method: the method.
        table: method -> settings; those without their own configuration field are in `settings`.

    Examples:
        >>> table = {"adam": {"lr": 0.1}, "adam+sp": {"lr": 0.01, "decay": 0.5, "sigma": 0.2}, "adam+wc": {"kappa": 2}}
        >>> default_settings(parse_method("adam+sp+wc", TORCH), table)
        {'lr': 0.01, 'decay': 0.5, 'sigma': 0.2, 'kappa': 2}
    """
    base = method.optimizer.base
    whole = "+".join(part.base for part in method.parts)
    rows = [_row(table, base), _row(table, whole)]
    if whole not in table:
        rows = [_row(table, base), *(_row(table, f"{base}+{part.base}") for part in method.regularizers)]
    found = method.settings
    known = {*found, *method.options}
    for row in rows:
        found |= {name: value for name, value in row.items() if name in known}
    sizes = [row["lr"] for row in rows if "lr" in row]
    if whole not in table and sizes and "lr" in known:
        found["lr"] = min(sizes)
    return found


def choose_settings(
    method: Method[Any],
    table: Mapping[str, Mapping[str, Any]],
    given: Mapping[str, Any],
    hint: Callable[[str], str] = lambda name: "",
) -> dict[str, float]:
    """All settings of a method, checked: the given values, else the defaults.

    Args:
        method: the method.
        table: see `default_settings`.
        given: setting -> value.
        hint: returns text that is added to the error for a setting without a value.
    """
    known = method.setting_names
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            suggestion = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"{name}: got {value!r}, but {method.name} has no such setting; it has {', '.join(known)}{suggestion}"
            )
    found: dict[str, Any] = {**default_settings(method, table), **given}
    for name, value in found.items():
        if value is None:
            raise ValueError(f"{name}: {method.name} has no default for this setting; specify one{hint(name)}")
    return {name: check_setting(name, value, built_in=method.optimizer.built_in) for name, value in found.items()}


def check_setting(name: str, value: Any, *, built_in: bool = True) -> float:
    """Return a setting as a number. Raise a ValueError if it is out of range.

    Args:
        name: the setting.
        value: value of the setting; True and False become 1 and 0, for options such as Adam's `amsgrad`.
        built_in: whether the method belongs to this package or PyTorch, so that its ranges are known.
    """
    constraint = RANGES.get(name) or (_BUILT_IN_RANGES.get(name) if built_in else None) or Finite()
    if isinstance(value, bool) and isinstance(constraint, Finite):
        return float(value)
    number: float = constraint.check(name, value, float)
    return number


def _is_clipping(part: Part) -> bool:
    return part.name.removesuffix(SWITCH) == "wc"


def _row(table: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any]:
    """A row of a table of best settings, flat; empty if there is none."""
    optimizer, _, regularizer = name.partition("+")
    if name not in table and regularizer == "l2":
        name = f"{optimizer}+l2init"
    row = dict(table.get(name, _NOTHING))
    return {**row, **row.pop("settings", {})}


def _optimizer(name: str, torch_class: str, *settings: str) -> TorchPart:
    required = {setting: None for setting in settings if setting in NAMED}
    return TorchPart(name, required, tuple(one for one in settings if one not in NAMED), torch_class=torch_class)


_ADAM = ("lr", "beta1", "beta2", "eps", "weight_decay")

OPTIMIZERS: Mapping[str, TorchPart] = MappingProxyType(
    {
        part.name: part
        for part in (
            _optimizer("adadelta", "Adadelta", "lr", "rho", "eps", "weight_decay"),
            _optimizer("adafactor", "Adafactor", "lr", "beta2_decay", "d", "weight_decay"),
            _optimizer("adagrad", "Adagrad", "lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"),
            _optimizer("adam", "Adam", *_ADAM, "amsgrad", "decoupled_weight_decay"),
            _optimizer("adamax", "Adamax", *_ADAM),
            _optimizer("adamw", "AdamW", *_ADAM, "amsgrad"),
            _optimizer("asgd", "ASGD", "lr", "lambd", "alpha", "t0", "weight_decay"),
            _optimizer("madam", "Madam", "lr", "kappa", "beta", "max_update"),
            _optimizer("muon", "Muon", "lr", "weight_decay", "momentum", "nesterov", "eps", "ns_steps"),
            _optimizer("nadam", "NAdam", *_ADAM, "momentum_decay", "decoupled_weight_decay"),
            _optimizer("radam", "RAdam", *_ADAM, "decoupled_weight_decay"),
            _optimizer("rmsprop", "RMSprop", "lr", "alpha", "eps", "weight_decay", "momentum", "centered"),
            _optimizer("rprop", "Rprop", "lr"),
            _optimizer("sgd", "SGD", "lr", "momentum", "dampening", "weight_decay", "nesterov"),
        )
    }
)
"""The optimizers of `torch.optim` in lower case, and Madam, with their numeric arguments.

L-BFGS (which needs a closure) and SparseAdam (which needs sparse gradients) are not supported.
"""

REGULARIZERS: Mapping[str, TorchPart] = MappingProxyType(
    {
        "l2": TorchPart("l2", {"decay": None}),
        "l2init": TorchPart("l2init", {"decay": None}),
        "sp": TorchPart("sp", {"decay": None, "sigma": None}),
        "wc": TorchPart("wc", {"kappa": None}),
    }
)

EQUAL_BETAS = "adam-equal-betas"
"""Adam with beta2 = beta1, which Dohare et al. (2023b) recommend against policy collapse."""

TORCH = Components(OPTIMIZERS, REGULARIZERS)
"""Components of methods that use PyTorch."""

TORCH_WITH_EQUAL_BETAS = Components(
    {**OPTIMIZERS, EQUAL_BETAS: replace(OPTIMIZERS["adam"], name=EQUAL_BETAS)}, REGULARIZERS
)
"""Components of PPO's methods."""

TORCH_WITH_SWITCH = Components(
    OPTIMIZERS,
    {
        **REGULARIZERS,
        **{f"{name}{SWITCH}": replace(REGULARIZERS[name], name=f"{name}{SWITCH}", base="") for name in ("sp", "wc")},
    },
)
"""Components of the methods of warm starting."""
