import pytest

from weightclip.lab.results.metrics import METRICS, find_metric, rank_name


def test_metrics_are_found_by_their_column() -> None:
    assert all(find_metric(name) is metric for name, metric in METRICS.items())
    assert find_metric(rank_name(2)).label == "Rank of W2"
    with pytest.raises(KeyError):
        find_metric("nothing")


def test_labels_tell_metrics_apart() -> None:
    assert len({metric.label for metric in METRICS.values()}) == len(METRICS)
    assert "p = 2" in METRICS["lipschitz"].label
