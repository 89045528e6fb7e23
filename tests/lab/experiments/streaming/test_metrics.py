from weightclip.lab.experiments.streaming.experiment import EXPERIMENT
from weightclip.lab.experiments.streaming.metrics import METRICS, rank_name, with_ranks


def test_metrics_are_found_by_their_column() -> None:
    schema = with_ranks(EXPERIMENT.schema, layers=3)
    assert all(schema.metric(name) is metric for name, metric in METRICS.items())
    assert [schema.metric(rank_name(layer)).label for layer in (1, 2, 3)] == [f"Rank of W{k}" for k in (1, 2, 3)]
    assert not schema.metric("samples").help


def test_labels_distinguish_metrics() -> None:
    assert len({metric.label for metric in METRICS.values()}) == len(METRICS)
    assert "p = 2" in METRICS["lipschitz"].label
