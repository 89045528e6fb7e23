"""Every optimizer in torch.optim, with the options and parameters it requires."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


@dataclass(frozen=True)
class Case:
    """A model and its optimizer; `clip` contains the arguments of clip_weights in addition to kappa."""

    name: str
    make_optimizer: Callable[[nn.Module], Optimizer]
    make_model: Callable[[], nn.Module]
    clip: dict[str, Any] = field(default_factory=dict)

    def make(self, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Optimizer]:
        torch.manual_seed(0)
        model = self.make_model().to(dtype)
        return model, self.make_optimizer(model)

    def step(self, model: nn.Module, optimizer: Optimizer, number: int) -> None:
        generator = torch.Generator().manual_seed(number)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self.loss(model, torch.Generator().set_state(generator.get_state()))
            loss.backward()
            return loss.detach()

        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()

    def loss(self, model: nn.Module, generator: torch.Generator) -> Tensor:
        if isinstance(model, nn.Embedding):
            return (model(torch.randint(0, 10, (4,), generator=generator)) - 3.0).square().mean()
        dtype = next(model.parameters()).dtype
        x = torch.randn(8, 6, generator=generator, dtype=dtype)
        return (model(x) - 3.0).square().mean()


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def _embedding() -> nn.Module:
    return nn.Embedding(10, 4, sparse=True)


def _case(cls: type[Optimizer]) -> Case:
    name = cls.__name__
    if name == "SparseAdam":  # requires sparse gradients, which come from embeddings, and these have no default bound
        return Case(
            name, lambda m: torch.optim.SparseAdam(m.parameters(), lr=0.1), _embedding, {"bounds": {"weight": 0.5}}
        )
    if name == "Muon":  # accepts only matrices
        return Case(name, lambda m: torch.optim.Muon([p for p in m.parameters() if p.dim() == 2], lr=0.1), _network)
    if name == "LBFGS":  # evaluates a closure several times per step
        return Case(name, lambda m: torch.optim.LBFGS(m.parameters(), lr=0.1, max_iter=3), _network)
    return Case(name, lambda m: cls(m.parameters(), lr=0.1), _network)


CASES = {
    case.name: case
    for case in (
        _case(cls)
        for cls in vars(torch.optim).values()
        if inspect.isclass(cls) and issubclass(cls, Optimizer) and cls is not Optimizer
    )
}
