import math
from pathlib import Path

import polars as pl
from report_store import write_run

from weightclip.lab.report.content import gather


def findings(store: Path) -> list[str]:
    return [text.replace("\N{NO-BREAK SPACE}", " ") for text in gather(store).findings]


def write_methods(store: Path, **scores: float) -> None:
    """Write three seeds of each method; the standard error of a score is 0.06 percentage points."""
    for method, accuracy in scores.items():
        kappa = 2.0 if "wc" in method else None
        for seed in range(3):
            write_run(store, method.replace("_", "+"), seed=seed, accuracy=accuracy, kappa=kappa)


def test_findings_name_the_best_the_second_best_and_clipping(tmp_path: Path) -> None:
    write_methods(tmp_path, sgd=0.5, sgd_sp=0.8, sgd_l2init=0.7, sgd_wc=0.6)
    assert findings(tmp_path) == [
        "On input-permuted-mnist, SGD + S&P has the highest accuracy, 80.10% ± 0.06% (area under the curve, 3 seeds); "
        "next is SGD + L2 Init, 70.10% ± 0.06%; SGD + WC (κ = 2) has 60.10% ± 0.06%, 10.00 points above SGD alone."
    ]


def test_findings_report_if_clipping_is_worse(tmp_path: Path) -> None:
    write_methods(tmp_path, adam=0.7, adam_sp=0.8, sgd=0.75, adam_wc=0.6)
    (sentence,) = findings(tmp_path)
    assert sentence.endswith("Adam + WC (κ = 2) has 60.10% ± 0.06%, 10.00 points below Adam alone.")


def test_scores_within_two_standard_errors_are_called_close(tmp_path: Path) -> None:
    write_methods(tmp_path, sgd=0.7, adam=0.7005)
    (sentence,) = findings(tmp_path)
    assert sentence.endswith("; close to it is SGD, 70.10% ± 0.06%.")


def test_a_single_method_has_a_score_and_a_diverged_one_no_finding(tmp_path: Path) -> None:
    write_run(tmp_path, "sgd", accuracy=0.5)
    table = pl.DataFrame({"task": [1, 2], "samples": [100, 200], "accuracy": [math.nan, math.nan]})
    write_run(tmp_path, "sgd", problem="label-permuted-emnist", table=table)
    expected = "On input-permuted-mnist, the accuracy of SGD is 50.00% (area under the curve, 1 seed)."
    assert findings(tmp_path) == [expected]
