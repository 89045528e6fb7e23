"""Attachment of clippers to the optimizers of a host library, shared by all callbacks."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from weightclip._ranges import Kappa, read_kappa
from weightclip._renamed import rename_arguments
from weightclip._validation import check_name
from weightclip.clipping import Clipper, NothingToClipError, clip_weights, find_clipper


def check_options(kappa: Kappa, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of `clip_weights` under their new names; raise for an invalid kappa or option."""
    read_kappa(kappa)
    options = rename_arguments("clip_weights", options, stacklevel=5)
    known = inspect.signature(clip_weights).parameters
    for name in options:
        check_name("ClipCallback", name, [one for one in known if one not in ("optimizer", "model", "kappa")])
    return options


def attach_once(
    optimizers: Iterable[Optimizer], model: nn.Module, kappa: Kappa, options: dict[str, Any]
) -> list[Clipper]:
    """Attach a clipper to each optimizer that has none, and return the clippers of all optimizers.

    Optimizers with nothing to clip (that of an entropy coefficient, for example) are skipped, unless all are.
    """
    clippers: list[Clipper] = []
    nothing: NothingToClipError | None = None
    for optimizer in optimizers:
        found = find_clipper(optimizer)
        try:
            clipper = found or clip_weights(optimizer, model, kappa, **options)
        except NothingToClipError as error:
            nothing = error
            continue
        _warn_if_other(clipper, kappa, attached=found is not None)
        clippers.append(clipper)
    if not clippers:
        raise nothing or ValueError("optimizer: got none from the host, expected at least one for clip_weights")
    return clippers


def _warn_if_other(clipper: Clipper, kappa: Kappa, attached: bool) -> None:
    """Warn if the optimizer keeps another kappa, from a clipper that was attached before or from a checkpoint.

    `clip_weights` warns if it keeps the rule of a checkpoint, or a number instead of a rule.
    """
    number, rule = read_kappa(kappa)
    kappas = {group.get("kappa") for group in clipper.optimizer.param_groups}
    if (attached and rule != clipper.rule) or (rule is None and clipper.rule is None and kappas != {number}):
        warnings.warn(
            f"ClipCallback: the optimizer keeps {clipper!r}; kappa={kappa!s} of the callback is ignored", stacklevel=3
        )
