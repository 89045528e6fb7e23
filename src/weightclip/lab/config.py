"""Configurations: the options of the command line are made from the fields of a dataclass."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from weightclip._ranges import ByLayer, Graded, Kappa, parse_kappa, read_kappa

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
