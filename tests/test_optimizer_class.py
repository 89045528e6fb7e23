import copy
import math
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from torch import nn

import weightclip as wc


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return max(p.abs().max().item() for p in model.parameters())


class OtherSGD(torch.optim.SGD):
    """An optimizer from another package than PyTorch."""

    class Nested(torch.optim.SGD):
        """An optimizer inside another class."""


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def test_a_class_with_a_kappa() -> None:
    model = network()
    optimizer = wc.clipped(torch.optim.Adam)(model.parameters(), lr=9.0, kappa=0.5)
    assert isinstance(optimizer, torch.optim.Adam)
    assert train(model, optimizer) == 0.25


def test_each_optimizer_has_one_clipped_class() -> None:
    assert wc.clipped(torch.optim.Adam) is wc.clipped(torch.optim.Adam)
    assert wc.clipped(torch.optim.Adam).__name__ == "ClippedAdam"


def test_the_class_is_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(wc.clipped(torch.optim.Adam))) is wc.clipped(torch.optim.Adam)


def test_kappa_is_required() -> None:
    with pytest.raises(TypeError, match=r"ClippedAdam.__init__\(\) missing .* 'kappa'"):
        wc.clipped(torch.optim.Adam)(network().parameters(), lr=1.0)


def test_a_bare_vector_before_the_first_layer_is_skipped_and_reported() -> None:
    model = nn.Linear(4, 4)
    log_std = nn.Parameter(torch.full((3,), 7.0))
    optimizer = wc.clipped(torch.optim.SGD)([log_std, *model.parameters()], lr=0.0, kappa=0.1)
    train(model, optimizer)
    assert log_std.tolist() == [7.0] * 3
    assert "parameter 0  3  no weight with as many rows precedes it" in str(optimizer.clipper)


def test_an_ambiguous_vector_raises_an_error() -> None:
    model = nn.RNN(4, 4)  # with two biases
    with pytest.raises(ValueError, match=r"parameter 3, shape \(4,\): its shape may be.*clip_weights"):
        wc.clipped(torch.optim.SGD)(model.parameters(), lr=1.0, kappa=1.0)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (lambda: [torch.full((8, 2), -3.0)], r"shape \(8, 2\): its entries are all equal, like log-stds"),
        (lambda: [torch.zeros(8, 2)], r"shape \(8, 2\): its entries are all equal"),
        (lambda: [torch.rand(8, 2), torch.ones(8)], r"parameter 1 .* shape \(8,\): its entries are 1, like a norm's"),
    ],
    ids=["gSDE's log-std", "zeros", "the scale of a norm behind a layer without bias"],
)
def test_tensors_that_cannot_be_a_layer_raise_an_error(parameters: Any, message: str) -> None:
    def tensors() -> list[nn.Parameter]:
        return [nn.Parameter(tensor) for tensor in parameters()]

    with pytest.raises(ValueError, match=f"{message}.*clip_weights"):
        wc.clipped(torch.optim.Adam)(tensors(), lr=1.0, kappa=2.0)
    optimizer = wc.clipped(torch.optim.Adam)(network().parameters(), lr=1.0, kappa=2.0)
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": tensors()})
    assert len(optimizer.param_groups) == 1


def test_a_weight_of_one_entry_and_one_outside_its_box_are_layers() -> None:
    """Stable-Baselines3's orthogonally initialized layers start outside the box."""
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(4, 4))
    nn.init.orthogonal_(model[1].weight, gain=3.0)
    optimizer = wc.clipped(torch.optim.SGD)(model.parameters(), lr=0.0, kappa=1.0)
    assert len([bound for bound in optimizer.clipper.bounds.values() if bound.s is not None]) == 4


@pytest.mark.parametrize("order", [1, -1])
def test_a_bias_is_paired_only_with_a_weight_of_the_same_group(order: int) -> None:
    """Groups with and without weight decay separate all weights from all biases."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4))
    groups = [
        {"params": [layer.weight for layer in model], "weight_decay": 0.1},
        {"params": [layer.bias for layer in model]},
    ][::order]
    with pytest.raises(ValueError, match=r"parameter 0, shape \(4,\): its shape may be.*clip_weights"):
        wc.clipped(torch.optim.SGD)(groups, lr=1.0, kappa=1.0)
    by_layer = [{"params": layer.parameters(), "weight_decay": decay} for layer, decay in zip(model, (0.1, 0.0))]
    bounds = wc.clipped(torch.optim.SGD)(by_layer, lr=1.0, kappa=1.0).clipper.bounds
    assert [bound.s for bound in bounds.values()] == [1 / math.sqrt(3)] * 2 + [0.5] * 2


@pytest.mark.parametrize("optimizer_class", [OtherSGD, OtherSGD.Nested])
def test_classes_of_other_packages_are_pickled(optimizer_class: type[torch.optim.Optimizer]) -> None:
    cls = wc.clipped(optimizer_class)
    assert cls.__name__ == f"Clipped{optimizer_class.__name__}"
    assert pickle.loads(pickle.dumps(cls)) is cls
    assert cloudpickle.loads(cloudpickle.dumps(cls)) is cls
    model = network()
    optimizer = cls(model.parameters(), lr=9.0, kappa=0.5)
    model, optimizer = pickle.loads(pickle.dumps((model, optimizer)))
    assert train(model, optimizer) == 0.25


def test_a_class_of_the_running_script_reaches_another_process(tmp_path: Path) -> None:
    """The class is copied, because the other process has another `__main__`."""
    make, use = tmp_path / "make.py", tmp_path / "use.py"
    make.write_text(
        "import cloudpickle, torch, weightclip as wc, pathlib, sys\n"
        "class Mine(torch.optim.SGD): pass\n"
        "pathlib.Path(sys.argv[1]).write_bytes(cloudpickle.dumps(wc.clipped(Mine)))\n"
    )
    use.write_text(
        "import cloudpickle, torch, sys\n"
        "cls = cloudpickle.loads(open(sys.argv[1], 'rb').read())\n"
        "model = torch.nn.Linear(4, 4); optimizer = cls(model.parameters(), lr=9.0, kappa=0.5)\n"
        "model(torch.ones(1, 4)).sum().backward(); optimizer.step(); print(model.weight.abs().max().item())\n"
    )
    for script in (make, use):
        result = subprocess.run(
            [sys.executable, script, tmp_path / "class.pkl"], capture_output=True, text=True, check=True
        )
    assert result.stdout.strip() == "0.25"


def test_groups_added_later_are_resolved() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizer = wc.clipped(torch.optim.SGD)(first.parameters(), lr=9.0, kappa=0.5)
    optimizer.add_param_group({"params": second.parameters()})
    assert train(nn.Sequential(first, second), optimizer) == 0.25


def test_parameter_names_of_the_optimizer_are_shown() -> None:
    optimizer = wc.clipped(torch.optim.SGD)(network().named_parameters(), lr=1.0, kappa=1.0)
    assert "1.weight  4x4" in str(optimizer.clipper)


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), lambda x: cloudpickle.loads(cloudpickle.dumps(x))],
)
def test_a_copy_keeps_clipping_with_its_kappa(duplicate: Any) -> None:
    model = network()
    optimizer = wc.clipped(torch.optim.Adam)(model.parameters(), lr=9.0, kappa=1.0)
    train(model, optimizer)
    optimizer.param_groups[0]["kappa"] = 0.5
    model, optimizer = duplicate((model, optimizer))
    assert train(model, optimizer) == 0.25


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), lambda x: cloudpickle.loads(cloudpickle.dumps(x))],
)
@pytest.mark.parametrize("kappa", [wc.graded(0.5, 4.0, output="1.*"), {"0.*": 0.25, "1.*": 3.0}])
def test_a_copy_keeps_its_range_rule(duplicate: Any, kappa: Any) -> None:
    model = network()
    optimizer = wc.clipped(torch.optim.Adam)(model.named_parameters(), lr=9.0, kappa=kappa)
    optimizer.param_groups[0]["kappa"] = 0.5
    copied, other = duplicate((model, optimizer))
    assert other.clipper.rule == optimizer.clipper.rule is not None
    for one, own in ((model, optimizer), (copied, other)):
        train(one, own)
    for a, b in zip(model.parameters(), copied.parameters(), strict=True):
        assert torch.equal(a, b)
    again = duplicate((copied, other))[1]
    assert repr(again.clipper) == repr(optimizer.clipper)


def test_a_copy_of_an_optimizer_whose_clipper_was_removed_does_not_clip() -> None:
    optimizer = wc.clipped(torch.optim.SGD)(network().named_parameters(), lr=9.0, kappa=wc.graded(output="1.*"))
    optimizer.clipper.remove()
    assert wc.find_clipper(copy.deepcopy(optimizer)) is None


def test_unknown_output_layers_are_reported_once_with_working_advice() -> None:
    model = network()
    with pytest.warns(UserWarning, match=r"output_layers='head\.\*' with model\.named_parameters\(\)") as caught:
        optimizer = wc.clipped(torch.optim.SGD)(list(model.parameters())[:2], lr=9.0, kappa=wc.graded())
    assert len(caught) == 1
    optimizer.add_param_group({"params": list(model.parameters())[2:]})  # another warning would be an error
    train(model, optimizer)
    optimizer.load_state_dict(optimizer.state_dict())
    copy.deepcopy(optimizer)
    with pytest.warns(UserWarning, match=r"output_layers='1\.\*' names them"):
        wc.clipped(torch.optim.SGD)(model.named_parameters(), lr=9.0, kappa=wc.graded())
    wc.clipped(torch.optim.SGD)(model.named_parameters(), lr=9.0, kappa=wc.graded(output_layers="1.*"))


def test_the_offset_of_a_layer_matches_clip_weights() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 2))
    rule = wc.graded(layer_offset=3, output_layers="3.*")
    expected = wc.clip_weights(torch.optim.SGD(model.parameters(), lr=1.0), model, rule).bounds
    layers = [p for p in model.named_parameters() if not p[0].startswith("1.")]  # without the normalization layer
    found = wc.clipped(torch.optim.SGD)(layers, lr=1.0, kappa=rule).clipper.bounds
    assert {name: bound.range for name, bound in found.items()} == {name: expected[name].range for name in found}
    assert [found[f"{i}.bias"].range.offset for i in (0, 2)] == [0, 3]  # type: ignore[union-attr]
    with pytest.warns(UserWarning, match="shapes do not show"):
        unnamed = wc.clipped(torch.optim.SGD)([p for _, p in layers], lr=1.0, kappa=wc.graded(layer_offset=3))
    assert [bound.range.offset for bound in unnamed.clipper.bounds.values()] == [0, 0, 3, 3, 6, 6]  # type: ignore[union-attr]


def test_checkpoints_restore_their_kappa() -> None:
    model = network()
    optimizer = wc.clipped(torch.optim.Adam)(model.parameters(), lr=9.0, kappa=0.5)
    other = wc.clipped(torch.optim.Adam)(model.parameters(), lr=9.0, kappa=2.0)
    other.load_state_dict(optimizer.state_dict())
    assert train(model, other) == 0.25


def test_the_class_reaches_another_process(tmp_path: Path) -> None:
    """Some libraries (Stable-Baselines3, Ray) save the class with cloudpickle."""
    path = tmp_path / "class.pkl"
    path.write_bytes(cloudpickle.dumps(wc.clipped(torch.optim.Adam)))
    code = (
        f"import cloudpickle, torch; cls = cloudpickle.loads(open({str(path)!r}, 'rb').read());"
        "model = torch.nn.Linear(4, 4); optimizer = cls(model.parameters(), lr=9.0, kappa=0.5);"
        "model(torch.ones(1, 4)).sum().backward(); optimizer.step(); print(model.weight.abs().max().item())"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "0.25"


@pytest.mark.parametrize(
    ("cls", "message"),
    [(wc.Madam, "Madam already has a hyper-parameter kappa"), (nn.Linear, "expected a subclass of"), (3, "got 3")],
)
def test_other_classes_raise_an_error(cls: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        wc.clipped(cls)


def test_an_optimizer_whose_clipper_was_removed_is_a_plain_optimizer() -> None:
    model = network()
    optimizer = wc.clipped(torch.optim.SGD)(model.parameters(), lr=9.0, kappa=0.5)
    optimizer.clipper.remove()
    other_model, other = copy.deepcopy((model, optimizer))
    optimizer.load_state_dict(optimizer.state_dict())
    assert train(other_model, other) > 0.25
    wc.clip_weights(optimizer, model, kappa=0.5)
    assert train(model, optimizer) == 0.25
