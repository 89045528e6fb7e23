"""Weight clipping in Lightning."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from weightclip._ranges import Kappa
from weightclip.clipping import Clipper
from weightclip.integrations._attach import attach_once, check_options


class ClipCallback(Callback):
    """Clip the weights that the optimizers of a `LightningModule` train.

    A clipper is attached to each optimizer when fitting starts, before a checkpoint is loaded. Calling `fit` again
    attaches to new optimizers.

    Args:
        kappa: the range, as in `weightclip.clip_weights`; a checkpoint restores its own.
        options: `bounds`, `include`, `exclude`, `clip_output_layers`, `every` and `track_clipped` of
            `weightclip.clip_weights`.

    Attributes:
        clippers: the attached clippers, once fitting has started.

    Examples:
        trainer = Trainer(callbacks=[ClipCallback(kappa=2.0)])
    """

    def __init__(self, kappa: Kappa, **options: Any) -> None:
        self.kappa, self.options = kappa, check_options(kappa, options)
        self.clippers: list[Clipper] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach to the optimizers, which exist by now."""
        self.clippers = attach_once(trainer.optimizers, pl_module, self.kappa, self.options)
