"""Components of the fused loop: noise, exp, log, sign."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numba import njit
from scipy import stats

from weightclip.lab.experiments.streaming import loop


def over(function: Callable[[float], float], x: np.ndarray) -> np.ndarray:
    @njit
    def each(x: np.ndarray) -> np.ndarray:
        y = np.empty_like(x)
        for i in range(x.size):
            y[i] = function(x[i])
        return y

    return each(x)


@njit
def _fill(out: np.ndarray, bits: np.ndarray, seed: int, step: int, start: int) -> None:
    loop.fill_normal(out, bits, seed, step, start)


def normal(size: int, seed: int = 0, step: int = 1, start: int = 0) -> np.ndarray:
    out = np.empty(size, np.float32)
    _fill(out, np.empty((2, size), np.uint32), seed, step, start)
    return out


def test_exp_and_log_are_accurate_in_float32() -> None:
    x = np.linspace(-80, 80, 100_001, dtype=np.float32)
    np.testing.assert_allclose(over(loop.fast_exp, x), np.exp(x.astype(np.float64)), rtol=2e-7)
    x = np.exp(np.linspace(-60, 60, 100_001)).astype(np.float32)
    np.testing.assert_allclose(over(loop.fast_log, x), np.log(x.astype(np.float64)), rtol=2e-7, atol=2e-7)


def test_exp_and_log_at_the_extremes() -> None:
    x = np.array([math.nan, math.inf, -math.inf, 1000.0, -1000.0, 0.0], np.float32)
    np.testing.assert_array_equal(over(loop.fast_exp, x), [math.nan, math.inf, 0.0, math.inf, 0.0, 1.0])
    x = np.array([math.nan, math.inf, -math.inf, 0.0, -1.0, 1.0], np.float32)
    np.testing.assert_array_equal(over(loop.fast_log, x), [math.nan, math.inf, math.nan, -math.inf, math.nan, 0.0])


def test_sign() -> None:
    x = np.array([3.0, -0.5, 0.0, 1e-30, -1e-30], np.float32)
    np.testing.assert_array_equal(over(loop.sign, x), np.sign(x))


def test_the_noise_is_standard_normal() -> None:
    draws = np.concatenate([normal(784, step=step) for step in range(2000)]).astype(np.float64)
    n = draws.size
    assert abs(draws.mean()) < 4 / math.sqrt(n)
    assert abs(draws.var() - 1) < 4 * math.sqrt(2 / n)
    assert abs(stats.skew(draws)) < 4 * math.sqrt(6 / n)
    assert abs(stats.kurtosis(draws)) < 4 * math.sqrt(24 / n)
    assert stats.kstest(draws[:200_000], "norm").pvalue > 0.001
    # Tails: about the expected number beyond 4 standard deviations.
    expected = n * 2 * stats.norm.sf(4)
    assert abs((np.abs(draws) > 4).sum() - expected) < 4 * math.sqrt(expected)


@pytest.mark.parametrize("shift", [1, 2, 391, 392, 393])
def test_the_noise_of_neighboring_entries_is_independent(shift: int) -> None:
    draws = np.stack([normal(784, step=step) for step in range(500)]).astype(np.float64)
    a, b = draws[:, :-shift].ravel(), draws[:, shift:].ravel()
    for left, right in ((a, b), (a**2 - 1, b**2 - 1), (np.sign(a), np.sign(b))):
        assert abs(np.corrcoef(left, right)[0, 1]) < 4.5 / math.sqrt(a.size)


def test_the_noise_of_other_steps_rows_and_seeds_is_independent() -> None:
    base = normal(10_000)
    for other in (normal(10_000, step=2), normal(10_000, start=784), normal(10_000, seed=1)):
        assert abs(np.corrcoef(base, other)[0, 1]) < 4 / 100
    np.testing.assert_array_equal(base, normal(10_000))


def test_arrays_of_every_size_are_filled() -> None:
    for size in (2, 4, 10, 150, 300):
        assert np.isfinite(normal(size)).all()
        assert (normal(size) != 0).all()
