"""What the regularizers share: settings in `param_groups`, choosing parameters by name, quadratic penalties."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weightclip.bounds import tensor_names
from weightclip.checks import check_number
from weightclip.patterns import Patterns, unwanted
from weightclip.remedy import Remedy, check_optimizer


class Regularizer(Remedy):
    """Acts on the parameters of an optimizer that `include` and `exclude` choose.

    Args:
        optimizer: any `torch.optim.Optimizer`.
        model: gives the parameters their names; without it, the optimizer's own names are taken.
        include: names or glob patterns; every other parameter is left alone.
        exclude: names or glob patterns of parameters to leave alone.
        settings: numbers of at least 0, which are kept in `optimizer.param_groups`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module | None,
        include: Patterns | None,
        exclude: Patterns | None,
        **settings: float,
    ) -> None:
        optimizer = check_optimizer(optimizer, self.key)
        self._argument = {key: key.rpartition("_")[2] for key in settings}  # l2_decay -> decay
        numbers = {key: check_number(self._argument[key], value, zero=True) for key, value in settings.items()}
        super().__init__(optimizer, **numbers)
        self._model, self._include, self._exclude = model, include, exclude
        self._chosen: dict[Tensor, bool] = {}
        self._check_settings()
        self._choose()

    def before_step(self) -> None:
        self._check_settings()
        if any(p not in self._chosen for p in self.tensors()):
            self._choose()

    def is_chosen(self, p: Tensor) -> bool:
        """Whether the regularizer acts on `p`."""
        return self._chosen[p]

    def _check_settings(self) -> None:
        for group in self.optimizer.param_groups:
            for key, argument in self._argument.items():
                check_number(argument, group.get(key, 0.0), zero=True)

    def _choose(self) -> None:
        """Decide for every parameter of the optimizer whether it is regularised."""
        tensors = self.tensors()
        if self._include is None and self._exclude is None:
            self._chosen = dict.fromkeys(tensors, True)
            return
        if self._model is not None:
            names = tensor_names(self._model)
            if any(id(p) not in names for p in tensors):
                raise ValueError("model: it does not own all parameters of the optimizer, so some have no names")
        else:
            groups = self.optimizer.param_groups
            if not all("param_names" in group for group in groups):
                raise ValueError(
                    "include, exclude: the parameters have no names; pass model=..., or make the optimizer from "
                    "model.named_parameters()"
                )
            pairs = [pair for g in groups for pair in zip(g["params"], g["param_names"], strict=True)]
            names = {id(p): [name] for p, name in pairs}
        reason = unwanted(self._include, self._exclude, [name for own in names.values() for name in own])
        self._chosen = {p: reason(names.get(id(p), [])) is None for p in tensors}


class Penalty:
    """Adds factor * (w - centre) to gradients, as if factor/2 |w - centre|^2 were in the loss.

    A sparse gradient is changed only where it has entries.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if any(group.get("line_search_fn") for group in optimizer.param_groups):
            raise ValueError("optimizer: a line search needs the penalty in the loss; add it there instead")
        self.optimizer = optimizer
        self._results: dict[Tensor, Tensor] = {}  # kept: asking for the memory anew costs more than the addition

    def added(
        self, group: dict[str, Any], p: Tensor, gradient: Tensor, factor: float, centre: Tensor | None = None
    ) -> Tensor:
        """The gradient with the penalty's; without a centre, this is 0. `gradient` stays as it is."""
        out = self._result(p, gradient)
        difference = p.detach() if centre is None else torch.sub(p, centre, out=out)
        # Fused optimizers divide the gradients by GradScaler's factor inside their step, so ours must carry it.
        scale = getattr(self.optimizer, "grad_scale", None)
        if scale is not None:
            difference = difference * scale
        factor = -float(factor) if group.get("maximize", False) else float(factor)
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            return gradient + factor * difference.sparse_mask(gradient)
        return torch.add(gradient, difference, alpha=factor, out=out)

    def _result(self, p: Tensor, gradient: Tensor) -> Tensor | None:
        if gradient.is_sparse or hasattr(p, "to_local"):
            return None
        kept = self._results.get(p)
        if kept is None or kept.dtype != p.dtype or kept.device != p.device or kept.shape != p.shape:
            kept = self._results[p] = torch.empty_like(p)
        return kept


def require_step_size(optimizer: Optimizer) -> None:
    """Raise for an optimizer without a step size, which the paper's variants scale with."""
    if not all("lr" in group for group in optimizer.param_groups):
        raise ValueError(f"optimizer: {type(optimizer).__name__} has no 'lr' in its groups; expected a step size there")
