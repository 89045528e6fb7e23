"""Weight clipping in the Hugging Face Trainer."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer
from transformers import TrainerCallback

from weightclip._ranges import Kappa
from weightclip._validation import as_list
from weightclip.bounds import tensor_names
from weightclip.clipping import Clipper
from weightclip.integrations._attach import attach_once, check_options


class ClipCallback(TrainerCallback):
    """Clip the weights of the model that a `Trainer` trains.

    When training starts, a clipper is attached to the optimizer. An output layer that shares its matrix with the input
    embedding is skipped, unless `bounds` is a mapping or a function. Calling `train` again keeps the clipper;
    `train(resume_from_checkpoint=True)` resumes with the saved kappa.

    Args:
        kappa: the range, as in `weightclip.clip_weights`; a resumed run keeps the kappa that was saved with it.
        options: `bounds`, `include`, `exclude`, `clip_output_layers`, `every` and `track_clipped` of
            `weightclip.clip_weights`.

    Attributes:
        clipper: the attached clipper, once training has started.

    Examples:
        trainer = Trainer(model, args, train_dataset=data, callbacks=[ClipCallback(kappa=2.0)])
    """

    def __init__(self, kappa: Kappa, **options: Any) -> None:
        self.kappa, self.options = kappa, check_options(kappa, options)
        self.clipper: Clipper | None = None

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: nn.Module, optimizer: Optimizer, **others: Any
    ) -> None:
        options = dict(self.options)
        if isinstance(options.get("bounds", ""), str):
            options["exclude"] = [*as_list(options.get("exclude")), *_tied_embeddings(model)] or None
        (self.clipper,) = attach_once([optimizer], model, self.kappa, options)


def _tied_embeddings(model: Any) -> list[str]:
    """The name of the input embedding's matrix, if it is tied to the output layer."""
    layers = [getattr(model, get)() for get in ("get_input_embeddings", "get_output_embeddings") if hasattr(model, get)]
    weights = [getattr(layer, "weight", None) for layer in layers]
    if len(weights) < 2 or weights[0] is None or weights[0] is not weights[1]:
        return []
    return tensor_names(model)[id(weights[0])][:1]
