import pytest
import torch
from synthetic_images import config, image_data
from torch import nn
from torch.nn.functional import cross_entropy

from weightclip import clip_weights
from weightclip.bounds import Rule, resolve_bounds
from weightclip.lab.experiments.warm_start import training
from weightclip.lab.experiments.warm_start.batches import Pixels, epoch_batches, halves
from weightclip.lab.experiments.warm_start.config import Config, resolve
from weightclip.lab.experiments.warm_start.training import Trainer, make_network, memory_format

DATA = image_data()
CPU = torch.device("cpu")


def trainer(method: str = "sgd", **changes: object) -> Trainer:
    return Trainer(config(method, **changes), DATA.train, DATA.test)


def weights(one: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in one.model.parameters()])


@pytest.mark.parametrize("variant", ["paper", "default"])
def test_a_step_equals_plain_pytorch(variant: str) -> None:
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


def test_a_row_contains_the_metrics_of_an_epoch() -> None:
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


def test_each_stage_learns_from_its_half() -> None:
    seen: list[torch.Tensor] = []
    one = trainer()
    batch = one._train.batch

    def recording_batch(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(rows)
        return batch(rows)

    one._train.batch = recording_batch  # type: ignore[method-assign]
    first, again, second = (set() for _ in range(3))
    for epoch, rows in ((0, first), (1, again), (2, second)):
        seen.clear()
        one.train(epoch)
        rows |= set(torch.cat(seen).tolist())
    assert first == again
    assert not first & second
    assert len(first | second) == 48


def test_validation_images_are_held_out_training_images() -> None:
    one = trainer(images=30, test_images=18, validation=True)
    trained = set(torch.cat(one._stages).tolist())
    held_out = set(one._test_rows.tolist())
    assert (len(trained), len(held_out), trained & held_out) == (30, 18, set())
    x, _ = one._test.batch(torch.arange(48))
    torch.testing.assert_close(x, Pixels(DATA.train, CPU).batch(torch.arange(48))[0])
    assert set(torch.cat(trainer(images=30)._stages).tolist()) == trained


def test_initial_weights_are_clipped_once() -> None:
    clipped, plain = trainer(init_kappa=0.5), trainer()
    assert clipped.boxes().is_empty()
    bounds = resolve_bounds(plain.model)
    for name, weight in plain.model.named_parameters():
        s = bounds[name].s
        expected = weight if s is None else weight.clamp(-0.5 * s, 0.5 * s)
        torch.testing.assert_close(clipped.model.get_parameter(name), expected)
    clipped.learn(0)
    plain.model.load_state_dict(trainer(init_kappa=0.5).model.state_dict())
    plain.learn(0)
    assert torch.equal(weights(clipped), weights(plain))  # nothing is clipped afterward


def test_clipping_at_the_switch_happens_once() -> None:
    one = trainer("sgd+wc@switch", kappa=0.5)
    before = [one.learn(epoch)["clipped"] for epoch in (0, 1)]
    assert before == [0.0, 0.0]
    switched = one.learn(2)["clipped"]
    assert 0.1 < switched < 1
    assert one.learn(3)["clipped"] == 0.0
    assert "kappa" not in one.optimizer.param_groups[0]


@pytest.mark.parametrize(("variant", "scales"), [("paper", True), ("default", False)])
def test_only_the_papers_bounds_clip_batch_normalization(variant: str, scales: bool) -> None:
    one = trainer("sgd+wc", kappa=1.0, variant=variant)
    one.learn(0)
    boxes = one.boxes()
    assert ("bn1.weight" in boxes["tensor"]) == scales
    assert "layer1.0.conv1.weight" in boxes["tensor"]
    assert (boxes["largest"] <= boxes["box"] * (1 + 1e-6)).all()
    assert boxes["at_box"].max() > 0


@pytest.mark.parametrize("variant", ["paper", "default"])
def test_clipping_once_uses_the_same_boxes_as_clipping_every_step(variant: str) -> None:
    once, always = (trainer(method, kappa=0.5, variant=variant) for method in ("sgd+wc@switch", "sgd+wc"))
    assert once.boxes().is_empty()
    for epoch in range(3):
        once.learn(epoch)
    assert once.boxes().select("tensor", "entries", "box").equals(always.boxes().select("tensor", "entries", "box"))
    assert trainer("sgd").boxes().is_empty()


def test_the_fraction_clipped_at_the_switch_is_recorded() -> None:
    one = trainer("sgd+wc@switch", kappa=0.5)
    clipped = [one.learn(epoch)["clipped"] for epoch in range(4)][2]
    boxes = one.boxes()
    entries = boxes["entries"]
    assert (boxes["at_box"] * entries).sum() / entries.sum() == pytest.approx(clipped)
    other = trainer("sgd+wc@switch", kappa=0.5)
    other.load_state(one.state())
    assert other.boxes().equals(boxes)


def test_metrics_match_a_plain_loop() -> None:
    """In the paper's variant, with a smaller last batch."""
    one = trainer("sgd+wc", kappa=5.0, variant="paper", images=44, batch_size=8)
    network = make_network(one.config, DATA.train.classes)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    clipper = clip_weights(optimizer, network, 5.0, bounds="paper", track_clipped=True)
    pixels = Pixels(DATA.train, CPU)
    losses, right, clipped = [], [], []
    (first, _) = halves(48, 44, 2, seed=0)
    for rows in epoch_batches(first, 8, 0, 0):
        x, y = pixels.batch(rows)
        outputs = network(x).softmax(1)
        each = cross_entropy(outputs, y, reduction="none")
        losses += each.tolist()
        right += (outputs.argmax(1) == y).tolist()
        optimizer.zero_grad()
        each.mean().backward()
        optimizer.step()
        clipped.append(clipper.clipped_fraction)
    network.eval()
    x, y = Pixels(DATA.test, CPU).batch(torch.arange(20))
    outputs = network(x).softmax(1)
    tested = (outputs.argmax(1) == y).double().mean().item()
    matrices = [p for p in network.parameters() if p.ndim > 1]
    assert len(losses) == 22
    assert one.learn(0) == pytest.approx(
        {
            "epoch": 1,
            "stage": 1,
            "samples": 22,
            "test_accuracy": tested,
            "test_loss": cross_entropy(outputs, y).item(),
            "train_accuracy": sum(right) / 22,
            "train_loss": sum(losses) / 22,
            "gap": sum(right) / 22 - tested,
            "weight_l2": torch.cat([p.flatten() for p in matrices]).norm().item(),
            "clipped": sum(clipped) / 3,
        },
        rel=1e-4,
    )


@pytest.mark.parametrize(
    ("bounds", "kappa", "convolutions", "scales"),
    [("paper", 10.0, 0.0, 0.973), ("paper", 20.0, 0.0, 0.8), ("fan_in", 1.0, 0.454, None), ("fan_in", 2.0, 0.14, None)],
)
def test_the_fraction_clipped_in_a_new_network(
    bounds: Rule, kappa: float, convolutions: float, scales: float | None
) -> None:
    """The paper's kappa acts only through the scales of normalization layers; without them its scale differs."""
    network = make_network(resolve(Config(method="sgd")), 10)
    clipper = clip_weights(torch.optim.SGD(network.parameters(), lr=0.1), network, kappa, bounds=bounds)
    names = {id(tensor): name for name, tensor in network.named_parameters()}
    changed: dict[str, list[float]] = {"convolutions": [0, 0], "scales": [0, 0], "last": [0, 0]}
    for tensor, side in clipper.sides().items():
        scale = tensor.ndim == 1 and bool((tensor == 1).all())
        kind = "last" if names[id(tensor)].startswith("fc.") else "scales" if scale else "convolutions"
        if kind != "convolutions" or tensor.ndim == 4:
            changed[kind][0] += int((tensor.abs() > side).sum())
            changed[kind][1] += tensor.numel()
    fraction = {kind: some / total if total else None for kind, (some, total) in changed.items()}
    assert fraction["convolutions"] == pytest.approx(convolutions, abs=0.002)
    assert fraction["scales"] == (scales if scales is None else pytest.approx(scales, abs=0.002))
    assert fraction["last"] == 0.0


def test_compile_and_precision_are_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[nn.Module] = []
    monkeypatch.setattr(torch, "compile", lambda model: requested.append(model) or model)
    monkeypatch.setattr(training, "check_precision", lambda *_: None)
    one = trainer(compile=True, precision="bfloat16")
    assert requested == [one.model]
    assert one._mixed()._enabled
    assert not trainer()._mixed()._enabled


def test_shrink_and_perturb_at_the_switch() -> None:
    one, plain = trainer("sgd+sp@switch", decay=0.9, sigma=0.0), trainer("sgd")
    for epoch in (0, 1):
        assert one.learn(epoch) == plain.learn(epoch)
    length = weights(one).norm()
    one._switch()
    torch.testing.assert_close(weights(one).norm(), 0.1 * length)
    noisy = trainer("sgd+sp@switch", decay=1.0, sigma=0.3)
    noisy._switch()
    assert weights(noisy).std().item() == pytest.approx(0.3, rel=0.05)


@pytest.mark.parametrize("method", ["sgd+l2", "sgd+l2init", "sgd+sp", "adam+wc", "adamw", "madam", "sgd+l2+wc@switch"])
def test_other_methods_learn(method: str) -> None:
    kappa = {"kappa": 2.0} if "wc" in method or method == "madam" else {}
    rows = [trainer(method, lr=0.01, stages=2, **kappa).learn(0)]
    assert rows[0]["train_loss"] > 0


def test_optimizer_arguments_are_passed_on() -> None:
    one = trainer("sgd", settings={"momentum": 0.9})
    assert one.optimizer.param_groups[0]["momentum"] == 0.9
    with pytest.raises(ValueError, match=r"momentun: got 0.9, but sgd has no such setting; .* did you mean 'momentum'"):
        trainer("sgd", settings={"momentun": 0.9})


def test_the_seed_determines_the_result() -> None:
    one, same, other = (trainer(seed=seed).learn(0) for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_narrow_networks_on_a_cpu_keep_the_default_memory_format() -> None:
    assert memory_format(8, CPU) == torch.contiguous_format
    assert memory_format(16, CPU) == torch.channels_last
    assert memory_format(8, torch.device("cuda")) == torch.channels_last


def test_augmentation_changes_training_but_not_testing() -> None:
    plain, augmented = trainer(), trainer(augment=True)
    assert plain.test() == augmented.test()
    assert plain.learn(0)["train_loss"] != augmented.learn(0)["train_loss"]
