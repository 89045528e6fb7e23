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


class Network(nn.Module):
    """Its layers are given, its forward pass is the class's."""

    def __init__(self, **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)


class ReturnsState(Network):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        outputs, state = self.lstm(x)
        return self.head(outputs), state


class ReturnsFeatures(Network):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.second(torch.relu(self.first(x)))
        return self.head(torch.relu(features)), features


class Gated(Network):
    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        gated: Tensor = self.head(h) * torch.sigmoid(h.mean())
        return gated


class NestedOutputs(Network):
    def forward(self, x: Tensor) -> dict[str, object]:
        h = self.body(x)
        return {"a": self.one(h), "b": (self.two(h), h)}


class Residual(Network):
    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


class TiedWithFeatures(Network):
    """An autoencoder with tied weights that returns its code."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = self.encoder(x)
        return self.decoder(code), code


class Recurrent(Network):
    """Feeds its own output and returns its state; the value reads the output of the step."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h, y = x, x
        outputs, values = [], []
        for _ in range(3):
            h = self.cell(y, h)
            values.append(self.value(h))
            y = self.head(h)
            outputs.append(y)
        return torch.stack(outputs), torch.stack(values), h


class ReadsTheShape(Network):
    """The critic's input is reshaped by the size of the policy's output."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.policy(x)
        return logits, self.critic(x.view(logits.shape[0], logits.size(1)))


def linear(outputs: int = 4, bias: bool = True) -> nn.Linear:
    return nn.Linear(4, outputs, bias=bias)


@pytest.mark.parametrize(
    ("model", "heads"),
    [
        (ReturnsState(lstm=nn.LSTM(4, 4), head=linear(2)), ["head"]),
        (ReturnsFeatures(first=linear(), second=linear(), head=linear(2)), ["head"]),
        (Gated(body=linear(), head=linear(2)), ["head"]),
        (NestedOutputs(body=linear(), one=linear(1), two=linear(2)), ["one", "two"]),
        (Residual(blocks=nn.ModuleList([linear() for _ in range(3)])), ["blocks.2"]),
        (Recurrent(cell=nn.GRUCell(4, 4), value=linear(1), head=linear()), ["head", "value"]),
        (ReadsTheShape(policy=linear(), critic=linear(1)), ["critic", "policy"]),
        (
            nn.ModuleList([ReturnsFeatures(first=linear(), second=linear(), head=linear(2)), make_network(1)]),
            ["0.head", "1.2"],
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_a_returned_layer_that_feeds_another_output_layer_is_hidden(model: nn.Module, heads: list[str]) -> None:
    assert sorted({name.rpartition(".")[0] for name in unclipped(model)}) == heads


def test_a_tied_output_layer_stays_one_if_its_code_is_returned() -> None:
    model = TiedWithFeatures(encoder=linear(bias=False), decoder=linear(bias=True))
    model.decoder.weight = model.encoder.weight
    assert unclipped(model) == {"encoder.weight", "decoder.bias"}
    model = TiedWithFeatures(encoder=linear(), decoder=linear())
    assert unclipped(model) == {"decoder.weight", "decoder.bias"}


def test_the_range_of_the_output_layers_does_not_clip_a_returned_state() -> None:
    model = ReturnsState(lstm=nn.LSTM(4, 4), head=linear(2))
    clipper = wc.clip_weights(torch.optim.SGD(model.parameters(), lr=0.1), model, {"output": 1.0})
    assert {name for name, bound in clipper.bounds.items() if bound.s is not None} == {"head.weight", "head.bias"}
