import pytest
import torch
from photographs import config, photographs
from torch.nn.functional import cross_entropy

from weightclip.lab.warm_start.training import Trainer, make_network, memory_format

DATA = photographs()
CPU = torch.device("cpu")


def trainer(method: str = "sgd", **changes: object) -> Trainer:
    return Trainer(config(method, **changes), DATA.train, DATA.test)


def weights(one: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in one.model.parameters()])


@pytest.mark.parametrize("variant", ["paper", "default"])
def test_a_step_is_that_of_plain_pytorch(variant: str) -> None:
    ours = trainer(variant=variant)
    network = make_network(ours.config, DATA.train.classes)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(8, 3, 32, 32, generator=generator)
        y = torch.randint(4, (8,), generator=generator)
        ours.step(x, y)
        logits = network(x)
        loss = cross_entropy(logits.softmax(1) if variant == "paper" else logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    expected = torch.cat([p.detach().flatten() for p in network.parameters()])
    torch.testing.assert_close(weights(ours), expected, rtol=1e-4, atol=1e-5)


def test_an_epochs_row() -> None:
    one = trainer("sgd+wc", kappa=1.0)
    row = one.learn(0)
    assert list(row) == [
        "epoch",
        "stage",
        "samples",
        "test_accuracy",
        "test_loss",
        "train_accuracy",
        "train_loss",
        "gap",
        "weight_l2",
        "clipped",
    ]
    assert (row["epoch"], row["stage"], row["samples"]) == (1, 1, 24)
    assert row["gap"] == pytest.approx(row["train_accuracy"] - row["test_accuracy"])
    assert 0 < row["clipped"] < 1
    later = one.learn(2, row)
    assert (later["epoch"], later["stage"], later["samples"]) == (3, 2, 48)


def test_stages_learn_from_their_own_half() -> None:
    seen: list[torch.Tensor] = []
    one = trainer()
    batch = one._train.batch

    def noted(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(rows)
        return batch(rows)

    one._train.batch = noted  # type: ignore[method-assign]
    first, again, second = (set() for _ in range(3))
    for epoch, rows in ((0, first), (1, again), (2, second)):
        seen.clear()
        one.train(epoch)
        rows |= set(torch.cat(seen).tolist())
    assert first == again
    assert not first & second
    assert len(first | second) == 48


def test_clipping_at_the_switch_happens_once() -> None:
    one = trainer("sgd+wc@switch", kappa=0.5)
    before = [one.learn(epoch)["clipped"] for epoch in (0, 1)]
    assert before == [0.0, 0.0]
    switched = one.learn(2)["clipped"]
    assert 0.1 < switched < 1
    assert one.learn(3)["clipped"] == 0.0
    assert "kappa" not in one.optimizer.param_groups[0]


@pytest.mark.parametrize(("variant", "scales"), [("paper", True), ("default", False)])
def test_the_papers_bounds_clip_batch_normalisation_and_ours_do_not(variant: str, scales: bool) -> None:
    one = trainer("sgd+wc", kappa=1.0, variant=variant)
    one.learn(0)
    boxes = one.tensors()
    assert ("bn1.weight" in boxes["tensor"]) == scales
    assert "layer1.0.conv1.weight" in boxes["tensor"]
    assert (boxes["largest"] <= boxes["box"] * (1 + 1e-6)).all()
    assert boxes["at_box"].max() > 0


def test_what_would_be_clipped_is_known_of_clipping_once_too() -> None:
    assert len(trainer("sgd+wc@switch", kappa=1.0).tensors()) > 10
    assert trainer("sgd").tensors().is_empty()


def test_shrinking_and_perturbing_at_the_switch() -> None:
    one, plain = trainer("sgd+sp@switch", decay=0.9, sigma=0.0), trainer("sgd")
    for epoch in (0, 1):
        assert one.learn(epoch) == plain.learn(epoch)
    length = weights(one).norm()
    one._switch()
    torch.testing.assert_close(weights(one).norm(), 0.1 * length)


@pytest.mark.parametrize("method", ["sgd+l2", "sgd+l2init", "sgd+sp", "adam+wc", "adamw", "madam", "sgd+l2+wc@switch"])
def test_other_methods_learn(method: str) -> None:
    kappa = {"kappa": 2.0} if "wc" in method or method == "madam" else {}
    rows = [trainer(method, lr=0.01, stages=2, **kappa).learn(0)]
    assert rows[0]["train_loss"] > 0


def test_arguments_of_the_optimizer_reach_it() -> None:
    one = trainer("sgd", settings={"momentum": 0.9})
    assert one.optimizer.param_groups[0]["momentum"] == 0.9
    with pytest.raises(ValueError, match=r"settings: got 'momentun', expected one of .* did you mean 'momentum'"):
        trainer("sgd", settings={"momentun": 0.9})


def test_the_seed_decides() -> None:
    one, same, other = (trainer(seed=seed).learn(0) for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_narrow_networks_on_a_cpu_keep_pytorchs_memory_format() -> None:
    assert memory_format(8, CPU) == torch.contiguous_format
    assert memory_format(16, CPU) == torch.channels_last
    assert memory_format(8, torch.device("cuda")) == torch.channels_last


def test_augmentation_changes_what_is_learned_but_not_what_is_tested() -> None:
    plain, augmented = trainer(), trainer(augment=True)
    assert plain.test() == augmented.test()
    assert plain.learn(0)["train_loss"] != augmented.learn(0)["train_loss"]
