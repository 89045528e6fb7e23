"""The authors' curves of warm starting, and a comparison with them.

`published_curves.csv` has the means of their logs over 10 seeds, with the standard error of the test accuracy, at
every tenth epoch from the first on. Their two-stage runs have 600 epochs of 25,000 images; their name for clipping
once is @300.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

import polars as pl

from weightclip.lab.analysis.curves import curves
from weightclip.lab.analysis.setups import main_setup
from weightclip.lab.callbacks import Event, ignore
from weightclip.lab.experiment import OTHER
from weightclip.lab.experiments.warm_start.config import NAME, PAPER, PAPER_METHODS, Config, resolve
from weightclip.lab.experiments.warm_start.metrics import SCHEMA
from weightclip.lab.methods import SWITCH
from weightclip.lab.records.columns import SCHEMA_TYPE

IMAGES = 50_000
_STAGES = {"one_stage": 1, "two_stage": 2}
_KEY = ("method", "stages", "kappa", "epoch")
_SAME = ("variant", "lr", "images", "test_images", "batch_size", "width", "stem", "augment", "precision")
"""Fields that must equal the authors' for a comparison; the number of epochs may differ."""


@cache
def authors_curves() -> pl.DataFrame:
    """The columns method, stages, kappa, epoch, epochs (per run), test_accuracy, test_error, train_accuracy, seeds."""
    text = (files(__package__) / "published_curves.csv").read_bytes()
    return pl.read_csv(text).select(
        pl.col("method").str.replace("@300", SWITCH, literal=True),
        pl.col("schedule").replace_strict(_STAGES, return_dtype=pl.Int64).alias("stages"),
        pl.col("kappa").cast(pl.Float64),
        pl.col("epoch_of_run").alias("epoch"),
        pl.col("epochs_in_run").alias("epochs"),
        pl.col("test_accuracy_mean").alias("test_accuracy"),
        pl.col("test_accuracy_se").alias("test_error"),
        pl.col("train_accuracy_mean").alias("train_accuracy"),
        "seeds",
    )


def authors_table() -> pl.DataFrame:
    """The authors' curves as a tidy table in which each mean is a run, for selection by either criterion."""
    facts = resolve(Config(method=PAPER_METHODS[0], variant=PAPER)).facts()
    shared = {name: facts[name] for name in ("variant", "lr", "images", "batch_size", "width", "stem")}
    found = authors_curves()
    identity = pl.concat_str("method", "stages", pl.col("kappa").cast(pl.String).fill_null("-"), separator=" ")
    return found.select(
        pl.lit(NAME).alias("experiment"),
        pl.lit(NAME).alias("problem"),
        "method",
        pl.lit(0).alias("seed"),
        *(pl.lit(value).alias(name) for name, value in shared.items()),
        "stages",
        "kappa",
        pl.lit("cifar10").alias("data"),
        pl.lit("directory").alias("data_kind"),
        pl.lit("authors").alias("checksum"),
        pl.lit(True).alias("official"),
        pl.lit(0.0).alias("seconds"),
        *(pl.lit(None, pl.String).alias(name) for name in ("resumed", "deviations", "paper_setting")),
        pl.lit(json.dumps(SCHEMA.as_dict())).cast(SCHEMA_TYPE).alias("schema"),
        identity.alias("identity"),
        "epoch",
        (pl.col("epoch") * IMAGES // pl.col("stages")).alias("samples"),
        "test_accuracy",
        "train_accuracy",
    )


def compare_with_authors(runs: pl.DataFrame, on_note: Event = ignore) -> pl.DataFrame:
    """The test accuracy of runs and of the authors' logs, by method, stages, kappa and epoch.

    A shorter run is compared as long as it is in the same stage as the authors' run.

    Args:
        runs: a tidy table with runs of the paper's variant at its scale.
        on_note: called with a note on runs that are skipped because of their length.

    Returns:
        method, stages, kappa, epoch, mean, low, high, seeds, authors, authors_error, difference (mean - authors).
    """
    reference = resolve(Config(method=PAPER_METHODS[0], variant=PAPER)).facts()
    selected = runs.filter(experiment=NAME)
    if not selected.is_empty():
        same = [pl.col(name) == reference[name] for name in _SAME]
        bare = [pl.col(name).is_null() for name in selected.columns if name.startswith(OTHER)]
        selected = selected.filter(*same, *bare, pl.col("method").is_in(PAPER_METHODS))
    if selected.is_empty():
        raise ValueError(
            f"results: got no runs of {NAME} with variant paper at the paper's scale, expected at least one"
        )
    theirs_stage = 1 + (pl.col("epoch") - 1) // reference["epochs"]
    selected = main_setup(selected, on_note).filter(pl.col("stage") == theirs_stage)
    theirs = authors_curves().rename({"test_accuracy": "authors", "test_error": "authors_error"})
    # Kappa has no effect without clipping, and before clipping once.
    found = curves(selected, "test_accuracy").select(*_KEY, "mean", "low", "high", "seeds")
    joined = found.join(theirs.select(*_KEY, "authors", "authors_error"), on=_KEY, how="left", nulls_equal=True)
    joined = joined.filter(pl.col("authors").is_not_null().any().over(_KEY[:-1]))  # the authors' settings
    return joined.with_columns((pl.col("mean") - pl.col("authors")).alias("difference")).sort(_KEY, nulls_last=True)
