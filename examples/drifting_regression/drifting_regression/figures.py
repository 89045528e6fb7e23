"""The experiment's figure: the loss by task. It reads tables and does not import training code."""

import polars as pl

from drifting_regression.config import NAME, SCHEMA
from weightclip.lab.analysis.best import chosen_runs
from weightclip.lab.analysis.curves import curves
from weightclip.lab.plotting.captions import caption, seeds_caption, styles_of
from weightclip.lab.plotting.figure import Drawing, Figure
from weightclip.lab.plotting.panels import add_legend, draw_panel, panels, set_count_axis
from weightclip.lab.records.schema import Criterion


def draw_loss(table: pl.DataFrame, criterion: Criterion) -> Drawing:
    """Draw the loss of each method at its best setting."""
    runs, notes = chosen_runs(table, NAME, criterion)
    data = curves(runs, "loss").select("method", "task", "mean", "low", "high", "seeds")
    styles = styles_of(runs)
    with panels(1, 1, 3.4, 2.0) as (picture, ((axes,),)):
        draw_panel(axes, data, "task", SCHEMA.metrics["loss"], styles)
        set_count_axis(axes, "Task")
        axes.set_ylabel("Loss")
        add_legend(picture, styles.values(), caption(seeds_caption(data), runs=runs))
    return Drawing(picture, data, tuple(notes))


FIGURES = (Figure("drifting-regression", "", "Loss by task on a target that drifts", draw_loss, NAME),)
