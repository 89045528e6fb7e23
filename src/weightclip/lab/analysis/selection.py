"""Selection: the best setting of each method, by the paper's criterion or by the last rows; the paper's table 2.

`auc` is the area under the curve of the score: its mean over a run's rows, each weighted by its samples. `final` is the
mean over the last rows. Both are averaged over seeds; NaN counts as the worst.

Settings are compared on the same seeds: those that more than half of a method's settings have. So neither a setting
with further seeds nor one that was only tried out decides what the others are compared on.
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
    """A row per run: its setup, method, settings, seed and identity, its `rows`, and its `score`.

    Args:
        table: a tidy one.
        metric: a column of it; default: the experiment's own score. Rows where it is null do not count, as there was
            nothing to measure; where it is NaN, so is the score.
        criterion: "auc" or "final".
        last: the rows that count for "final": a share of them, at least one row, or, from 1 on, their number.
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
        counted = part if criterion == "auc" else whole_rows(part)  # the area weights rows by their samples
        ordered = counted.sort("identity", columns.x_column, maintain_order=True)
        return ordered.group_by(about, maintain_order=True).agg(pl.len().alias("rows"), scored.alias("score"))

    return by_experiment(table, score)


def score_settings(
    table: pl.DataFrame, metric: str | None = None, criterion: Criterion = DEFAULT, last: float = LAST_FRACTION
) -> pl.DataFrame:
    """A row per setup, method and setting: the mean `score` over runs, its standard `error` and the `seeds`.

    Of a single run the error is null.
    """

    def score(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        return averaged(score_runs(part, metric, criterion, last), columns)

    return by_experiment(table, score)


def select(
    table: pl.DataFrame, metric: str | None = None, criterion: Criterion = DEFAULT, last: float = LAST_FRACTION
) -> pl.DataFrame:
    """A row per setup and method: its best setting, with `score`, `error` and `seeds`, and how it was found.

    Settings compete on the seeds that more than half of the method's settings have, if they have all of these:
    `compared` is their number, `incomplete` that of the others. Where no setting has them, those with the most seeds
    compete, on whatever seeds these are. `shared` is the number of seeds that were compared on (0: on different ones);
    it is null where all that compete have the same seeds. `score`, `error` and `seeds` are over all seeds of the
    chosen setting.

    `ties` counts others that were just as good (the one with the smallest settings is taken). `edges` names settings,
    such as "lr,kappa", whose chosen value is the smallest or the largest of several that were tried, unless it cannot
    go further (0, infinity).
    """

    def choose(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        runs = score_runs(part, metric, criterion, last)
        return best_of(runs, (*columns.setup, "method"), columns, check_metric(part, metric, columns))

    return by_experiment(table, choose)


def best_of(runs: pl.DataFrame, group: Sequence[str], columns: Columns, metric: str) -> pl.DataFrame:
    """Of each group of `score_runs`'s rows the best setting, with the columns that `select` adds."""
    lower = _direction(columns.schema, metric) == "lower"
    value = pl.col("_score").fill_nan(None)
    competing = _compared(runs, group, columns)
    ordered = competing.sort(value, descending=not lower, nulls_last=True, maintain_order=True)
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
    """`score_settings`, from `score_runs`."""
    value = pl.col("score")
    return (
        runs.group_by(columns.setting, maintain_order=True)
        .agg(value.mean(), (value.std() / pl.len().sqrt()).alias("error"), pl.len().alias("seeds"))
        .sort(columns.setting, nulls_last=True)
    )


def _compared(runs: pl.DataFrame, group: Sequence[str], columns: Columns) -> pl.DataFrame:
    """A row per setting that competes in its group: its `_score` on the seeds that count there, and `shared`."""
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
    most = pl.col("_seeds") == pl.col("_seeds").max().over(group)
    competing = runs.filter(pl.when("_any").then("_complete").otherwise(most))
    same = (seed.n_unique().over(group) == pl.col("_seeds")).all().over(group)
    shared = pl.when(~same).then(pl.when("_any").then("_shared").otherwise(0))
    counted = competing.with_columns(shared=shared).filter(common | ~pl.col("_any"))
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
    """A row's samples; `samples` counts from the run's beginning."""
    if "samples" not in table.columns:
        return pl.lit(1.0).repeat_by(pl.len()).explode()
    return pl.col("samples").diff().fill_null(pl.col("samples"))


def _direction(schema: Schema, metric: str) -> str:
    """Which values of a metric are better."""
    direction = schema.metric(metric).direction
    if not direction:
        known = ", ".join(name for name, one in schema.metrics.items() if one.direction)
        raise ValueError(f"metric: got {metric!r}, expected one whose values are better or worse: {known}")
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
    """One row per setup and method, in the paper's order of methods; the arguments are those of `select`.

    The columns of `select` are followed by those of `trend` at that setting (`slope`, `low`, `high`, `verdict`), `same`
    (whether it is the paper's setting; null where the paper has none), `paper_score` (the score of the paper's setting
    here; null where it was not run), `paper_setting`, `deviations`, `data`, `official` and `cut_short`, whether the
    last task was.
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
        for more in (slopes, about):
            chosen = chosen.join(more, on=key, nulls_equal=True, maintain_order="left")
        averages = averaged(scores, columns)
        paper = [_beside_paper(row, averages, columns) for row in chosen.iter_rows(named=True)]
        chosen = chosen.with_columns(pl.DataFrame(paper, schema={"same": pl.Boolean, "paper_score": pl.Float64}))
        order = columns.schema.ordered_methods(chosen["method"].cast(pl.String))
        return chosen.sort(*columns.setup, pl.col("method").cast(pl.Enum(order)), maintain_order=True)

    return by_experiment(table, compare)


def display_setting(row: Mapping[str, Any], table: pl.DataFrame) -> dict[str, Any]:
    """The settings to show for a row of `best_settings`: named ones, and others that vary in the table.

    Others are entries of a mapping in the configuration, such as `settings.beta1`. Versions of the user's rules are
    distinguished by the first digits of their hash.
    """
    runs = table.filter(pl.col("experiment") == row["experiment"], pl.col("method") == row["method"])
    names = [name for field in schema_of(runs).settings for name in _of_field(field, row)]
    found = {
        name: row[name]
        for name in names
        if row[name] is not None and ("." not in name or runs[name].drop_nulls().n_unique() > 1)
    }
    if row.get("rules") is not None and runs["rules"].n_unique() > 1:
        found["rules"] = row["rules"][:6]
    return found


def setting_notes(row: Mapping[str, Any]) -> list[str]:
    """Remarks on a row of `best_settings`: how it was selected, and how it deviates from the paper."""
    short = "the last task is cut short: it counts neither for the slope nor for the final score"
    deviations = row["deviations"] and f"{NOT_THE_PAPERS}: {row['deviations']}"
    return [*selection_notes(row), *filter(None, (short if row["cut_short"] else "", deviations))]


def paper_setting(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The paper's setting for a row of `best_settings`; None where the paper has none."""
    return None if row["paper_setting"] is None else flat_config(json.loads(row["paper_setting"]))


def as_presets(best: pl.DataFrame, table: pl.DataFrame) -> str:
    """`best_settings` of a table, in TOML, as presets and grids have them (`weightclip.lab.sweep.grid`).

    Presets have one setting of a method on a problem: where setups have different ones, a ValueError says so.
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


def _beside_paper(row: Mapping[str, Any], averages: pl.DataFrame, columns: Columns) -> dict[str, Any]:
    paper = paper_setting(row)
    if paper is None:
        return {"same": None, "paper_score": None}
    if all(row.get(name) == value for name, value in paper.items()):
        return {"same": True, "paper_score": row["score"]}
    wanted = {**{name: row[name] for name in (*columns.setup, "method")}, **paper}
    if any(name not in averages.columns for name in wanted):
        return {"same": False, "paper_score": None}
    found = averages.filter(pl.col(name).eq_missing(pl.lit(value)) for name, value in wanted.items())
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
        setting = settings_text(display_setting(row, runs))
        notes.append(f"{where}: {row['method']}: best of several settings by {criterion}: {setting}")
    return best_runs(runs, criterion=criterion), notes
