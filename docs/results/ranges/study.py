"""Tables of the range study of docs/reproduction/ranges.md, from its records or from the saved tables.

    python docs/results/ranges/study.py docs/results/ranges/{choosing,reporting,controls}.parquet
    python docs/results/ranges/study.py STORE docs/results/ranges/controls.parquet --save docs/results/ranges

Seeds 0 and 1 choose the best single kappa and the best setting by layer of each cell; seeds 2 to 6 report. The score is
the online accuracy of the last row: the fraction of correct predictions over all samples of a run.
"""

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from weightclip.lab import load
from weightclip.lab.analysis import interval

CHOOSING, REPORTING = (0, 1), (2, 3, 4, 5, 6)
STEP_SIZES = {
    "input-permuted-mnist": {"sgd+wc": 0.001, "adam+wc": 0.0001},
    "label-permuted-emnist": {"sgd+wc": 0.01, "adam+wc": 0.0001},
    "label-permuted-mini-imagenet": {"sgd+wc": 0.01, "adam+wc": 0.0001},
}
"""Table 2's step sizes for clipping; runs with others belong to the controls."""
L2_INIT_STEP_SIZE = 0.001
"""Table 2's step size for L2 Init with Adam on the label-permuted problems."""
L2_INIT, BOX = "L2 Init on the output layer", "the box on the output layer at a step size of 0.001"
SETTINGS, REPORTED = 23, 7
CELL = ("problem", "method")
Scores = npt.NDArray[np.float64]
KEPT = ("accuracy", "online_accuracy", "loss", "plasticity", "weight_l2", "gradient_l2", "clipped")
DROPPED = ("weight_l1", "gradient_l1", "negative", "saturated", "lipschitz", "rank_1", "rank_2", "rank_3")


def scores(table: pl.DataFrame) -> pl.DataFrame:
    """A row per run: its cell, setting, family, seed and score in percent."""
    family = (
        pl.when(pl.col("kappa").is_not_null())
        .then(pl.lit("one kappa"))
        .when(pl.col("kappa_rule").str.starts_with("graded"))
        .then(pl.lit("graded"))
        .otherwise(pl.lit("by layer"))
    )
    return table.group_by(*CELL, _setting().alias("setting"), family.alias("family"), "seed").agg(_score())


def _setting() -> pl.Expr:
    """The range as `--kappa` takes it."""
    return pl.coalesce("kappa_rule", pl.col("kappa").cast(pl.String).str.replace(r"\.0$", ""))


def _score() -> pl.Expr:
    """The online accuracy of the last row, in percent."""
    return (pl.col("online_accuracy").sort_by("task").last().cast(pl.Float64) * 100).alias("score")


def complete(table: pl.DataFrame, seeds: tuple[int, ...], settings: int) -> pl.DataFrame:
    """The runs with these seeds of the cells that have all of them."""
    own = table.filter(pl.col("seed").is_in(seeds), pl.col("steps") == 400_000, _table_2())
    runs = own.group_by(CELL).agg(pl.col("identity").n_unique().alias("runs"))
    return own.join(runs.filter(pl.col("runs") == settings * len(seeds)), on=CELL, how="semi")


def _table_2() -> pl.Expr:
    """Whether a run has the step size of table 2."""
    return pl.any_horizontal(
        (pl.col("problem") == problem) & (pl.col("method") == method) & (pl.col("lr") == lr)
        for problem, methods in STEP_SIZES.items()
        for method, lr in methods.items()
    )


def choose(choosing: pl.DataFrame) -> dict[tuple[str, str], dict[str, str]]:
    """Cell -> the best single kappa and the best setting by layer."""
    means = scores(choosing).group_by(*CELL, "setting", "family").agg(pl.col("score").mean()).sort("score", "setting")
    best = means.group_by(*CELL, "family").agg(pl.col("setting").last()).filter(pl.col("family") != "graded")
    found: dict[tuple[str, str], dict[str, str]] = {}
    for problem, method, family, setting in best.iter_rows():
        found.setdefault((problem, method), {})[family] = setting
    return found


def report(reporting: pl.DataFrame, chosen: dict[tuple[str, str], dict[str, str]]) -> str:
    """A table in Markdown: the mean score of each reported setting, and its distance to the best single kappa."""
    lines = ["| cell | setting | online accuracy | minus the best single κ | of its score |", "|---|---|---|---|---|"]
    for cell, runs in scores(reporting).sort(*CELL).group_by(CELL, maintain_order=True):
        one = chosen[cell]["one kappa"]
        base = runs.filter(pl.col("setting") == one).sort("seed")["score"].to_numpy()
        for setting in (one, chosen[cell]["by layer"], *sorted(runs.filter(family="graded")["setting"].unique())):
            own = runs.filter(pl.col("setting") == setting).sort("seed")["score"].to_numpy()
            gap = "" if setting == one else _gap(own, base)
            ratio = f"{own.mean() / base.mean():.1%}"
            lines.append(f"| {', '.join(cell)} | `{setting}` | {own.mean():.2f}% | {gap} | {ratio} |")
    return "\n".join(lines)


def report_controls(table: pl.DataFrame, chosen: dict[tuple[str, str], dict[str, str]]) -> str:
    """A table in Markdown: the mean score by layer, and its distance to each control, paired by seed.

    A control is the best single kappa at a step size, or L2 Init on the output layer; seeds 0 and 1 choose its setting.
    """
    lines = ["| cell | by layer | control | setting | accuracy | by layer minus control |", "|---|---|---|---|---|---|"]
    for (problem, method), families in sorted(chosen.items()):
        table_2 = STEP_SIZES[problem][method]
        cell = table.filter(problem=problem, steps=400_000)
        clipped = cell.filter(pl.col("method") == method)
        own = _by_seed(clipped.filter(pl.col("lr") == table_2, _setting() == families["by layer"]))
        controls = {
            f"one κ, {factor} step size": _choose_and_report(clipped.filter(_near(lr), pl.col("kappa").is_not_null()))
            for factor, lr in (
                ("a third of the", table_2 / 3),
                ("table 2's", table_2),
                ("three times the", 3 * table_2),
            )
        }
        l2_init = cell.filter(pl.col("method") == method.replace("+wc", "+l2out"))
        controls[L2_INIT] = _choose_and_report(l2_init)
        if method == "adam+wc" and problem.startswith("label-permuted"):
            box = clipped.filter(_near(L2_INIT_STEP_SIZE), pl.col("kappa_rule").str.starts_with("hidden=inf"))
            controls[BOX] = _choose_and_report(box)
        for name, (setting, scores_of_control) in controls.items():
            if scores_of_control.shape != own.shape:
                lines.append(f"| {problem}, {method} | | {name} | {setting} | not complete | |")
                continue
            lines.append(
                f"| {problem}, {method} | {own.mean():.2f}% | {name} | {setting} | {scores_of_control.mean():.2f}% "
                f"| {_gap(own, scores_of_control)} |"
            )
        box, l2_init = (controls.get(name, ("", np.array([])))[1] for name in (BOX, L2_INIT))
        if box.size == l2_init.size > 0:
            lines.append(f"| {problem}, {method} | | {BOX}, minus {L2_INIT} | | | {_gap(box, l2_init)} |")
    return "\n".join(lines)


def _gap(own: Scores, other: Scores) -> str:
    """The difference of paired scores with its 95% interval."""
    found = interval(own - other)
    return f"{found.value:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


def _choose_and_report(runs: pl.DataFrame) -> tuple[str, Scores]:
    """The setting with the best mean score on seeds 0 and 1, and its scores on seeds 2 to 6."""
    if runs.is_empty():
        return "", np.array([])
    columns = [name for name in ("kappa", "kappa_rule", "decay", "lr") if runs[name].is_not_null().any()]
    means = (
        runs.filter(pl.col("seed").is_in(CHOOSING))
        .group_by(*columns, "seed")
        .agg(_score())
        .group_by(columns)
        .agg(pl.col("score").mean())
        .sort("score", *columns)
    )
    best = dict(zip(columns, means.row(-1), strict=False))
    names = {"kappa": "κ", "kappa_rule": "κ", "decay": "λ", "lr": "step size"}
    text = ", ".join(
        f"{names[name]} = {value:.4g}" if name != "kappa_rule" else f"`{value}`" for name, value in best.items()
    )
    return text, _by_seed(runs.filter(pl.all_horizontal(pl.col(name) == value for name, value in best.items())))


def _by_seed(runs: pl.DataFrame) -> Scores:
    """The scores of the reporting seeds, in order."""
    own = runs.filter(pl.col("seed").is_in(REPORTING)).group_by("seed").agg(_score()).sort("seed")
    return own["score"].to_numpy()


def _near(lr: float) -> pl.Expr:
    return (pl.col("lr") / lr - 1).abs() < 1e-6


def save(table: pl.DataFrame, path: Path) -> None:
    """Write the columns that the study needs."""
    small = table.drop(DROPPED, strict=False).with_columns(pl.col(KEPT).cast(pl.Float32).round_sig_figs(5))
    small.sort(*CELL, "identity", "task").write_parquet(path, compression="zstd", compression_level=19)


def main() -> None:
    """Print the chosen settings and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, help="a store, or saved tables")
    parser.add_argument("--save", type=Path, metavar="DIR", help="write the three tables")
    arguments = parser.parse_args()
    table = load(*arguments.results)
    choosing, reporting = complete(table, CHOOSING, SETTINGS), complete(table, REPORTING, REPORTED)
    controls = table.filter(~_table_2() | pl.col("method").str.ends_with("+l2out"))
    if arguments.save:
        for name, runs in (("choosing", choosing), ("reporting", reporting), ("controls", controls)):
            if not runs.is_empty():
                save(runs, arguments.save / f"{name}.parquet")
        return
    chosen = choose(choosing)
    for cell, families in sorted(chosen.items()):
        print(", ".join(cell), *(f"{family}: {setting}" for family, setting in sorted(families.items())), sep="; ")
    print(report(reporting, chosen))
    if not controls.is_empty():
        print(report_controls(pl.concat([choosing, reporting, controls], how="diagonal_relaxed"), chosen))


if __name__ == "__main__":
    main()
