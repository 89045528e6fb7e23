"""Ensembles with parameters stacked along leading dimensions, as torch.func and torchrl store them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from weightclip._torch_private import own_modules, own_parameters


class Stacked(nn.Module):
    """The stacked parameters of one layer of an ensemble, and the corresponding layer of one member.

    Returned by `stacked`. It has the submodules and parameter names of the member, and no forward pass.
    """

    _weightclip_member: nn.Module

    def __init__(self, member: nn.Module) -> None:
        super().__init__()
        self.__dict__["_weightclip_member"] = member  # not a submodule: its parameters are not trained


def stacked(model: nn.Module, params: Mapping[str, Any]) -> Stacked:
    """Describe an ensemble to `clip_weights`: parameters [*ensemble, *shape] of members with the layers of `model`.

    The leading dimensions do not count toward fan_in: every member has the bounds of `model`.

    Args:
        model: one member; only its layers and shapes are used, so it may be on the meta device.
        params: name -> stacked tensor, as returned by `torch.func.stack_module_state`, or nested mappings, such as the
            `TensorDictParams` of a torchrl loss. Buffers are skipped.

    Examples:
        >>> import torch
        >>> members = [nn.Linear(4, 2) for _ in range(3)]
        >>> params, buffers = torch.func.stack_module_state(members)
        >>> from weightclip.bounds import resolve_bounds
        >>> resolve_bounds(stacked(members[0], params))["weight"].s
        0.5
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: got {type(model).__name__}, expected a torch.nn.Module")
    if not hasattr(params, "items"):
        raise TypeError(f"params: got {type(params).__name__}, expected a mapping of names to stacked tensors")
    shapes = {name: p.shape for name, p in model.named_parameters(remove_duplicate=False)}
    buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    given = {name: tensor for name, tensor in _flatten(params) if name not in buffers}
    for name, tensor in given.items():
        if name not in shapes:
            near = ", ".join(list(shapes)[:3])
            raise ValueError(
                f"params: {name!r} is not a parameter of {type(model).__name__}; expected one of {near}, ..."
            )
        shape = shapes[name]
        if tensor.dim() < len(shape) or tensor.shape[tensor.dim() - len(shape) :] != shape:
            expected = ", ".join(["*ensemble", *map(str, shape)])
            raise ValueError(f"params: {name!r} has shape {tuple(tensor.shape)}, expected ({expected})")
    root = Stacked(model)
    for name in shapes:
        if name in given:
            prefix, _, own = name.rpartition(".")
            own_parameters(_node(root, prefix))[own] = given[name]
    return root


def unstacked(layer: nn.Module, own_name: str, tensor: Tensor) -> tuple[nn.Module, Tensor]:
    """The member's layer and tensor for a layer of `Stacked`; any other layer and tensor unchanged."""
    if not isinstance(layer, Stacked):
        return layer, tensor
    member: Tensor = getattr(layer._weightclip_member, own_name)
    return layer._weightclip_member, member


def _node(root: Stacked, prefix: str) -> Stacked:
    node = root
    for part in prefix.split(".") if prefix else ():
        if part not in own_modules(node):
            node.add_module(part, Stacked(node._weightclip_member.get_submodule(part)))
        child = own_modules(node)[part]
        assert isinstance(child, Stacked)
        node = child
    return node


def _flatten(params: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    for key, value in params.items():
        name = f"{prefix}{'.'.join(key) if isinstance(key, tuple) else key}"
        if isinstance(value, Tensor):
            yield name, value
        elif hasattr(value, "items"):
            yield from _flatten(value, f"{name}.")
        else:
            raise TypeError(f"params: {name!r} is a {type(value).__name__}, expected a tensor or a mapping")
