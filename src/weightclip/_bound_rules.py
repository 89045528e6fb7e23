"""What bounds are, for PyTorch and JAX alike. Imports neither."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from weightclip._ranges import Range
from weightclip.checks import check_number
from weightclip.patterns import Patterns, as_list

NORMALISATION = "normalisation layer: its scale starts at 1, not in a box around 0"
EMBEDDING = "embedding: its rows are looked up, so there is no fan_in"
NO_INPUTS = "its layer has no inputs"
FROZEN = "frozen (requires_grad=False)"
SLOPE = "activation: a slope, not a weight"
UNKNOWN = "no bound rule for"
USE_CLIP_WEIGHTS = "use weightclip.clip_weights or a callback of weightclip.integrations, which know the layers"


@dataclass(frozen=True)
class Bound:
    """How far one tensor may go: to `kappa * s` either way, or anywhere (`s` is None) for the `reason` given.

    `range` multiplies kappa: a number, or one for each unit of the tensor.
    """

    s: float | None
    rule: str = ""
    reason: str = ""
    range: Range = field(default=1.0, repr=False)


def make_bound(name: str, value: float | str | None, rule: str, reason: str) -> Bound:
    """The bound that a rule gave for the tensor `name`; None means left alone for the `reason` given."""
    if value is None or isinstance(value, str):
        return Bound(None, reason=value or reason)
    return Bound(check_number(f"{name}: bound by rule {rule!r}", value), rule)


def check_included(include: Patterns | None, bounds: Mapping[str, Bound]) -> None:
    """Raise where a pattern of `include` matches only tensors without a bound."""
    for pattern in as_list(include):
        matched = {name: bound for name, bound in bounds.items() if fnmatchcase(name, pattern)}
        if all(bound.s is None for bound in matched.values()):
            name, bound = next(iter(matched.items()))
            raise ValueError(
                f"include: {pattern!r} matches only tensors without a bound ({name}: {bound.reason}); "
                "bounds={name: number, '*': 'fan_in'} gives them one"
            )
