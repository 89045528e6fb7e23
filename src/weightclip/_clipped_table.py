"""Text about a clipper: tables of clipped and skipped tensors, and a warning of layers without a bound rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from weightclip._bound_rules import EMBEDDING, UNKNOWN, WARN_ABOVE
from weightclip._box import Entry, limit, local, unit_limits
from weightclip._ranges import Units
from weightclip._text import format_table


def clipped_table(entries: Sequence[Entry], groups: Sequence[Mapping[str, Any]]) -> str:
    """The bound of each clipped tensor, and how many of its entries are outside and at the bound."""
    rows = [("tensor", "shape", "rule", "s", "kappa", "bound", "outside now", "at the bound")]
    for e in entries:
        kappa, s, units = groups[e.group].get("kappa", math.nan), e.bound.s or 0, e.bound.range
        if isinstance(units, Units):
            ends = [kappa * end for end in units.ends(e.tensor.shape[units.dim])]
            numbers = (f"{s:.4g}", _interval(ends), _interval([end * s for end in ends]))
            now = _now(local(e.tensor), unit_limits(kappa, e.bound, e.tensor))
        else:
            numbers = (f"{s:.4g}", f"{kappa * units:g}", f"{kappa * units * s:.4g}")
            now = _now(local(e.tensor), limit(kappa, e.bound, e.tensor.dtype))
        rows.append((e.name, shape_text(e.tensor.shape), e.bound.rule, *numbers, *now))
    return "\n".join(format_table(rows))


def skipped_table(entries: Sequence[Entry], absent: Mapping[str, Sequence[int]]) -> str:
    """The skipped tensors and the model's tensors outside the optimizer, with the reason; "" if there are none."""
    rows = [(e.name, shape_text(e.tensor.shape), e.bound.reason) for e in entries if e.bound.s is None]
    rows += [(name, shape_text(shape), "not in this optimizer") for name, shape in absent.items()]
    return "\n".join(["skipped:", *format_table(rows)]) if rows else ""


def unknown_layers_warning(entries: Sequence[Entry]) -> str:
    """A warning if a large fraction of the weights is in layers without a bound rule, or ""."""
    weights = [e for e in entries if e.tensor.dim() >= 2 and e.bound.reason != EMBEDDING]
    unknown = [e for e in weights if e.bound.reason.startswith(UNKNOWN)]
    total, left = (sum(e.tensor.numel() for e in some) for some in (weights, unknown))
    if left <= WARN_ABOVE * total:
        return ""
    names = ", ".join(e.name for e in unknown[:5]) + (", ..." if len(unknown) > 5 else "")
    return (
        f"clip_weights skips {left / total:.0%} of the weight entries, because their layers have no bound rule: "
        f"{names}; weightclip.register_bound or bounds={{name: number, '*': 'fan_in'}} sets a bound, and exclude=[...] "
        "skips them without this warning"
    )


def shape_text(shape: Sequence[int]) -> str:
    """A shape as text.

    Examples:
        >>> shape_text((2, 3)), shape_text(())
        ('2x3', 'scalar')
    """
    return "x".join(map(str, shape)) or "scalar"


def _interval(ends: Sequence[float]) -> str:
    """A range of numbers; for one unit, all ends are equal."""
    return "-".join(dict.fromkeys(f"{end:.4g}" for end in ends))


def _now(tensor: Tensor, bound: float | Tensor) -> tuple[str, str]:
    """Number of entries outside the bound and exactly at the bound."""
    if tensor.is_meta:
        return "-", "-"
    size = tensor.abs()
    outside, nan, at = (int(part.sum()) for part in (size > bound, size.isnan(), size == bound))
    return f"{outside} of {tensor.numel()}" + (f", {nan} NaN" if nan else ""), str(at)
