"""The configuration of a warm-starting run: fields, defaults and checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from weightclip._validation import check_name
from weightclip.lab.config import (
    METHOD,
    PROBLEM,
    Help,
    MethodConfig,
    check_fields,
    fill,
    paper_tables,
    resolve_method,
    resolver,
)
from weightclip.lab.constraints import AtLeast, Between, OneOf
from weightclip.lab.methods import RANGES, SWITCH, TORCH_WITH_SWITCH, Components, TorchPart
from weightclip.lab.networks import STEMS

if TYPE_CHECKING:
    from torch import nn

NAME = "warm-start"
"""Name of the experiment and of its only problem."""

PAPER_METHODS = ("sgd", "sgd+wc", f"sgd+wc{SWITCH}")
"""Methods of the paper."""

PAPER, DEFAULT = "paper", "default"
VARIANTS = (PAPER, DEFAULT)
SCALES = ("paper", "laptop")
STAGES = {1: "one stage", 2: "two stages"}


@dataclass(frozen=True)
class Config(MethodConfig):
    """The configuration of one run. `resolve` replaces None by the value for the scale, the variant and the method."""

    experiment = NAME
    execution_fields = ("scale", "device", "threads", "compile")
    added_fields = (*MethodConfig.added_fields, "validation", "init_kappa")

    problem: Annotated[str, OneOf(NAME), Help("the problem")] = NAME
    method: Annotated[
        str, Help(f"optimizer+regularizer+..., for example sgd, sgd+wc, sgd+wc{SWITCH}, adam+l2", METHOD)
    ] = "sgd+wc"
    stages: Annotated[
        int, OneOf(*STAGES), Help("2: half of the data, then the other half; 1: all data at once", PROBLEM)
    ] = 2
    variant: Annotated[
        str,
        OneOf(*VARIANTS),
        Help(
            "paper (softmax before the loss; clipping bounds normalization layers as well) or default (logits; bounds "
            "by layer); the two need different values of kappa",
            PROBLEM,
        ),
    ] = DEFAULT
    scale: Annotated[str, OneOf(*SCALES), Help("paper, or laptop (a run takes about five minutes)", PROBLEM)] = "paper"
    epochs: Annotated[int | None, AtLeast(1), Help("epochs per stage", PROBLEM)] = None
    # Two halves with at least two images each, which batch normalization needs.
    images: Annotated[int | None, AtLeast(4), Help("training images over all stages", PROBLEM)] = None
    test_images: Annotated[int | None, AtLeast(1), Help("test images", PROBLEM)] = None
    validation: Annotated[
        bool, Help("measure accuracy on training images that are not trained on, instead of test images", PROBLEM)
    ] = False
    batch_size: Annotated[int | None, AtLeast(2), Help("batch size")] = None
    width: Annotated[int | None, AtLeast(1), Help("channels of the first stage of the network")] = None
    stem: Annotated[
        str | None, OneOf(*STEMS), Help("stem of the network: imagenet (7x7, max-pooling) or cifar (3x3)")
    ] = None
    init_kappa: Annotated[
        float | None, RANGES["kappa"], Help("clip the initial weights once to this range, before training")
    ] = None
    augment: Annotated[bool, Help("random crops and flips")] = False
    precision: Annotated[str, OneOf("float32", "bfloat16"), Help("float32, or bfloat16 (mixed precision)")] = "float32"
    device: Annotated[str, Help("auto, cpu, cuda, cuda:1, ...")] = "auto"
    threads: Annotated[int | None, AtLeast(1), Help("CPU threads of PyTorch (default: PyTorch's own choice)")] = None
    compile: Annotated[bool, Help("compile the network with torch.compile (takes minutes; for GPUs)")] = False

    def components(self) -> Components[TorchPart]:
        return TORCH_WITH_SWITCH

    @property
    def bounds(self) -> str:
        """The clipping bounds of the variant."""
        return "paper" if self.variant == PAPER else "fan_in"

    def small_network(self) -> tuple[nn.Module, str]:
        import torch

        from weightclip.lab.networks.resnet import resnet18

        with torch.random.fork_rng(devices=[]):
            return resnet18(1, width=1, stem=str(self.stem)), self.bounds


def presets(variant: str = DEFAULT, scale: str = "paper") -> dict[str, Any]:
    """The settings searched (`grid`) and selected (`best`) for a variant at a scale."""
    tables = paper_tables(__package__)
    table = tables[check_name("scale", scale, SCALES)][check_name("variant", variant, VARIANTS)]
    return {"grid": table["grid"], "best": {NAME: tables["baselines"] | table["best"]}}


@resolver
def resolve(config: Config) -> Config:
    """Check a configuration and fill in every field."""
    config = check_fields(config)
    method = config.parsed_method()
    if config.stages == 1 and method.at_switch:
        raise ValueError(f"stages: got 1, but {config.method} acts when the second stage starts; expected 2")
    config = fill(config, paper_tables(__package__)[config.scale]["size"])
    config = resolve_method(config, presets(config.variant, config.scale)["best"][NAME])
    if "sp" in method.at_switch:
        Between(0, 1).check("decay", config.decay, float)  # w <- (1 - decay) w + sigma noise
    return config
