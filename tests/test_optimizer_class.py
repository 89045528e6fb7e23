import copy
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


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def test_a_class_with_a_kappa() -> None:
    model = network()
    optimizer = wc.clipped(torch.optim.Adam)(model.parameters(), lr=9.0, kappa=0.5)
    assert isinstance(optimizer, torch.optim.Adam)
    assert train(model, optimizer) == 0.25


def test_it_is_one_class_for_each_optimizer() -> None:
    assert wc.clipped(torch.optim.Adam) is wc.clipped(torch.optim.Adam)
    assert wc.clipped(torch.optim.Adam).__name__ == "ClippedAdam"


def test_it_is_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(wc.clipped(torch.optim.Adam))) is wc.clipped(torch.optim.Adam)


def test_kappa_is_required() -> None:
    with pytest.raises(TypeError, match="kappa"):
        wc.clipped(torch.optim.Adam)(network().parameters(), lr=1.0)


def test_a_bare_vector_in_front_is_left_alone_and_reported() -> None:
    model = nn.Linear(4, 4)
    log_std = nn.Parameter(torch.full((3,), 7.0))
    optimizer = wc.clipped(torch.optim.SGD)([log_std, *model.parameters()], lr=0.0, kappa=0.1)
    train(model, optimizer)
    assert log_std.tolist() == [7.0] * 3
    assert "parameter 0  3  no weight with as many rows comes before it" in str(optimizer.clipper)


def test_an_ambiguous_vector_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    with pytest.raises(ValueError, match=r"parameter 2, shape \(4,\): from shapes alone"):
        wc.clipped(torch.optim.SGD)(model.parameters(), lr=1.0, kappa=1.0)


def test_groups_added_later_are_resolved() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizer = wc.clipped(torch.optim.SGD)(first.parameters(), lr=9.0, kappa=0.5)
    optimizer.add_param_group({"params": second.parameters()})
    assert train(nn.Sequential(first, second), optimizer) == 0.25


def test_names_are_shown_where_the_optimizer_has_them() -> None:
    optimizer = wc.clipped(torch.optim.SGD)(network().named_parameters(), lr=1.0, kappa=1.0)
    assert "1.weight  4x4" in str(optimizer.clipper)


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), lambda x: cloudpickle.loads(cloudpickle.dumps(x))],
)
def test_a_copy_goes_on_clipping_with_its_kappa(duplicate: Any) -> None:
    model = network()
    optimizer = wc.clipped(torch.optim.Adam)(model.parameters(), lr=9.0, kappa=1.0)
    train(model, optimizer)
    optimizer.param_groups[0]["kappa"] = 0.5
    model, optimizer = duplicate((model, optimizer))
    assert train(model, optimizer) == 0.25


def test_checkpoints_bring_their_kappa() -> None:
    model = network()
    optimizer = wc.clipped(torch.optim.Adam)(model.parameters(), lr=9.0, kappa=0.5)
    other = wc.clipped(torch.optim.Adam)(model.parameters(), lr=9.0, kappa=2.0)
    other.load_state_dict(optimizer.state_dict())
    assert train(model, other) == 0.25


def test_the_class_reaches_another_process(tmp_path: Path) -> None:
    """Libraries save the class with cloudpickle (Stable-Baselines3, Ray)."""
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
    [(wc.Madam, "Madam has a hyper-parameter kappa of its own"), (nn.Linear, "expected a subclass of"), (3, "got 3")],
)
def test_other_classes_are_refused(cls: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        wc.clipped(cls)


def test_one_whose_clipper_was_removed_is_a_plain_optimizer() -> None:
    model = network()
    optimizer = wc.clipped(torch.optim.SGD)(model.parameters(), lr=9.0, kappa=0.5)
    optimizer.clipper.remove()
    other_model, other = copy.deepcopy((model, optimizer))
    optimizer.load_state_dict(optimizer.state_dict())
    assert train(other_model, other) > 0.25
    wc.clip_weights(optimizer, model, kappa=0.5)
    assert train(model, optimizer) == 0.25
