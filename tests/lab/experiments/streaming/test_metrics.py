from weightclip.lab.experiments.streaming.experiment import EXPERIMENT
from weightclip.lab.experiments.streaming.schema import METRICS, rank_name


def test_metrics_are_found_by_their_column() -> None:
    assert all(EXPERIMENT.metric(name) is metric for name, metric in METRICS.items())
    assert EXPERIMENT.metric(rank_name(2)).label == "Rank of W2"
    assert not EXPERIMENT.metric("samples").help


def test_labels_tell_metrics_apart() -> None:
    assert len({metric.label for metric in METRICS.values()}) == len(METRICS)
    assert "p = 2" in METRICS["lipschitz"].label
