"""Draw every figure of the documentation from its committed table: `make figures`, or one: `python redraw.py NAME`."""

import shutil
import sys
import tempfile
from pathlib import Path

from weightclip.lab import load
from weightclip.lab.analysis.setups import where
from weightclip.lab.paper import find_figure
from weightclip.lab.plotting.figure import save
from weightclip.lab.records.schema import Criterion

RESULTS = Path(__file__).parent
STREAMS, WALKER, HOPPER = "streaming_figures/runs.parquet", "policy/runs.parquet", "policy/laptop_runs.parquet"
MINATAR, COVARIANCE = "replay/minatar_runs.parquet", "replay/minatar_covariance.parquet"

FIGURES: list[tuple[str, str, str, dict[str, str], Criterion]] = [
    ("loss-of-plasticity", STREAMS, "../loss_of_plasticity", {"method": "adam,adam+wc"}, "auc"),
    ("streaming", STREAMS, "streaming_figures/streaming", {}, "auc"),
    ("streaming-diagnostics", STREAMS, "streaming_figures/streaming-diagnostics", {}, "auc"),
    ("label-permuted-diagnostics", STREAMS, "streaming_figures/label-permuted-diagnostics", {}, "auc"),
    ("streaming-authors", "evidence/streaming_50k.parquet", "evidence/streaming-authors", {}, "auc"),
    ("streaming-sensitivity", "search/runs.parquet", "search/streaming-sensitivity", {}, "auc"),
    ("streaming-ranges", "ranges/choosing.parquet", "ranges/streaming-ranges", {}, "auc"),
    *((name, WALKER, f"policy/{name}", {}, "auc") for name in ("policy-return", "policy-kl", "policy-diagnostics")),
    ("policy-seeds", WALKER, "policy/policy-seeds", {}, "auc"),
    *((name, HOPPER, f"policy/laptop/{name}", {}, "auc") for name in ("policy-return", "policy-kl", "policy-seeds")),
    *((name, MINATAR, f"replay/{name}", {}, "final") for name in ("replay-return", "replay-sensitivity")),
    ("gradient-covariance-clustered", COVARIANCE, "replay/gradient-covariance-clustered", {}, "auc"),
    ("warm-start", "warm_start/laptop_runs.parquet", "warm_start/warm-start", {}, "auc"),
    ("warm-start-authors", "warm_start/paper_runs.parquet", "warm_start/warm-start-authors", {}, "auc"),
]
"""Name of the figure, its table, its path without suffix, the runs to draw, and the criterion."""


def draw(name: str, table: str, target: str, chosen: dict[str, str], criterion: Criterion) -> None:
    """Write the picture and the CSV file of a figure."""
    figure = find_figure(name)
    drawing = figure.draw(where(load(RESULTS / table, table=figure.table), chosen), criterion)
    with tempfile.TemporaryDirectory() as directory:
        for path in save(drawing, Path(directory), name)[1:]:
            shutil.copyfile(path, (RESULTS / target).with_suffix(path.suffix))
    print(target)


for one in FIGURES:
    if len(sys.argv) == 1 or one[0] in sys.argv[1:]:
        draw(*one)
