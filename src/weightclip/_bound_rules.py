"""Bounds s_l and the rules on them that PyTorch and JAX share. Imports neither."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from weightclip._ranges import Range
from weightclip._validation import Patterns, as_list, check_number

NORMALIZATION = "normalization layer: its scale is initialized to 1, outside a box around 0"
EMBEDDING = "embedding: rows are looked up, so there is no fan_in"
NO_INPUTS = "layer without inputs"
FROZEN = "frozen (requires_grad=False)"
SLOPE = "activation: a slope, not a weight"
UNKNOWN = "no bound rule for"
USE_CLIP_WEIGHTS = "use weightclip.clip_weights or a callback of weightclip.integrations, which know the layers"

WARN_ABOVE = 0.1
"""Fraction of the weight entries in layers without a bound rule above which clipping warns."""


@dataclass(frozen=True)
class Bound:
    """Bound of one tensor: clipped to [-kappa s, kappa s], or skipped for the given `reason` if `s` is None.

    `range` multiplies kappa: a number, or one number per unit of the tensor.
    """

    s: float | None
    rule: str = ""
    reason: str = ""
    range: Range = field(default=1.0, repr=False)


def make_bound(name: str, value: float | str | None, rule: str, reason: str) -> Bound:
    """The bound that a rule returned for the tensor `name`; None skips the tensor for the given `reason`."""
    if value is None or isinstance(value, str):
        return Bound(None, reason=value or reason)
    return Bound(check_number(f"{name}: bound by rule {rule!r}", value), rule)


def check_included(include: Patterns | None, bounds: Mapping[str, Bound]) -> None:
    """Raise if a pattern of `include` matches only tensors without a bound."""
    for pattern in as_list(include):
        matched = {name: bound for name, bound in bounds.items() if fnmatchcase(name, pattern)}
        if all(bound.s is None for bound in matched.values()):
            name, bound = next(iter(matched.items()))
            raise ValueError(
                f"include: {pattern!r} matches only tensors without a bound ({name}: {bound.reason}); "
                "bounds={name: number, '*': 'fan_in'} sets one"
            )
