"""Formatting of values in tables, figures and the report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from weightclip._text import counted
from weightclip.lab.records.schema import FRACTION, Metric

TITLE = "Results"
NOTHING = "–"

MOST_DECIMALS, MOST_ROUNDED = 6, -3
"""Limits of decimals and rounded digits of a value with an error; beyond them, it is written as a power of ten."""


def value_text(value: Any) -> str:
    """Format a value of a configuration.

    Examples:
        >>> [value_text(value) for value in (50_000, 1e-4, True, None, "relu")]
        ['50,000', '0.0001', 'yes', '–', 'relu']
    """
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def kappa_text(kappa: float | None = None, rule: str | None = None) -> str:
    """Format the clipping ranges of a run; empty if it has none.

    Examples:
        >>> kappa_text(1.0), kappa_text(None, "hidden=inf,output=1"), kappa_text(None, "graded(0.5, 8, output=2)")
        ('κ = 1', 'κ: hidden ∞, output 1', 'κ = graded(0.5, 8, output=2)')
    """
    if rule is None:
        return "" if kappa is None else f"κ = {'∞' if kappa == math.inf else f'{kappa:g}'}"
    if "(" in rule:
        return f"κ = {rule}"
    return "κ: " + rule.replace(",", ", ").replace("=", " ").replace(" inf", " ∞")


def count_text(count: float) -> str:
    """Format a large number.

    Examples:
        >>> count_text(2_500_000), count_text(500_000), count_text(128)
        ('2.5M', '500k', '128')
    """
    size = abs(count)
    return f"{count / 1e6:g}M" if size >= 1e6 else f"{count / 1e3:g}k" if size >= 1e3 else f"{count:g}"


def settings_text(values: Mapping[str, Any]) -> str:
    """Format the settings that have a value.

    Examples:
        >>> settings_text({"lr": 0.001, "kappa": None, "settings.beta1": 0.5})
        'lr 0.001, beta1 0.5'
    """
    names = {name: name.rpartition(".")[2].removesuffix("_rule") for name in values}
    given = {names[name]: value for name, value in values.items() if value is not None}
    return ", ".join(f"{name} {value_text(value)}" for name, value in given.items())


def metric_text(value: float | None, metric: Metric) -> str:
    """Format a measured value: a fraction in percent, others with four digits.

    Examples:
        >>> accuracy, loss = Metric("accuracy", "", "", unit="fraction"), Metric("loss", "", "")
        >>> metric_text(0.78951, accuracy), metric_text(0.66051, loss)
        ('78.95%', '0.6605')
    """
    if value is None or math.isnan(value):
        return NOTHING
    return f"{value:.2%}" if metric.unit == FRACTION else f"{value:.4g}"


def error_text(value: float | None, error: float | None, metric: Metric) -> str:
    """Format a measured value with its error, if any: a fraction in percent, others with two digits of the error.

    Examples:
        >>> loss = Metric("loss", "", "")
        >>> error_text(0.73838, 0.0007888, loss), error_text(1234.5, 67.8, loss), error_text(0.5, None, loss)
        ('0.73838 ± 0.00079', '1234 ± 68', '0.5')
    """
    text = metric_text(value, metric)
    if text == NOTHING or value is None or error is None or math.isnan(error):
        return text
    if metric.unit == FRACTION:
        return f"{text} ± {metric_text(error, metric)}"
    digits = 1 - math.floor(math.log10(error)) if 0 < error < math.inf else None
    if digits is None or not MOST_ROUNDED <= digits <= MOST_DECIMALS:
        return f"{text} ± {error:.2g}"
    places = max(0, digits)
    return f"{round(value, digits):.{places}f} ± {round(error, digits):.{places}f}"


def change_text(value: float | None, metric: Metric) -> str:
    """Format a change of a measured value with its sign: a fraction in percentage points.

    Examples:
        >>> change_text(-0.0213, Metric("accuracy", "", "", unit="fraction")), change_text(0.5, Metric("loss", "", ""))
        ('−2.13', '+0.5')
    """
    if value is None or math.isnan(value):
        return NOTHING
    text = f"{100 * value:+.2f}" if metric.unit == FRACTION else f"{value:+.3g}"
    return text.replace("-", "−")


def time_text(seconds: float) -> str:
    """Format a duration in its two largest units.

    Examples:
        >>> time_text(3.21), time_text(75), time_text(7_290), time_text(90_000)
        ('3.2 s', '1 min 15 s', '2 h 1 min', '25 h')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    units = [(hours, "h"), (minutes, "min"), (rest if not hours else 0, "s")]
    return " ".join(f"{count:,} {unit}" for count, unit in units if count)


def clock_text(seconds: float) -> str:
    """Format a duration as on a clock.

    Examples:
        >>> clock_text(83), clock_text(7384), clock_text(93784)
        ('1:23', '2:03:04', '1 d 2:03:04')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if not days and not hours:
        return f"{minutes}:{rest:02}"
    return f"{days} d {hours}:{minutes:02}:{rest:02}" if days else f"{hours}:{minutes:02}:{rest:02}"


def seeds_text(seeds: Iterable[int]) -> str:
    """Format integers, with consecutive ones as ranges.

    Examples:
        >>> seeds_text([4, 0, 1, 2, 7])
        '0–2, 4, 7'
    """
    found = sorted(set(seeds))
    ranges = [[seed for _, seed in group] for _, group in groupby(enumerate(found), lambda pair: pair[1] - pair[0])]
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}–{part[-1]}" for part in ranges)


def list_text(values: Iterable[str], word: str = "and") -> str:
    """Join values: `a`, `a and b`, `a, b and c`."""
    *first, last = values
    return f" {word} ".join(filter(None, (", ".join(first), last)))


def selection_notes(row: Mapping[str, Any]) -> list[str]:
    """Notes on a selected setting, a row of `weightclip.lab.analysis.select`."""
    notes = []
    if row["edges"]:
        notes.append(f"{list_text(row['edges'].split(','))} at the edge of the values tried")
    if row["ties"]:
        notes.append(f"tied with {counted(row['ties'], 'other setting')}")
    if row["shared"] == 0:
        notes.append("compared on different seeds, because the settings have too few in common")
    elif row["shared"]:
        notes.append(f"compared on {counted(row['shared'], 'seed')} common to its settings")
    if row["incomplete"]:
        notes.append(f"{counted(row['incomplete'], 'setting')} with fewer seeds excluded")
    return notes
