import numpy as np
import pytest

from weightclip.lab.experiments.dqn.replay_buffer import SumTree


@pytest.mark.parametrize("size", [1, 2, 5, 64, 100])
def test_every_node_is_the_sum_of_its_children(size: int) -> None:
    tree, generator = SumTree(size), np.random.default_rng(size)
    expected = np.zeros(size)
    for _ in range(50):
        places = generator.integers(size, size=3)
        values = generator.random(3)
        for place, value in zip(places, values):  # the last value of a repeated index is used
            expected[place] = value
        tree[places] = values
        assert tree.total == pytest.approx(expected.sum())
    np.testing.assert_allclose(tree[np.arange(size)], expected)


def test_leaves_are_sampled_in_proportion_to_their_priorities() -> None:
    tree, generator = SumTree(5), np.random.default_rng(0)
    priorities = np.array([0.0, 1.0, 4.0, 0.0, 5.0])
    tree[np.arange(5)] = priorities
    counts = np.bincount(np.concatenate([tree.draw(10, generator) for _ in range(2000)]), minlength=5)
    assert counts[0] == counts[3] == 0
    np.testing.assert_allclose(counts / counts.sum(), priorities / 10, atol=0.01)


def test_each_segment_of_the_total_yields_one_leaf() -> None:
    tree = SumTree(8)
    tree[np.arange(8)] = 1.0
    assert sorted(tree.draw(8, np.random.default_rng(0)).tolist()) == list(range(8))


def test_rounding_never_samples_a_leaf_without_priority() -> None:
    tree, generator = SumTree(1000), np.random.default_rng(1)
    some = generator.permutation(1000)[:100]
    tree[some] = generator.random(100) * 10.0 ** generator.integers(-12, 6, 100)
    for _ in range(200):
        assert np.isin(tree.draw(32, generator), some).all()
