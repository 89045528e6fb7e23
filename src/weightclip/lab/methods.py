"""Methods by name: an optimizer of PyTorch and regularizers on top of it, written `sgd+wc` or `adam+sp`.

Only names and settings are here, so that the command line checks them without PyTorch; `optimizers.py` builds methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from weightclip._validation import check_name, check_number

_ADAM = ("lr", "betas", "eps", "weight_decay")

OPTIMIZERS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "adadelta": ("Adadelta", ("lr", "rho", "eps", "weight_decay")),
        "adafactor": ("Adafactor", ("lr", "beta2_decay", "d", "weight_decay")),
        "adagrad": ("Adagrad", ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps")),
        "adam": ("Adam", (*_ADAM, "amsgrad", "decoupled_weight_decay")),
        "adamax": ("Adamax", _ADAM),
        "adamw": ("AdamW", (*_ADAM, "amsgrad")),
        "asgd": ("ASGD", ("lr", "lambd", "alpha", "t0", "weight_decay")),
        "madam": ("Madam", ("lr", "kappa", "beta", "max_update")),
        "muon": ("Muon", ("lr", "weight_decay", "momentum", "nesterov", "eps", "ns_steps")),
        "nadam": ("NAdam", (*_ADAM, "momentum_decay", "decoupled_weight_decay")),
        "radam": ("RAdam", (*_ADAM, "decoupled_weight_decay")),
        "rmsprop": ("RMSprop", ("lr", "alpha", "eps", "weight_decay", "momentum", "centered")),
        "rprop": ("Rprop", ("lr",)),
        "sgd": ("SGD", ("lr", "momentum", "dampening", "weight_decay", "nesterov")),
    }
)
"""Name -> the class in torch.optim (Madam: in weightclip), and those of its arguments that are numbers or betas.

L-BFGS needs a closure and SparseAdam sparse gradients: no experiment has them.
"""

REMEDIES: Mapping[str, tuple[str, ...]] = {
    "l2": ("decay",),
    "l2init": ("decay",),
    "sp": ("decay", "sigma"),
    "wc": ("kappa",),
}
"""Remedy -> its settings."""


def split_method(name: str, remedies: Sequence[str] = tuple(REMEDIES)) -> tuple[str, tuple[str, ...]]:
    """`sgd+l2init+wc` -> ("sgd", ("l2init", "wc")); a ValueError for an unknown name."""
    optimizer, *parts = name.split("+")
    check_name("method", optimizer, sorted(OPTIMIZERS))
    for part in parts:
        check_name("method", part, remedies)
        if parts.count(part) > 1:
            raise ValueError(f"method: got {name!r}, expected each remedy once")
    return optimizer, tuple(parts)


def optimizer_settings(optimizer: str) -> list[str]:
    """The settings of an optimizer."""
    return list(OPTIMIZERS[optimizer][1])


def own_settings(remedies: Sequence[str]) -> list[str]:
    """The settings of the remedies."""
    return list(dict.fromkeys(name for remedy in remedies for name in REMEDIES[remedy]))


def named_settings(optimizer: str, remedies: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Those of `names` that are settings of the optimizer or of one of the remedies."""
    own = {*optimizer_settings(optimizer), *own_settings(remedies)}
    return tuple(name for name in names if name in own)


def choose_settings(
    method: str, names: Sequence[str], tables: Sequence[Mapping[str, float]], given: Mapping[str, float]
) -> dict[str, float]:
    """A method's settings `names`: those given, else those of the last table that has one; checked.

    A ValueError for one that is given but not among them, that nobody has set, or that is out of range.
    """
    known = ", ".join(names)
    for name, value in given.items():
        if name not in names:
            raise ValueError(f"{name}: got {value!r}, but {method} has no such setting; it has {known}")
    found = {name: value for table in (*tables, given) for name, value in table.items() if name in names}
    for name in names:
        if name not in found:
            raise ValueError(f"{name}: {method} has no default for it here; give one")
    return {name: check_number(name, found[name], zero=name != "kappa", infinite=name == "kappa") for name in names}


def check_other_settings(settings: Mapping[str, float], fields: Sequence[str]) -> dict[str, float]:
    """Settings without a field of their own; a ValueError for what is no mapping, or has a field."""
    if not isinstance(settings, Mapping):
        raise ValueError(f"settings: got {settings!r}, expected names and numbers, such as {{'momentum': 0.9}}")
    for name in settings:
        if name in fields:
            raise ValueError(f"settings: got {name!r}, expected it as an option of its own")
    return dict(settings)
