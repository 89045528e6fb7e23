import pytest
import torch
from torch import Tensor, nn

from weightclip.bounds import resolve_bounds


def spared(model: nn.Module) -> set[str]:
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
    assert spared(model) == {"2.0.weight", "2.0.bias"}


def test_every_head() -> None:
    assert spared(Dueling()) == {f"{head}.{p}" for head in ("value", "advantage.2") for p in ("weight", "bias")}


def test_layers_are_seen_through_compile() -> None:
    model = torch.compile(nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3)), backend="eager")
    assert spared(model) == {"1.weight", "1.bias"}


@pytest.mark.parametrize(
    ("model", "why"), [(Untraceable(), "cannot be traced"), (TwoMethods(), "does not reach critic")]
)
def test_where_they_cannot_be_told_names_are_asked_for(model: nn.Module, why: str) -> None:
    with pytest.raises(ValueError, match=rf"clip_output_layers=False: .*{why}.*; name them in exclude="):
        spared(model)


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
        spared(Tied())


def test_parts_of_a_layer_are_not_layers_that_are_missed() -> None:
    assert spared(Attending()) == {"head.weight", "head.bias"}
