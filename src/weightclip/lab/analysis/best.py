"""The paper's table 2 from results: each method's best setting beside the paper's, with its trend."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import polars as pl

from weightclip.lab.analysis.selection import best_runs, score_settings, select
from weightclip.lab.analysis.setups import Columns, by_experiment, columns_of, main_setup, ordered_methods
from weightclip.lab.analysis.statistics import trend
from weightclip.lab.records.metrics import DEFAULT, LAST, Criterion
from weightclip.lab.records.tidy import cut_short
from weightclip.lab.registry import find_experiment
from weightclip.lab.text import selection_notes, settings_text

_PLAIN_KEY = re.compile(r"[\w-]+", re.ASCII)


def best_settings(
    table: pl.DataFrame, metric: str | None = None, criterion: Criterion = DEFAULT, last: float = LAST
) -> pl.DataFrame:
    """A row per setup and method, the experiment's methods in its order; the arguments are those of `select`.

    After the columns of `select` come those of the `trend` at that setting (`slope`, `low`, `high`, `verdict`), whether
    it is the paper's setting (`same`; null where the paper has none), the score of the paper's setting here
    (`paper_score`; null where that was not run), `data`, `official`, and whether the last task was cut short
    (`cut_short`).
    """

    def compare(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        key = (*columns.setup, "method")
        scored = score_settings(part, metric, criterion, last)
        slopes = trend(best_runs(part, metric, criterion, last), metric).select(*key, "slope", "low", "high", "verdict")
        about = part.group_by(key).agg(pl.col("data", "official").first(), cut_short(part).any())
        chosen = select(part, metric, criterion, last)
        paper = [_beside_paper(row, scored, columns) for row in chosen.iter_rows(named=True)]
        chosen = chosen.with_columns(pl.DataFrame(paper, schema={"same": pl.Boolean, "paper_score": pl.Float64}))
        for more in (slopes, about):
            chosen = chosen.join(more, on=key, nulls_equal=True, maintain_order="left")
        order = ordered_methods(chosen["method"].cast(pl.String), find_experiment(part["experiment"][0]))
        return chosen.sort(*columns.setup, pl.col("method").cast(pl.Enum(order)), maintain_order=True)

    return by_experiment(table, compare)


def told_setting(row: Mapping[str, Any], table: pl.DataFrame) -> dict[str, Any]:
    """What to tell of a method's setting in a row of `best_settings`: named settings, and others that the table varies.

    Others are those of a mapping in the configuration, such as `settings.beta1`. Versions of a rule of one's own are
    told apart by the beginning of their hash.
    """
    runs = table.filter(pl.col("experiment") == row["experiment"], pl.col("method") == row["method"])
    names = [name for field in find_experiment(row["experiment"]).setting_fields for name in _of_field(field, row)]
    found = {
        name: row[name]
        for name in names
        if row[name] is not None and ("." not in name or runs[name].drop_nulls().n_unique() > 1)
    }
    if row.get("rules") is not None and runs["rules"].n_unique() > 1:
        found["rules"] = row["rules"][:6]
    return found


def setting_notes(row: Mapping[str, Any]) -> list[str]:
    """What to know of a row of `best_settings`: how it was selected, and what its experiment has to say."""
    short = "the last task is cut short: it counts neither for the slope nor for the final score"
    remarks = (short if row["cut_short"] else "", find_experiment(row["experiment"]).remark(row))
    return [*selection_notes(row), *filter(None, remarks)]


def paper_setting(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The paper's setting for a row of `best_settings`, in the order of `told_setting`; None where it has none."""
    experiment = find_experiment(row["experiment"])
    found = experiment.paper_setting(row)
    if found is None:
        return None
    order = [name for field in experiment.setting_fields for name in _of_field(field, found)]
    return {name: found[name] for name in (*order, *(name for name in found if name not in order))}


def as_presets(best: pl.DataFrame, table: pl.DataFrame) -> str:
    """`best_settings` of a table, in TOML, as presets and grids have them (`weightclip.lab.sweep.grid`).

    Presets have one setting of a method on a problem: where setups have different ones, a ValueError says so.
    """
    lines: list[str] = []
    for (problem,), rows in best.group_by("problem", maintain_order=True):
        found: dict[str, str] = {}
        for row in rows.iter_rows(named=True):
            named = {name: value for name, value in told_setting(row, table).items() if name != "rules"}
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


def _beside_paper(row: Mapping[str, Any], scored: pl.DataFrame, columns: Columns) -> dict[str, Any]:
    paper = find_experiment(row["experiment"]).paper_setting(row)
    if paper is None:
        return {"same": None, "paper_score": None}
    same = all(row.get(name) == value for name, value in paper.items())
    wanted = {**{name: row[name] for name in (*columns.setup, "method")}, **paper}
    if same:
        return {"same": True, "paper_score": row["score"]}
    if any(name not in scored.columns for name in wanted):
        return {"same": False, "paper_score": None}
    found = scored.filter(pl.col(name).eq_missing(pl.lit(value)) for name, value in wanted.items())
    return {"same": False, "paper_score": found["score"][0] if len(found) else None}


def _of_field(field: str, row: Mapping[str, Any]) -> list[str]:
    return [name for name in row if name == field or name.startswith(f"{field}.")]


def _path(name: str) -> str:
    """Of a setting: `settings.beta1` is in a table of its own."""
    return ".".join(map(_key, name.split(".")))


def _key(name: str) -> str:
    return name if _PLAIN_KEY.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    """As TOML has it, whose strings are JSON's but for one character."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else repr(value)


def own_runs(table: pl.DataFrame, experiment: str) -> pl.DataFrame:
    """The runs of an experiment; a ValueError if there are none."""
    own = table.filter(experiment=experiment)
    if own.is_empty():
        there = ", ".join(table["experiment"].unique().sort())
        raise ValueError(f"results: got runs of {there}, expected some of {experiment}")
    return own


def chosen_runs(table: pl.DataFrame, experiment: str, criterion: Criterion) -> tuple[pl.DataFrame, list[str]]:
    """The runs, and what a user should know of the choice."""
    notes: list[str] = []
    runs = main_setup(own_runs(table, experiment), notes.append)
    axes = columns_of(runs).axes
    chosen = select(runs, criterion=criterion).filter(pl.col("compared") + pl.col("incomplete") > 1)
    for row in chosen.iter_rows(named=True):
        where = ", ".join((row["problem"], *filter(None, [settings_text({axis: row[axis] for axis in axes})])))
        setting = settings_text(told_setting(row, runs))
        notes.append(f"{where}: {row['method']}: best of several settings by {criterion}: {setting}")
    return best_runs(runs, criterion=criterion), notes
