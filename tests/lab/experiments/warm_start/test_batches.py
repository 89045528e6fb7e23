import numpy as np
import pytest
import torch
from synthetic_images import images

from weightclip.lab.experiments.warm_start.batches import (
    MEAN,
    STD,
    Pixels,
    augmented,
    epoch_batches,
    halves,
    rows_to_test,
)

CPU = torch.device("cpu")


def test_batches_are_normalized_with_the_papers_statistics() -> None:
    split = images(10, 1)
    x, y = Pixels(split, CPU).batch(torch.tensor([7, 2]))
    expected = (split.pixels[[7, 2]] / 255 - np.array(MEAN)) / np.array(STD)
    np.testing.assert_allclose(x.permute(0, 2, 3, 1), expected, rtol=1e-4, atol=1e-5)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert x.dtype == torch.float32
    assert y.tolist() == split.labels[[7, 2]].tolist()


def test_the_two_halves_are_disjoint_and_cover_the_data() -> None:
    first, second = halves(100, 100, 2, seed=3)
    assert len(first) == len(second) == 50
    assert sorted(torch.cat([first, second]).tolist()) == list(range(100))
    (whole,) = halves(100, 100, 1, seed=3)
    assert whole.tolist() == torch.cat([first, second]).tolist()
    assert not torch.equal(halves(100, 100, 2, seed=4)[0], first)


def test_a_subset_is_drawn_at_random() -> None:
    (chosen,) = halves(1000, 100, 1, seed=0)
    assert len(set(chosen.tolist())) == 100
    assert chosen.max() > 500


def test_every_epoch_has_all_rows_in_a_new_order() -> None:
    rows = torch.arange(20, 40)
    one, two = (torch.cat(list(epoch_batches(rows, 8, 0, epoch))) for epoch in (0, 1))
    assert sorted(one.tolist()) == sorted(two.tolist()) == rows.tolist()
    assert one.tolist() != two.tolist()
    assert [len(part) for part in epoch_batches(rows, 8, 0, 0)] == [8, 8, 4]


def test_orders_differ_between_seeds() -> None:
    rows = torch.arange(20)
    one, other = (torch.cat(list(epoch_batches(rows, 8, seed, 0))) for seed in (0, 1))
    assert one.tolist() != other.tolist()


def test_a_last_batch_of_one_image_is_dropped() -> None:
    assert [len(part) for part in epoch_batches(torch.arange(9), 8, 0, 0)] == [8]


def test_all_seeds_use_the_same_test_images() -> None:
    assert rows_to_test(20, 20).tolist() == list(range(20))
    assert rows_to_test(20, 5).tolist() == rows_to_test(20, 5).tolist()


def test_augmentation_shifts_and_flips_each_image_independently() -> None:
    image = torch.arange(32.0 * 32).view(1, 1, 32, 32).expand(200, 3, 32, 32) + 1
    moved = augmented(image, 0, 0, 0)
    assert moved.shape == image.shape
    seen = {"down": set(), "right": set(), "mirrored": 0}
    for one in moved[:, 0]:
        inside = one[10, 10:14]
        step = inside[1] - inside[0]
        seen["mirrored"] += int(step < 0)
        where = inside[0] - 1
        column = int(where % 32) if step > 0 else 31 - int(where % 32)
        seen["right"].add(column - 10)
        seen["down"].add(int(where // 32) - 10)
    assert seen["down"] == set(range(-4, 5))
    assert len(seen["right"]) >= 9
    assert 70 < seen["mirrored"] < 130
    assert torch.equal(moved, augmented(image, 0, 0, 0))
    for seed, epoch, first in ((0, 0, 8), (0, 1, 0), (1, 0, 0)):
        assert not torch.equal(moved, augmented(image, seed, epoch, first))


def test_augmented_images_are_padded_with_zeros() -> None:
    moved = augmented(torch.ones(100, 3, 32, 32), 0, 0, 0)
    assert set(moved.unique().tolist()) == {0.0, 1.0}
    assert moved[:, :, 4:-4, 4:-4].min() == 1.0
    with pytest.raises(AssertionError):
        torch.testing.assert_close(moved, torch.ones_like(moved))
