from tiny import tiny_dataset

from weightclip.lab.streaming.config import Config
from weightclip.lab.streaming.cost import estimate

DATA = tiny_dataset()


def test_a_longer_run_costs_more_time_and_space() -> None:
    short, long = (
        estimate(Config("input-permuted-mnist", "sgd", steps=steps, period=100, hidden=(5,), backend="reference"), DATA)
        for steps in (1_000, 1_000_000)
    )
    assert 0 < short.seconds < long.seconds
    assert 1_000 < short.bytes < long.bytes < 100_000_000
