"""The verdict of a monitor: on streams with and without loss of plasticity, and on made measurements."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import weightclip as wc
from weightclip.lab.data.mnist import MNIST
from weightclip.monitor import LossPair, Measurement, judge


def learn_permuted_digits(kappa: Any = None) -> tuple[wc.Monitor, float]:
    """Learn digits whose labels are permuted every 300 steps; also return the accuracy in the last third."""
    assert MNIST.bundled is not None
    digits = MNIST.bundled(MNIST, "train")
    images = torch.from_numpy(digits.inputs).float().view(-1, 1, 28, 28) / 255
    x, y = nn.functional.avg_pool2d(images, 2).flatten(1), torch.from_numpy(digits.labels).long()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(196, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if kappa is not None:
        wc.clip_weights(optimizer, model, kappa)
    batch: dict[str, Tensor] = {}
    monitor = wc.Monitor(optimizer, model, every=10, closure=lambda: cross_entropy(model(batch["x"]), batch["y"]))
    right = []
    for _ in range(20):
        labels = torch.randperm(10, generator=generator)
        for i in torch.randint(len(x), (300, 1), generator=generator):
            batch |= {"x": x[i], "y": labels[y[i]]}
            logits = model(batch["x"])
            right.append(float(logits.argmax(1) == batch["y"]))
            optimizer.zero_grad()
            cross_entropy(logits, batch["y"]).backward()
            optimizer.step()
    return monitor, sum(right[-2000:]) / 2000


def test_the_suggested_range_prevents_the_loss_of_plasticity() -> None:
    monitor, accuracy = learn_permuted_digits()
    verdict = monitor.verdict()
    assert verdict.problem
    assert "kappa={'output': 1.0}), because new targets rewrite the output layers" in verdict.suggestion
    assert verdict.kappa == {"output": 1.0}
    clipped, better = learn_permuted_digits(verdict.kappa)
    assert better > accuracy + 0.3  # about 0.77 and 0.14
    assert clipped.verdict().text.startswith("verdict: no problem")
    assert clipped.verdict().certain


@pytest.mark.parametrize("kind", ["labels", "values"])
@pytest.mark.parametrize("schedule", [True, False])
def test_a_healthy_network_on_stationary_noisy_data_has_no_certain_problem(kind: str, schedule: bool) -> None:
    """Plasticity falls, because little can be learned from noise: noisy labels, or values without any signal."""
    torch.manual_seed(0)
    w, steps = torch.randn(20, 5), 800
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    batch: dict[str, Tensor] = {}

    def loss() -> Tensor:
        if kind == "values":
            return (model(batch["x"]) - batch["noise"]).square().mean()
        return cross_entropy(model(batch["x"]), batch["y"])

    monitor = wc.Monitor(optimizer, model, every=5, closure=loss)
    for _ in range(steps):
        x, noise, flipped = torch.randn(64, 20), torch.randn(64, 5), torch.rand(64) < 0.6
        y = torch.where(flipped, torch.randint(5, (64,)), (x @ w).argmax(1))
        batch |= {"x": x, "y": y, "noise": noise}
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        if schedule:
            cosine.step()
    assert not monitor.verdict().problem, monitor.verdict().text
    assert monitor.table()[-1]["lr_ratio"] < 0.01 or not schedule


def rows(values: dict[str, tuple[float, float]], steps: int = 6) -> list[Measurement]:
    """Create measurements of one layer that change linearly from the first value to the last."""
    usual = {
        "norm_ratio": (1.0, 1.0),
        "effective_rank": (10.0, 10.0),
        "relative_update": (0.1, 0.1),
        "dormant": (0.0, 0.0),
    }
    found = []
    for step in range(steps):
        at = step / (steps - 1)
        each = {name: (1 - at) * first + at * last for name, (first, last) in {**usual, **values}.items()}
        found.append(Measurement(step + 1, "0.weight", beyond_1=0.0, beyond_2=0.0, beyond_5=0.0, **each))
    return found


def pairs(early: float, late: float, noise: float, loss: tuple[float, float] = (1.0, 1.0)) -> list[LossPair]:
    """Create losses at 30 steps; plasticity changes in the middle and alternates with the noise."""
    levels = [(early, loss[0])] * 15 + [(late, loss[1])] * 15
    return [LossPair(i + 1, level + noise * (-1) ** i, each) for i, (level, each) in enumerate(levels)]


def test_a_drop_within_the_noise_does_not_rule_out_a_loss_of_plasticity() -> None:
    """The numbers are from a stream on which the accuracy fell from 17% to 11%."""
    noisy = judge(rows({"norm_ratio": (1.0, 7.0)}), pairs(0.089, 0.073, 0.08))
    assert (noisy.problem, noisy.certain) == (False, False)
    assert "cannot tell yet; plasticity went from 0.089 to 0.073 with a standard error of 0.03" in noisy.text
    assert "no sign" not in noisy.text
    both = rows({"norm_ratio": (1.0, 7.0), "effective_rank": (10.0, 2.0), "relative_update": (0.1, 0.01)})
    assert not judge(both, pairs(0.089, 0.073, 0.08)).problem  # signs do not decide
    assert judge(both, pairs(0.089, 0.088, 0.001)).text.startswith("verdict: no problem yet; no sign")


@pytest.mark.parametrize(
    ("loss", "problem", "certain", "text"),
    [
        ((1.0, 1.2), True, True, "loss of plasticity (plasticity fell from 0.089 to 0.03), but the weights have not"),
        ((1.0, 0.95), False, True, "no problem; plasticity fell from 0.089 to 0.03, but the loss fell as well"),
        (
            (1.0, 1.0),
            False,
            False,
            "cannot tell yet; plasticity fell from 0.089 to 0.03, but the loss neither fell nor",
        ),
    ],
)
def test_lower_plasticity_is_a_problem_if_the_loss_rises(
    loss: tuple[float, float], problem: bool, certain: bool, text: str
) -> None:
    verdict = judge(rows({}), pairs(0.089, 0.03, 0.001, loss=loss))
    assert (verdict.problem, verdict.certain) == (problem, certain)
    assert text in verdict.text


def test_a_schedule_alone_is_no_sign() -> None:
    """Plasticity and updates follow the learning rate, which decays or starts with a warmup."""
    decays = pairs(0.09, 0.027, 0.001, loss=(1.0, 1.2))
    scheduled = [pair._replace(lr_ratio=1.0 if pair.step <= 15 else 0.3) for pair in decays]
    assert judge(rows({}), decays).problem
    assert judge(rows({}), scheduled).text.startswith("verdict: no problem; no sign")
    warmup = [pair._replace(lr_ratio=0.1 if pair.step <= 15 else 1.0) for pair in pairs(0.09, 0.09, 0.001, (1.0, 1.2))]
    assert not judge(rows({}), warmup).problem
    lower = [pair._replace(plasticity=pair.plasticity / 5 if pair.step > 15 else pair.plasticity) for pair in scheduled]
    verdict = judge(rows({}), lower)
    assert verdict.problem
    assert "plasticity fell from 0.09 to 0.018 relative to the learning rate" in verdict.text
    smaller = rows({"relative_update": (0.1, 0.01)})
    assert "updates became smaller" in judge(smaller).text
    scaled = [replace(row, lr_ratio=row.relative_update / 0.1) for row in smaller]
    assert "no signs of lost plasticity" in judge(scaled).text


def test_without_a_loss_the_verdict_names_the_signs_and_never_decides() -> None:
    changes = {"dormant": (0.0, 0.5), "effective_rank": (10.0, 2.0), "relative_update": (0.1, 0.01)}
    for verdict in (judge(rows({})), judge(rows({**changes, "norm_ratio": (1.0, 7.0)}, steps=30))):
        assert (verdict.problem, verdict.certain) == (False, False)
        assert "pass the loss as closure=..." in verdict.suggestion
    signs = "units became dormant, the effective rank fell, updates became smaller; the largest norm ratio is 6.1, of"
    assert f"cannot tell without a loss; signs of lost plasticity: {signs}" in verdict.text


def test_a_loss_that_is_not_finite_is_a_problem() -> None:
    for value in (math.nan, math.inf):
        end = [*pairs(0.089, 0.088, 0.001), LossPair(31, math.nan, value)]
        verdict = judge(rows({}), end)
        assert verdict.problem
        assert f"diverged; the loss is {value}" in verdict.text
        assert judge(rows({}), [*end, LossPair(32, 0.09, 1.0)]).text.startswith("verdict: no problem")  # one bad batch


def test_a_dead_layer_rules_out_a_certain_verdict_without_a_problem() -> None:
    assert judge(rows({}), pairs(0.09, 0.09, 0.001)).certain
    dormant = rows({"dormant": (0.97, 0.97)})
    for losses in (pairs(0.09, 0.09, 0.001), pairs(0.09, 0.03, 0.001, (1.0, 0.5)), pairs(0.09, 0.03, 0.001)):
        verdict = judge(dormant, losses)
        assert (verdict.problem, verdict.certain) == (False, False)
        assert "dead layer 0.weight: 97% of its inputs are dormant" in verdict.text
    assert "dead layer 0.weight" in judge(dormant).text
    still = rows({"relative_update": (0.0, 0.0)})
    assert "dead layer 0.weight: its updates are 0" in judge(still, pairs(0.09, 0.09, 0.001)).text
    stopped = [replace(row, lr_ratio=0.0) for row in still]
    assert judge(stopped, pairs(0.09, 0.09, 0.001)).certain  # the learning rate is 0
    lost = judge(rows({"dormant": (0.97, 0.97), "norm_ratio": (1.0, 3.0)}), pairs(0.09, 0.03, 0.001, (1.0, 1.2)))
    assert "loss of plasticity (plasticity fell from 0.09 to 0.03; dead layer 0.weight" in lost.text
    assert lost.kappa == {"output": 1.0}


def test_the_suggestion_names_output_layers_only_if_they_are_known() -> None:
    grown, losses = rows({"norm_ratio": (1.0, 3.0)}), pairs(0.09, 0.03, 0.001, (1.0, 1.2))
    assert judge(grown, losses).suggestion.startswith("suggestion: clip_weights(optimizer, model, kappa={'output': 1")
    assert "graded(output_layers='...')" in judge(grown, losses, output_layers_known=False).suggestion


def test_a_verdict_names_the_largest_norm_ratio() -> None:
    """It is relative to the default initialization for layers that start close to zero."""
    assert "the largest norm ratio is 7, of 0.weight" in judge(rows({"norm_ratio": (7.0, 7.0)}, steps=10)).text
