"""Output layers of a network, found by tracing its forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import fx, nn


def find_output_layers(model: nn.Module, is_layer: Callable[[nn.Module], bool]) -> list[nn.Module]:
    """The layers with weights that feed the outputs of `model.forward` without another such layer in between.

    A layer that also feeds another layer found this way is hidden: features or states that are returned with the
    outputs, and all but the last block of a residual network without a head. The last application of a layer decides.

    `is_layer` decides which modules count as one layer. The forward pass is traced symbolically. A model that cannot
    be traced, or with layers that the forward pass does not reach, raises a ValueError that asks for names. The members
    of an `nn.ModuleList` or `nn.ModuleDict` are networks of their own.
    """
    if _is_weight_layer(model, is_layer):
        return [model]
    if type(model).forward is nn.Module.forward and isinstance(model, (nn.ModuleList, nn.ModuleDict)):
        return _find_in_members(model, is_layer)
    layers = {name: m for name, m in model.named_modules() if is_layer(m) and _has_weights(m)}
    tracer = _Tracer(is_layer)
    try:
        graph = tracer.trace(model)
    except Exception as error:  # user code may raise any exception for symbolic values
        raise ValueError(_ask(model, f"its forward pass cannot be traced ({_first_line(error)})", layers)) from error
    reached = {id(model.get_submodule(str(n.target))) for n in graph.nodes if n.op == "call_module"}
    missed = [name for name, layer in layers.items() if id(layer) not in reached and not _inside(name, layers)]
    if missed:
        raise ValueError(_ask(model, f"its forward pass does not reach {', '.join(missed)}", layers))

    found: dict[fx.Node, nn.Module] = {}
    open_nodes = [node for node in graph.nodes if node.op == "output"]
    seen = set(open_nodes)
    while open_nodes:
        for node in open_nodes.pop().all_input_nodes:
            if node.op == "get_attr" and isinstance(_attribute(model, str(node.target)), nn.Parameter):
                raise ValueError(_ask(model, f"its output is computed from {node.target} outside a layer", layers))
            layer = model.get_submodule(str(node.target)) if node.op == "call_module" else None
            if layer is not None and _is_weight_layer(layer, is_layer):
                found[node] = layer
            elif node not in seen and not _reads_shape(node):
                seen.add(node)
                open_nodes.append(node)
    return _without_hidden(graph, found)


def _without_hidden(graph: fx.Graph, found: Mapping[fx.Node, nn.Module]) -> list[nn.Module]:
    """The layers with an application that feeds no application of another layer, among those found."""
    fed: dict[fx.Node, set[int]] = {}  # node -> ids of the layers among those found that it feeds
    for node in reversed(graph.nodes):
        users = [] if _reads_shape(node) else list(node.users)
        fed[node] = {id(found[user]) for user in users if user in found}.union(*(fed[user] for user in users))
    kept = {id(layer): layer for node, layer in found.items() if fed[node] <= {id(layer)}}
    return list(kept.values())


def _reads_shape(node: fx.Node) -> bool:
    """Whether a node reads the shape or the type of a tensor, which do not depend on its entries."""
    if node.op == "call_method":
        return node.target in ("size", "dim", "numel", "stride", "ndimension", "nelement", "element_size")
    return node.target is getattr and node.args[1] in ("shape", "ndim", "dtype", "device", "itemsize", "layout")


def _find_in_members(model: nn.Module, is_layer: Callable[[nn.Module], bool]) -> list[nn.Module]:
    """The output layers of each member of a list or dictionary of networks, such as an actor and a critic.

    A single layer as a member is probably part of a network whose other layers are members as well.
    """
    members = {name: member for name, member in model.named_children() if _has_weights(member)}
    layers = {name: m for name, m in model.named_modules() if is_layer(m) and _has_weights(m)}
    single = [name for name, member in members.items() if _is_weight_layer(member, is_layer)]
    if single or not members:
        why = f"its member {single[0]} is a single layer" if single else "it has no layers"
        raise ValueError(_ask(model, f"{why}, so its members may be parts of one network", layers))
    found: dict[int, nn.Module] = {}
    for name, member in members.items():
        try:
            found |= {id(layer): layer for layer in find_output_layers(member, is_layer)}
        except ValueError as error:
            reason = str(error).partition(", because ")[2].partition("; name them")[0]
            raise ValueError(_ask(model, f"in member {name}, {reason}", layers)) from error
    return list(found.values())


def _attribute(model: nn.Module, name: str) -> object:
    owner, _, own = name.rpartition(".")
    return getattr(model.get_submodule(owner), own)


class _Tracer(fx.Tracer):
    def __init__(self, is_layer: Callable[[nn.Module], bool]) -> None:
        super().__init__()
        self._is_layer = is_layer

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return self._is_layer(m) or super().is_leaf_module(m, module_qualified_name)


def _is_weight_layer(layer: nn.Module, is_layer: Callable[[nn.Module], bool]) -> bool:
    return is_layer(layer) and _has_weights(layer)


def _has_weights(layer: nn.Module) -> bool:
    """Whether the layer has a matrix; normalization layers and activations with slopes do not."""
    return any(p.dim() >= 2 for p in layer.parameters())


def _inside(name: str, layers: dict[str, Any]) -> bool:
    """Whether the layer is part of a larger one, such as the output projection of attention."""
    return any(name.startswith(f"{outer}.") for outer in layers)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__


def _ask(model: nn.Module, why: str, layers: dict[str, nn.Module]) -> str:
    return (
        f"clip_output_layers=False: cannot find the output layers of {type(model).__name__}, because {why}; "
        f"name them in exclude=[...], e.g. one or more of {', '.join(f'{name}.*' for name in layers)}"
    )
