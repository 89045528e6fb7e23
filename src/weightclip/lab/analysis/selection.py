"""Selection of the best setting of each method, by the paper's criterion or by the last rows (Table 2 of the paper).

`auc` is the area under the curve of the score: the mean over the rows of a run, weighted by their samples. `final` is
the mean over the last rows. Both are averaged over seeds; NaN is the worst score.

Settings are compared on the same seeds: those that more than half of the method's settings have. A single setting with
more or fewer seeds therefore does not change the comparison of the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from weightclip._validation import check_name, check_number
from weightclip.lab.analysis.setups import (
    NOT_THE_PAPERS,
    Columns,
    by_experiment,
    check_metric,
    columns_of,
    main_setup,
)
from weightclip.lab.records.columns import cut_short, flat_config, schema_of, whole_rows
from weightclip.lab.records.schema import CRITERIA, DEFAULT, LAST_FRACTION, Criterion, Schema
from weightclip.lab.text import selection_notes, settings_text


def score_runs(
    table: pl.DataFrame, metric: str | None = None, criterion: Criterion = DEFAULT, last: float = LAST_FRACTION
) -> pl.DataFrame:
    """Return a row per run: setup, method, settings, seed, identity, number of `rows`, and `score`.

    Args:
        table: tidy table.
        metric: column of the table (default: the score of the experiment). Rows with null are ignored; NaN makes the
            score NaN.
        criterion: "auc" or "final".
        last: rows that "final" averages: a fraction below 1 (at least one row), or a number of rows.
    """
    check_name("criterion", criterion, tuple(CRITERIA))
    check_number("last", last)

    def score(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        name = check_metric(part, metric, columns)
        about = (*columns.setting, "seed", "identity")
        value = pl.col(name).cast(pl.Float64)
        if criterion == "auc":
            weight = _weight(part) * value.is_not_null()
            scored = (value * weight).sum() / weight.sum()
        else:
            rows = pl.len() * last if last < 1 else pl.lit(last)
            scored = value.tail(rows.round().cast(pl.Int64).clip(1)).mean().fill_null(float("nan"))
        counted = part if criterion == "auc" else whole_rows(part)  # "auc" weights rows by their samples
        ordered = counted.sort("identity", columns.x_column, maintain_order=True)
        return ordered.group_by(about, maintain_order=True).agg(pl.len().alias("rows"), scored.alias("score"))

    return by_experiment(table, score)


def score_settings(
    table: pl.DataFrame, metric: str | None = None, criterion: Criterion = DEFAULT, last: float = LAST_FRACTION
) -> pl.DataFrame:
    """Return a row per setup, method and setting: the mean `score` over runs, its standard `error` and `seeds`.

    The error of a single run is null.
    """

    def score(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        return averaged(score_runs(part, metric, criterion, last), columns)

    return by_experiment(table, score)


def select(
    table: pl.DataFrame, metric: str | None = None, criterion: Criterion = DEFAULT, last: float = LAST_FRACTION
) -> pl.DataFrame:
    """Return the best setting per setup and method, with `score`, `error`, `seeds` and details of the selection.

    Settings are compared on the seeds that more than half of the method's settings have. `compared` is the number of
    settings that have all of these seeds, `incomplete` the number of the others, which are excluded. If no setting has
    all of them, the settings with the most seeds are compared on their own seeds. `shared` is the number of common
    seeds (0: different seeds); it is null if all compared settings have the same seeds. `score`, `error` and `seeds`
    cover all seeds of the selected setting.

    `ties` is the number of other settings with the same score (the smallest values are selected). `edges` lists
    settings, such as "lr,kappa", whose selected value is the smallest or largest of those tried, except 0 and infinity.
    """

    def choose(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        runs = score_runs(part, metric, criterion, last)
        return best_of(runs, (*columns.setup, "method"), columns, check_metric(part, metric, columns))

    return by_experiment(table, choose)


def best_of(runs: pl.DataFrame, group: Sequence[str], columns: Columns, metric: str) -> pl.DataFrame:
    """The best setting of each group of rows of `score_runs`, with the columns of `select`."""
    lower = _direction(columns.schema, metric) == "lower"
    value = pl.col("_score").fill_nan(None)
    compared = _compared(runs, group, columns)
    ordered = compared.sort(value, descending=not lower, nulls_last=True, maintain_order=True)
    found = ordered.group_by(group, maintain_order=True).agg(
        pl.all().first(),
        pl.len().alias("compared"),
        (value.eq_missing(value.first()).sum() - 1).alias("ties"),
        _edges(ordered, columns.settings),
    )
    settings = averaged(runs, columns)
    tried = settings.group_by(group).agg(pl.len().alias("_tried"))
    found = found.join(settings, on=columns.setting, nulls_equal=True, maintain_order="left")
    found = found.join(tried, on=list(group), nulls_equal=True, maintain_order="left")
    found = found.with_columns((pl.col("_tried") - pl.col("compared")).alias("incomplete"))
    added = ("compared", "incomplete", "shared", "ties", "edges")
    return found.select(*settings.columns, *added).sort(group, nulls_last=True)


def averaged(runs: pl.DataFrame, columns: Columns) -> pl.DataFrame:
    """The result of `score_settings`, computed from `score_runs`."""
    value = pl.col("score")
    return (
        runs.group_by(columns.setting, maintain_order=True)
        .agg(value.mean(), (value.std() / pl.len().sqrt()).alias("error"), pl.len().alias("seeds"))
        .sort(columns.setting, nulls_last=True)
    )


def _compared(runs: pl.DataFrame, group: Sequence[str], columns: Columns) -> pl.DataFrame:
    """A row per compared setting of each group: its `_score` on the common seeds, and `shared`."""
    setting, seed, common = pl.struct(columns.setting), pl.col("seed"), pl.col("_common")
    runs = runs.with_columns(
        _common=2 * setting.n_unique().over(*group, "seed") > setting.n_unique().over(group),
        _seeds=seed.n_unique().over(columns.setting),
    )
    runs = runs.with_columns(
        _shared=seed.filter(common).n_unique().over(group),
        _own=seed.filter(common).n_unique().over(columns.setting),
    )
    runs = runs.with_columns(_complete=(pl.col("_own") == pl.col("_shared")) & (pl.col("_shared") > 0))
    runs = runs.with_columns(_any=pl.col("_complete").any().over(group))
    has_most_seeds = pl.col("_seeds") == pl.col("_seeds").max().over(group)
    compared = runs.filter(pl.when("_any").then("_complete").otherwise(has_most_seeds))
    same = (seed.n_unique().over(group) == pl.col("_seeds")).all().over(group)
    shared = pl.when(~same).then(pl.when("_any").then("_shared").otherwise(0))
    counted = compared.with_columns(shared=shared).filter(common | ~pl.col("_any"))
    return (
        counted.group_by(columns.setting, maintain_order=True)
        .agg(pl.col("score").mean().alias("_score"), pl.col("shared").first())
        .sort(columns.setting, nulls_last=True)
    )


def best_runs(
    table: pl.DataFrame, metric: str | None = None, criterion: Criterion = DEFAULT, last: float = LAST_FRACTION
) -> pl.DataFrame:
    """The rows of the table that belong to the selected settings."""

    def keep(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        chosen = select(part, metric, criterion, last)
        return part.join(chosen, on=columns.setting, how="semi", nulls_equal=True, maintain_order="left")

    return by_experiment(table, keep)


def _weight(table: pl.DataFrame) -> pl.Expr:
    """The number of samples of a row; `samples` counts from the start of the run."""
    if "samples" not in table.columns:
        return pl.lit(1.0).repeat_by(pl.len()).explode()
    return pl.col("samples").diff().fill_null(pl.col("samples"))


def _direction(schema: Schema, metric: str) -> str:
    """Which values of a metric are better."""
    direction = schema.metric(metric).direction
    if not direction:
        known = ", ".join(name for name, one in schema.metrics.items() if one.direction)
        raise ValueError(f"metric: got {metric!r}, expected a metric with a direction: {known}")
    return direction


def _edges(table: pl.DataFrame, settings: Sequence[str]) -> pl.Expr:
    at_edge: list[Any] = [pl.lit("")]
    for name in (one for one in settings if table[one].dtype.is_numeric()):
        value, chosen = pl.col(name), pl.col(name).first()
        at_end = ((chosen == value.min()) & (chosen != 0)) | ((chosen == value.max()) & chosen.is_finite())
        at_edge.append(pl.when((value.drop_nulls().n_unique() > 1) & at_end).then(pl.lit(name)))
    return pl.concat_list(at_edge[1:]).list.drop_nulls().list.join(",").alias("edges")


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
    from weightclip.lab.analysis.statistics import trend  # here because statistics imports this module

    def compare(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        key = (*columns.setup, "method")
        scores = score_runs(part, metric, criterion, last)
        chosen = best_of(scores, key, columns, check_metric(part, metric, columns))
        best = part.join(chosen, on=columns.setting, how="semi", nulls_equal=True, maintain_order="left")
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
    axes = columns_of(runs).axes
    chosen = select(runs, criterion=criterion).filter(pl.col("compared") + pl.col("incomplete") > 1)
    for row in chosen.iter_rows(named=True):
        where = ", ".join((row["problem"], *filter(None, [settings_text({axis: row[axis] for axis in axes})])))
        setting = settings_text(display_setting(row, runs))
        notes.append(f"{where}: {row['method']}: best of several settings by {criterion}: {setting}")
    return best_runs(runs, criterion=criterion), notes
