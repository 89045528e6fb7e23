"""The configuration of a warm-starting run: what a user may set, the defaults, and the checks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any

from weightclip.checks import check_choice, check_count, check_seed
from weightclip.lab.methods import check_other_settings, choose_settings, named_settings, split_method
from weightclip.lab.nets.resnet import STEMS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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
PRECISIONS = ("float32", "bfloat16")
NAMED = ("lr", "kappa", "decay", "sigma")
"""Settings with a field of their own; other ones (the optimizer's `momentum`, ...) go into `settings`."""

COUNTS = ("epochs", "images", "test_images", "batch", "width")
HOW = ("scale", "device", "threads", "compile")
"""Fields that say how a run is made, or stand for others; the run's numbers are not theirs."""


def _help(text: str) -> dict[str, str]:
    return {"help": text}


@dataclass(frozen=True)
class Config:
    """One run. What is None takes the value of the scale, the variant and the method (`resolve`)."""

    problem: str = field(default=NAME, metadata=_help(NAME))
    method: str = field(
        default="sgd+wc", metadata=_help(f"optimizer+remedy+..., for example sgd, sgd+wc, sgd+wc{SWITCH}, adam+l2")
    )
    stages: int = field(default=2, metadata=_help("2: one half of the data, then the other; 1: all of it at once"))
    variant: str = field(
        default=DEFAULT, metadata=_help("paper (softmax before the loss, the paper's bounds), or default (logits)")
    )
    scale: str = field(default="paper", metadata=_help("paper, or laptop (a run in about five minutes)"))
    lr: float | None = field(default=None, metadata=_help("step size"))
    kappa: float | None = field(default=None, metadata=_help("half-width of the box in units of s_l (wc)"))
    decay: float | None = field(default=None, metadata=_help("lambda of l2, l2init and sp"))
    sigma: float | None = field(default=None, metadata=_help("standard deviation of sp's noise"))
    settings: Mapping[str, float] = field(
        default_factory=dict, metadata=_help("other arguments of the optimizer, for example momentum=0.9")
    )
    seed: int = field(default=0, metadata=_help("fixes initial weights, halves, order, augmentation and noise"))
    epochs: int | None = field(default=None, metadata=_help("of each stage"))
    images: int | None = field(default=None, metadata=_help("training images, over all stages"))
    test_images: int | None = field(default=None, metadata=_help("images to test on"))
    batch: int | None = field(default=None, metadata=_help("images in a batch"))
    width: int | None = field(default=None, metadata=_help("channels of the network's first stage"))
    stem: str | None = field(default=None, metadata=_help("the network's: imagenet (7x7, pooling) or cifar (3x3)"))
    augment: bool = field(default=False, metadata=_help("crop and flip images at random"))
    precision: str = field(default="float32", metadata=_help("float32, or bfloat16 (mixed; where it is faster)"))
    device: str = field(default="auto", metadata=_help("auto, cpu, cuda, cuda:1, ..."))
    threads: int | None = field(default=None, metadata=_help("of PyTorch on the CPU; default: its own choice"))
    compile: bool = field(default=False, metadata=_help("compile the network with torch.compile"))

    def parts(self) -> tuple[str, tuple[str, ...]]:
        """The optimizer and the remedies."""
        return split_method(self.method, REMEDIES)

    def all_settings(self) -> dict[str, float]:
        """Every setting of the method by name; of a resolved configuration."""
        named = {name: getattr(self, name) for name in NAMED if getattr(self, name) is not None}
        return {**named, **self.settings}

    def facts(self) -> dict[str, Any]:
        """What the run's numbers depend on."""
        return {name: value for name, value in asdict(self).items() if name not in HOW}


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads((files(__package__) / "presets.toml").read_text())


def presets(variant: str = DEFAULT, scale: str = "paper") -> dict[str, Any]:
    """The settings searched (`grid`) and found best (`best`), of a variant at a scale."""
    table = _tables()[check_choice("scale", scale, SCALES)][check_choice("variant", variant, VARIANTS)]
    return {"grid": table["grid"], "best": {NAME: table["best"]}}


def method_settings(method: str) -> tuple[str, ...]:
    """The settings of a method that have a field of their own."""
    optimizer, remedies = split_method(method, REMEDIES)
    return named_settings(optimizer, [remedy.removesuffix(SWITCH) for remedy in remedies], NAMED)


def resolve(config: Config) -> Config:
    """The same configuration, checked, with nothing left open."""
    for name in ("problem", "method", "variant", "scale", "precision", "device"):
        if not isinstance(getattr(config, name), str):
            raise ValueError(f"{name}: got {getattr(config, name)!r}, expected a name")
    check_choice("problem", config.problem, (NAME,))
    check_choice("variant", config.variant, VARIANTS)
    check_choice("precision", config.precision, PRECISIONS)
    if config.stages not in (1, 2):
        raise ValueError(f"stages: got {config.stages!r}, expected 1 or 2")
    if config.stages == 1 and SWITCH in config.method:
        raise ValueError(f"stages: got 1, but {config.method} acts when the second stage begins; expected 2")
    size = _tables()[check_choice("scale", config.scale, SCALES)]["size"]
    config = replace(config, **{name: value for name, value in size.items() if getattr(config, name) is None})
    check_choice("stem", str(config.stem), STEMS)
    counts: dict[str, Any] = {name: check_count(name, getattr(config, name)) for name in COUNTS}
    if counts["images"] < 4:
        raise ValueError(f"images: got {config.images!r}, expected at least 4: two halves, and two in a batch")
    if counts["batch"] < 2:
        raise ValueError("batch: got 1, expected at least 2: batch normalisation compares images")
    if config.threads is not None:
        check_count("threads", config.threads)
    return replace(config, **counts, **_settings(config), seed=check_seed(config.seed))


def _settings(config: Config) -> dict[str, Any]:
    """The method's settings: given, or those of the presets, a combination's from its parts."""
    optimizer, remedies = config.parts()
    best = presets(config.variant, config.scale)["best"][NAME]
    parts = (optimizer, *(f"{optimizer}+{remedy}" for remedy in remedies), config.method)
    given = {name: getattr(config, name) for name in NAMED if getattr(config, name) is not None}
    names = method_settings(config.method)
    found = choose_settings(config.method, names, [best.get(part, {}) for part in parts], given)
    own = check_other_settings(config.settings, [one.name for one in fields(Config)])
    return {**{name: found.get(name) for name in NAMED}, "settings": own}
