"""The configuration of a warm-starting run: what a user may set, the defaults, and the checks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from weightclip._validation import check_count, check_fraction, check_name
from weightclip.lab.config import (
    METHOD,
    NAMED,
    PROBLEM,
    MethodConfig,
    check_names,
    option,
    packaged_presets,
    with_settings,
)
from weightclip.lab.methods import named_settings, optimizer_settings, own_settings, split_method
from weightclip.lab.networks import STEMS

NAME = "warm-start"
"""Of the experiment, and of its one problem."""

SWITCH = "@switch"
"""After a remedy: once, when the second half of the data arrives, instead of after every step."""

METHODS = ("sgd", "sgd+wc", f"sgd+wc{SWITCH}")
"""Those of the paper."""

REMEDIES = ("l2", "l2init", "sp", "wc", f"sp{SWITCH}", f"wc{SWITCH}")
PAPER, DEFAULT = "paper", "default"
VARIANTS = (PAPER, DEFAULT)
SCALES = ("paper", "laptop")
STAGES = {1: "one stage", 2: "two stages"}
PRECISIONS = ("float32", "bfloat16")
COUNTS = ("epochs", "images", "test_images", "batch", "width")


@dataclass(frozen=True)
class Config(MethodConfig):
    """One run. What is None takes the value of the scale, the variant and the method (`resolve`)."""

    how = ("scale", "device", "threads", "compile")

    problem: str = field(default=NAME, metadata=option(NAME))
    method: str = field(
        default="sgd+wc",
        metadata=option(f"optimizer+regularizer+..., for example sgd, sgd+wc, sgd+wc{SWITCH}, adam+l2", METHOD),
    )
    seed: int = field(default=0, metadata=option("of initial weights, halves, order, augmentation and noise"))
    stages: int = field(default=2, metadata=option("2: one half of the data, then the other; 1: all at once", PROBLEM))
    variant: str = field(
        default=DEFAULT,
        metadata=option(
            "paper (softmax before the loss; clipping bounds normalization layers as well) or default (logits; bounds "
            "by layer); the two need different values of kappa",
            PROBLEM,
        ),
    )
    scale: str = field(default="paper", metadata=option("paper, or laptop (a run takes about five minutes)", PROBLEM))
    epochs: int | None = field(default=None, metadata=option("epochs per stage", PROBLEM))
    images: int | None = field(default=None, metadata=option("training images over all stages", PROBLEM))
    test_images: int | None = field(default=None, metadata=option("test images", PROBLEM))
    batch: int | None = field(default=None, metadata=option("batch size"))
    width: int | None = field(default=None, metadata=option("channels of the first stage of the network"))
    stem: str | None = field(
        default=None, metadata=option("stem of the network: imagenet (7x7, max-pooling) or cifar (3x3)")
    )
    augment: bool = field(default=False, metadata=option("random crops and flips"))
    precision: str = field(default="float32", metadata=option("float32, or bfloat16 (mixed precision)"))
    device: str = field(default="auto", metadata=option("auto, cpu, cuda, cuda:1, ..."))
    threads: int | None = field(default=None, metadata=option("CPU threads of PyTorch (default: PyTorch's own choice)"))
    compile: bool = field(
        default=False, metadata=option("compile the network with torch.compile (takes minutes; for GPUs)")
    )

    @classmethod
    def split(cls, method: str) -> tuple[str, tuple[str, ...]]:
        return split_method(method, REMEDIES)

    @classmethod
    def named_settings(cls, method: str) -> tuple[str, ...]:
        optimizer, remedies = cls.split(method)
        return named_settings(optimizer, [remedy.removesuffix(SWITCH) for remedy in remedies], NAMED)

    def when(self) -> tuple[list[str], list[str]]:
        """The remedies after every step, and those at the switch."""
        _, remedies = self.parts()
        always = [remedy for remedy in remedies if not remedy.endswith(SWITCH)]
        return always, [remedy.removesuffix(SWITCH) for remedy in remedies if remedy.endswith(SWITCH)]


def presets(variant: str = DEFAULT, scale: str = "paper") -> dict[str, Any]:
    """The settings searched (`grid`) and found best (`best`), of a variant at a scale."""
    tables = packaged_presets(__package__)
    table = tables[check_name("scale", scale, SCALES)][check_name("variant", variant, VARIANTS)]
    return {"grid": table["grid"], "best": {NAME: tables["rivals"] | table["best"]}}


def resolve(config: Config) -> Config:
    """The same configuration, checked, with nothing left open."""
    check_names(config, ("problem", "method", "variant", "scale", "precision", "device"))
    check_name("problem", config.problem, (NAME,))
    check_name("variant", config.variant, VARIANTS)
    check_name("precision", config.precision, PRECISIONS)
    if config.stages not in STAGES:
        raise ValueError(f"stages: got {config.stages!r}, expected 1 or 2")
    if config.stages == 1 and SWITCH in config.method:
        raise ValueError(f"stages: got 1, but {config.method} acts when the second stage begins; expected 2")
    _check_switch(config)
    size = packaged_presets(__package__)[check_name("scale", config.scale, SCALES)]["size"]
    config = replace(config, **{name: value for name, value in size.items() if getattr(config, name) is None})
    check_name("stem", str(config.stem), STEMS)
    counts: dict[str, Any] = {name: check_count(name, getattr(config, name)) for name in COUNTS}
    if counts["images"] < 4:
        raise ValueError(f"images: got {config.images!r}, expected at least 4: two halves, and two in a batch")
    if counts["batch"] < 2:
        raise ValueError("batch: got 1, expected at least 2: batch normalisation compares images")
    if config.threads is not None:
        check_count("threads", config.threads)
    config = with_settings(config, presets(config.variant, config.scale)["best"][NAME])
    if f"sp{SWITCH}" in config.parts()[1] and config.decay is not None:
        check_fraction("decay", config.decay)  # w <- (1 - decay) w + ...
    return replace(config, **counts)


def _check_switch(config: Config) -> None:
    """A ValueError if remedies at the switch and after every step would have a setting in common."""
    always, once = config.when()
    for name in own_settings(once):
        if name in (*own_settings(always), *optimizer_settings(config.parts()[0])):
            raise ValueError(
                f"method: got {config.method!r}, in which {name} would mean one thing at every step and another one at "
                f"the switch; expected one of them"
            )
