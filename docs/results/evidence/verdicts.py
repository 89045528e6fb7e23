"""The measures and verdicts of the protocols in docs/reproduction/evidence.md, from saved tables or stores.

    python docs/results/evidence/verdicts.py 3 docs/results/evidence/streaming_20_seeds.parquet
    python docs/results/evidence/verdicts.py 6 STORE --save docs/results/evidence/mini_imagenet_1m.parquet

Every protocol has a function: table -> a table of measures with 95% Student intervals over seeds, and verdicts.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
from scipy.stats import ttest_ind

from weightclip.lab import load
from weightclip.lab.analysis import interval, trend

Stretch = tuple[int, int]
"""First and last task."""


def streams(table: pl.DataFrame, before: Stretch, after: Stretch) -> pl.DataFrame:
    """Per method: the change of accuracy between two stretches of tasks, and the slope over the last half."""
    per_seed = (
        table.filter(pl.col("task").is_between(*before) | pl.col("task").is_between(*after))
        .group_by("method", "seed", late=pl.col("task") >= after[0])
        .agg(pl.col("accuracy").cast(pl.Float64).mean() * 100)
        .sort("late")
        .group_by("method", "seed")
        .agg(pl.col("accuracy").diff().last().alias("change"))
    )
    slopes = {row["method"]: row for row in trend(table).iter_rows(named=True)}
    rows = []
    for (method,), runs in per_seed.sort("method", "seed").group_by("method", maintain_order=True):
        change, slope = interval(runs["change"]), slopes[method]
        low, high = change.low, change.high
        verdict = "maintains" if low > -1 else "loses" if high < -1 else "undecided"
        if low > 0 and slope["low"] > 0:
            verdict += ", keeps improving"
        rows.append(
            {
                "method": method,
                "seeds": len(runs),
                "change": _text(change.value, low, high),
                "slope": _text(*(100 * slope[name] for name in ("slope", "low", "high"))),
                "verdict": verdict,
            }
        )
    return pl.DataFrame(rows)


def weight_norms(table: pl.DataFrame) -> pl.DataFrame:
    """Per method: the ratio of the weight norm in the last task to that in the first.

    For each other method, the p-values of Welch's tests that SGD's and Adam's ratios exceed it: those of the methods
    with the same optimizer, and of both for Madam.
    """
    ratio = pl.col("weight_l2").cast(pl.Float64).sort_by("task")
    runs = table.group_by("method", "seed").agg((ratio.last() / ratio.first()).alias("ratio")).sort("method", "seed")
    ratios = {method: own["ratio"].to_numpy() for (method,), own in runs.group_by("method", maintain_order=True)}
    rows = []
    for method, own in ratios.items():
        plain = ["sgd", "adam"] if method == "madam" else [method.partition("+")[0]]
        tests = {one: ttest_ind(ratios[one], own, equal_var=False, alternative="greater").pvalue for one in plain}
        estimate = interval(own)
        rows.append(
            {
                "method": method,
                "ratio": _text(estimate.value, estimate.low, estimate.high, ".2f"),
                "largest p": None if method in plain else max(tests.values()),
            }
        )
    return pl.DataFrame(rows)


def policy_kl(table: pl.DataFrame) -> pl.DataFrame:
    """Per arm: approximate KL and return over the last twentieth, and log(KL / KL of Adam), paired by seed."""
    table = _with_columns(table, "kappa_rule")
    log_std = pl.col("kappa_rule").cast(pl.String).str.contains("logstd").fill_null(value=False)
    arm = (
        pl.when(pl.col("method") == "adam")
        .then(pl.lit("adam"))
        .when(log_std)
        .then(pl.lit("log-std alone"))
        .otherwise("wc, " + pl.col("bounds").fill_null("paper"))
    )
    last = pl.col("iteration") > pl.col("iteration").max().over("identity") * 19 / 20
    mean = pl.col("approx_kl", "return").cast(pl.Float64).mean()
    runs = table.filter(last).group_by("seed", arm=arm).agg(mean).sort("arm", "seed")
    plain = runs.filter(arm="adam")["approx_kl"].log().to_numpy()
    rows = []
    for (name,), own in runs.group_by("arm", maintain_order=True):
        ratio, returns = interval(own["approx_kl"].log().to_numpy() - plain), interval(own["return"])
        rows.append(
            {
                "arm": name,
                "seeds": len(own),
                "approximate KL": own["approx_kl"].mean(),
                "log ratio to adam": _text(ratio.value, ratio.low, ratio.high),
                "return": _text(returns.value, returns.low, returns.high, ",.0f"),
                "verdict": "reduces" if ratio.high < 0 else "",
            }
        )
    return pl.DataFrame(rows)


def warm_start(table: pl.DataFrame) -> pl.DataFrame:
    """Per arm: accuracy over the last five epochs, and the difference to SGD in as many stages, paired by seed.

    With runs on validation images: the mean accuracy of each kappa, which chooses it.
    """
    last = pl.col("epoch") > pl.col("epoch").max().over("identity") - 5
    score = pl.col("test_accuracy").cast(pl.Float64).mean() * 100
    arm = ("method", "stages", "kappa", "init_kappa", "validation")
    runs = (
        _with_columns(table, "init_kappa", "validation")
        .filter(last)
        .group_by(*arm, "seed")
        .agg(score.alias("accuracy"))
    )
    runs = runs.sort(*arm, "seed", nulls_last=True)
    rows = []
    for key, own in runs.group_by(arm, maintain_order=True):
        accuracy = interval(own["accuracy"])
        plain = runs.filter(pl.col("method") == "sgd", pl.col("stages") == key[1], pl.col("init_kappa").is_null())
        shared = own.join(plain, on="seed", suffix="_sgd").sort("seed")
        gain = interval((shared["accuracy"] - shared["accuracy_sgd"]).to_numpy()) if len(shared) > 1 else None
        rows.append(
            dict(zip(arm, key, strict=True))
            | {
                "seeds": len(own),
                "accuracy": _text(accuracy.value, accuracy.low, accuracy.high, ".2f"),
                "minus SGD": "" if gain is None else _text(gain.value, gain.low, gain.high),
            }
        )
    return pl.DataFrame(rows)


def _with_columns(table: pl.DataFrame, *names: str) -> pl.DataFrame:
    """The table with these columns: null in all rows if no run has the option."""
    return table.with_columns(pl.lit(None).alias(name) for name in names if name not in table.columns)


def _text(value: float, low: float, high: float, form: str = "+.2f") -> str:
    return f"{value:{form}} ({low:{form}}, {high:{form}})"


PROTOCOLS: dict[int, list[Callable[[pl.DataFrame], pl.DataFrame]]] = {
    3: [lambda table: streams(table, (11, 30), (181, 200)), weight_norms],
    4: [policy_kl],
    6: [lambda table: streams(table, (21, 60), (361, 400))],
    7: [warm_start],
}
PROBLEMS = {3: "input-permuted-mnist", 4: "policy-collapse", 6: "label-permuted-mini-imagenet", 7: "warm-start"}
"""The problem of each protocol: the measures would average over several."""
DROPPED = ("weight_l1", "gradient_l1", "negative", "saturated", "lipschitz", "rank_1", "rank_2", "rank_3")
"""Metrics of the streams that no protocol uses."""


def save(table: pl.DataFrame, path: Path) -> None:
    """Write a table with five significant digits."""
    numbers = pl.selectors.float() & ~pl.selectors.by_name("lr", "kappa", "decay", "sigma", require_all=False)
    small = table.drop(DROPPED, strict=False).with_columns(numbers.cast(pl.Float32).round_sig_figs(5))
    small.write_parquet(path, compression="zstd", compression_level=19)


def check_problem(table: pl.DataFrame, protocol: int) -> None:
    """Raise a ValueError for runs of other problems than the protocol's."""
    found = sorted(table["problem"].unique())
    if found != [PROBLEMS[protocol]]:
        raise ValueError(f"results: got runs of {', '.join(found)}, expected {PROBLEMS[protocol]} alone")


def main() -> None:
    """Print the tables of a protocol."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("protocol", type=int, choices=PROTOCOLS)
    parser.add_argument("results", nargs="+", type=Path, help="stores or saved tables")
    parser.add_argument("--save", type=Path, metavar="FILE", help="also write the runs into one table")
    arguments = parser.parse_args()
    table = load(*arguments.results)
    check_problem(table, arguments.protocol)
    if arguments.save:
        save(table, arguments.save)
    with pl.Config(tbl_rows=-1, tbl_cols=-1, fmt_str_lengths=80, tbl_width_chars=200, tbl_hide_column_data_types=True):
        for measure in PROTOCOLS[arguments.protocol]:
            print(measure(table))


if __name__ == "__main__":
    np.seterr(all="raise")
    main()
