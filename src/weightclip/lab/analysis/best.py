"""The best setting of each method with the paper's, as in the paper's table 2, and its trend."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import polars as pl

from weightclip.lab.analysis.selection import averaged, best_of, runs_at, score_runs, select
from weightclip.lab.analysis.setups import (
    NOT_THE_PAPERS,
    Columns,
    by_experiment,
    check_metric,
    columns_of,
    main_setup,
)
from weightclip.lab.analysis.statistics import trend
from weightclip.lab.records.columns import cut_short, flat_config, schema_of
from weightclip.lab.records.schema import DEFAULT, LAST_FRACTION, Criterion
from weightclip.lab.text import selection_notes, settings_text

_PLAIN_KEY = re.compile(r"[\w-]+", re.ASCII)


def best_settings(
    table: pl.DataFrame, metric: str | None = None, criterion: Criterion = DEFAULT, last: float = LAST_FRACTION
) -> pl.DataFrame:
    """Return one row per setup and method, in the paper's order of methods. The arguments are those of `select`.

    The columns of `select` are followed by those of `trend` at that setting (`slope`, `low`, `high`, `verdict`), `same`
    (whether it is the paper's setting; null if the paper has none), `paper_score` (the score of the paper's setting in
    these results; null if it was not run), `paper_setting`, `deviations`, `data`, `official` and `cut_short` (whether
    the last task was cut short).
    """

    def compare(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        key = (*columns.setup, "method")
        scores = score_runs(part, metric, criterion, last)
        chosen = best_of(scores, key, columns, check_metric(part, metric, columns))
        best = runs_at(part, chosen, columns)
        slopes = trend(best, metric).select(*key, "slope", "low", "high", "verdict")
        first = pl.col("data", "official", "paper_setting", "deviations").first()
        about = best.group_by(key).agg(first, cut_short(best).any())
        for columns_to_add in (slopes, about):
            chosen = chosen.join(columns_to_add, on=key, nulls_equal=True, maintain_order="left")
        averages = averaged(scores, columns)
        paper = [_compare_with_paper(row, averages, columns) for row in chosen.iter_rows(named=True)]
        chosen = chosen.with_columns(pl.DataFrame(paper, schema={"same": pl.Boolean, "paper_score": pl.Float64}))
        order = columns.schema.ordered_methods(chosen["method"].cast(pl.String))
        return chosen.sort(*columns.setup, pl.col("method").cast(pl.Enum(order)), maintain_order=True)

    return by_experiment(table, compare)


def display_setting(row: Mapping[str, Any], table: pl.DataFrame) -> dict[str, Any]:
    """The settings to display for a row of `best_settings`: those with a field, and others that vary.

    Other settings are entries of a mapping in the configuration, such as `settings.beta1`. Versions of the user's rules
    are distinguished by the first digits of their hash.
    """
    runs = table.filter(pl.col("experiment") == row["experiment"], pl.col("method") == row["method"])
    names = [name for field in schema_of(runs).settings for name in _field_columns(field, row)]
    found = {
        name: row[name]
        for name in names
        if row[name] is not None and ("." not in name or runs[name].drop_nulls().n_unique() > 1)
    }
    if row.get("rules") is not None and runs["rules"].n_unique() > 1:
        found["rules"] = row["rules"][:6]
    return found


def setting_notes(row: Mapping[str, Any]) -> list[str]:
    """Notes on a row of `best_settings`: its selection and its deviations from the paper."""
    short = "the last task is cut short: it is excluded from the slope and the final score"
    deviations = row["deviations"] and f"{NOT_THE_PAPERS}: {row['deviations']}"
    return [*selection_notes(row), *filter(None, (short if row["cut_short"] else "", deviations))]


def paper_setting(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The paper's setting for a row of `best_settings`; None if the paper has none."""
    return None if row["paper_setting"] is None else flat_config(json.loads(row["paper_setting"]))


def as_presets(best: pl.DataFrame, table: pl.DataFrame) -> str:
    """The best settings as TOML, in the format of presets and grids (`weightclip.lab.sweep.grid`).

    Presets have one setting per method and problem: setups with different settings raise a ValueError.
    """
    lines: list[str] = []
    for (problem,), rows in best.group_by("problem", maintain_order=True):
        found: dict[str, str] = {}
        for row in rows.iter_rows(named=True):
            named = {name: value for name, value in display_setting(row, table).items() if name != "rules"}
            setting = ", ".join(f"{_path(name)} = {_value(value)}" for name, value in named.items())
            if found.setdefault(row["method"], setting) != setting:
                raise ValueError(
                    f"{problem}: got two best settings of {row['method']} ({found[row['method']]}; {setting}), "
                    "expected one: choose a setup with --where"
                )
        lines.append(f"[best.{_key(str(problem))}]")
        lines += [f"{_key(method)} = {{ {setting} }}" for method, setting in found.items()]
        lines.append("")
    return "\n".join(lines)


def _compare_with_paper(row: Mapping[str, Any], averages: pl.DataFrame, columns: Columns) -> dict[str, Any]:
    paper = paper_setting(row)
    if paper is None:
        return {"same": None, "paper_score": None}
    if all(row.get(name) == value for name, value in paper.items()):
        return {"same": True, "paper_score": row["score"]}
    reference = {**{name: row[name] for name in (*columns.setup, "method")}, **paper}
    if any(name not in averages.columns for name in reference):
        return {"same": False, "paper_score": None}
    found = averages.filter(pl.col(name).eq_missing(pl.lit(value)) for name, value in reference.items())
    return {"same": False, "paper_score": found["score"][0] if len(found) else None}


def _field_columns(field: str, row: Mapping[str, Any]) -> list[str]:
    return [name for name in row if name == field or name.startswith(f"{field}.")]


def _path(name: str) -> str:
    """The TOML key of a setting; `settings.beta1` is a dotted key."""
    return ".".join(map(_key, name.split(".")))


def _key(name: str) -> str:
    return name if _PLAIN_KEY.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    """A value as TOML. Its strings are those of JSON except for one character."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else repr(value)


def experiment_runs(table: pl.DataFrame, experiment: str) -> pl.DataFrame:
    """The runs of an experiment. Raise a ValueError if there are none."""
    runs = table.filter(experiment=experiment)
    if runs.is_empty():
        available = ", ".join(table["experiment"].unique().sort())
        raise ValueError(f"results: got runs of {available}, expected runs of {experiment}")
    return runs


def chosen_runs(table: pl.DataFrame, experiment: str, criterion: Criterion) -> tuple[pl.DataFrame, list[str]]:
    """The runs of the main setup at the best settings, and notes on the selection."""
    notes: list[str] = []
    runs = main_setup(experiment_runs(table, experiment), notes.append)
    columns = columns_of(runs)
    chosen = select(runs, criterion=criterion)
    for row in chosen.filter(pl.col("compared") + pl.col("incomplete") > 1).iter_rows(named=True):
        axes = settings_text({axis: row[axis] for axis in columns.axes})
        where = ", ".join(filter(None, (row["problem"], axes)))
        setting = settings_text(display_setting(row, runs))
        notes.append(f"{where}: {row['method']}: best of several settings by {criterion}: {setting}")
    return runs_at(runs, chosen, columns), notes
