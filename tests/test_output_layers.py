import pytest
import torch
from torch import Tensor, nn

import weightclip as wc
from weightclip.bounds import resolve_bounds


def unclipped(model: nn.Module) -> set[str]:
    return {
        name
        for name, bound in resolve_bounds(model, clip_output_layers=False).items()
        if "output layer" in bound.reason
    }


class Dueling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 8), nn.ReLU())
        self.value = nn.Linear(8, 1)
        self.advantage = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        a = self.advantage(h)
        return self.value(h) + a - a.mean(-1, keepdim=True)


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) if x.sum() > 0 else self.b(x)


class TwoMethods(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(2, 2), nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.actor(x)


def test_the_last_layer_of_a_sequence() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), nn.Softmax(-1))
    assert unclipped(model) == {"2.0.weight", "2.0.bias"}


def test_every_head() -> None:
    assert unclipped(Dueling()) == {f"{head}.{p}" for head in ("value", "advantage.2") for p in ("weight", "bias")}


def test_layers_are_found_through_compile() -> None:
    model = torch.compile(nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3)), backend="eager")
    assert unclipped(model) == {"1.weight", "1.bias"}


@pytest.mark.parametrize(
    ("model", "why"), [(Untraceable(), "cannot be traced"), (TwoMethods(), "does not reach critic")]
)
def test_undetectable_output_layers_raise_an_error_that_asks_for_names(model: nn.Module, why: str) -> None:
    with pytest.raises(ValueError, match=rf"clip_output_layers=False: .*{why}.*; name them in exclude="):
        unclipped(model)


def make_network(outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, outputs))


def test_members_of_a_list_or_dictionary_are_separate_networks() -> None:
    assert unclipped(nn.ModuleList([make_network(2), make_network(1)])) == {
        f"{i}.2.{p}" for i in (0, 1) for p in ("weight", "bias")
    }
    networks = nn.ModuleDict({"actor": make_network(2), "critics": nn.ModuleList([make_network(1)])})
    assert unclipped(networks) == {f"{name}.2.{p}" for name in ("actor", "critics.0") for p in ("weight", "bias")}


def test_ranges_by_role_apply_to_each_member_of_a_list() -> None:
    model = nn.ModuleList([make_network(2), make_network(1)])
    clipper = wc.clip_weights(torch.optim.SGD(model.parameters(), lr=0.1), model, {"output": 1.0, "hidden": 5.0})
    assert [clipper.bounds[f"{name}.weight"].range for name in ("0.0", "0.2", "1.0", "1.2")] == [5.0, 1.0, 5.0, 1.0]
    clipper.remove()
    clipper = wc.clip_weights(clipper.optimizer, model, wc.graded(output=3.0))
    assert [clipper.bounds[f"{i}.2.bias"].range for i in (0, 1)] == [3.0, 3.0]


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (nn.ModuleList([make_network(4), nn.Linear(4, 1)]), "its member 1 is a single layer"),
        (nn.ModuleList([make_network(4), Untraceable()]), "in member 1, its forward pass cannot be traced"),
    ],
)
def test_members_that_may_be_parts_of_one_network_ask_for_names(model: nn.Module, why: str) -> None:
    with pytest.raises(ValueError, match=rf"output layers of ModuleList, because {why}.*; name them in exclude="):
        unclipped(model)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.hidden = nn.Embedding(10, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.hidden(self.words(x)), self.words.weight)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 1), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x)[0])


def test_an_output_computed_outside_a_layer_asks_for_names() -> None:
    with pytest.raises(ValueError, match=r"its output is computed from words\.weight outside a layer"):
        unclipped(Tied())


def test_parts_of_a_layer_do_not_count_as_layers() -> None:
    assert unclipped(Attending()) == {"head.weight", "head.bias"}
