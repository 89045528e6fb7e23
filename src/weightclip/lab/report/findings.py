"""The findings at the top of a report: one sentence for each setup, computed from the results."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weightclip._text import counted
from weightclip.lab.plotting.style import style_of
from weightclip.lab.records.schema import CRITERIA, FRACTION, Criterion, Metric
from weightclip.lab.report.tables import BestRow, Setup, score_metric
from weightclip.lab.text import change_text, error_text, kappa_text, settings_text

NUM_ERRORS = 2.0
"""Standard errors of a difference within which two scores are called close."""


def finding(setup: Setup, rows: Sequence[BestRow], criterion: Criterion) -> str:
    """The best method of a setup, the next one, and the best method with clipping; empty if no score is finite.

    `rows` is the result of `best_rows` with this criterion.
    """
    metric = score_metric(setup)
    lower = metric.direction == "lower"
    found = [row for row in rows if _is_finite(row["score"])]
    if not found:
        return ""
    best, *others = sorted(found, key=lambda row: row["score"], reverse=not lower)
    score = " ".join(reversed(metric.label.lower().split(", ")))  # "Return, evaluated" -> "evaluated return"
    about = f"{CRITERIA[criterion]}, {counted(best['seeds'], 'seed')}"
    if not others:
        return f"On {_place(setup)}, the {score} of {_name(best)} is {_score(best, metric)} ({about})."
    named, extreme = (best, others[0]), "lowest" if lower else "highest"
    first = f"On {_place(setup)}, {_name(best)} has the {extreme} {score}, {_score(best, metric)} ({about})"
    second = others[0]
    word = "close to it is" if _are_close(best, second) else "next is"
    parts = [first + _gain(best, found, named, metric)]
    parts.append(f"{word} {_name(second)}, {_score(second, metric)}{_gain(second, found, named, metric)}")
    clipped = next((row for row in others if _kappa(row)), None)
    if clipped and clipped is not second and not _kappa(best):
        parts.append(f"{_name(clipped)} has {_score(clipped, metric)}{_gain(clipped, found, named, metric)}")
    return f"{'; '.join(parts)}."


def _place(setup: Setup) -> str:
    """The name of a setup with the values of its axes."""
    first = setup.table.row(0, named=True)
    axes = {name: first[name] for name in setup.columns.axes if name != "method" and f"{name} " not in setup.name}
    return ", ".join(filter(None, (setup.label, settings_text(axes))))


def _are_close(first: BestRow, second: BestRow) -> bool:
    """Whether two scores differ by at most `NUM_ERRORS` standard errors of their difference."""
    errors = (first["error"], second["error"])
    known = all(map(_is_finite, errors))
    return known and abs(first["score"] - second["score"]) <= NUM_ERRORS * math.hypot(*errors)


def _gain(row: BestRow, found: Sequence[BestRow], named: Sequence[BestRow], metric: Metric) -> str:
    """The difference of a method with clipping to its optimizer alone, unless the sentence has both scores."""
    optimizer, _, regularizers = row["method"].partition("+")
    alone = next((one for one in found if one["method"] == optimizer), None)
    if alone is None or alone in named or not regularizers or not _kappa(row):
        return ""
    unit = " points" if metric.unit == FRACTION else ""
    difference = change_text(row["score"] - alone["score"], metric)
    return f", {difference[1:]}{unit} {'above' if difference[0] == '+' else 'below'} {style_of(optimizer).label} alone"


def _score(row: BestRow, metric: Metric) -> str:
    return error_text(row["score"], row["error"], metric).replace(" ", "\N{NO-BREAK SPACE}")


def _name(row: BestRow) -> str:
    kappa = _kappa(row)
    return style_of(row["method"]).label + (f" ({kappa})" if kappa else "")


def _kappa(row: BestRow) -> str:
    return kappa_text(row.get("kappa"), row.get("kappa_rule"))


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
