"""Random valid and invalid command lines from the options of all commands."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator

from weightclip.cli import _COMMANDS, _command_parser
from weightclip.lab.registry import problems

VALUES = (
    *("0", "1", "2", "-1", "0.5", "1e-3", "1e400", "nan", "inf", "50k", "2,4", "0-2", "3-1", "", "x", "all", "none"),
    *("sgd", "adam+wc", "adma", "sgd+wc+wc", "sgd+wc@switch", "paper", "laptop", "fused", "reference", "minatar"),
    *("rainbow", "Hopper-v4", "asterix", "cpu", "beta1=0.5", "beta1", "results", "nowhere", "a/b", "x.html", "x.csv"),
)
SHORT = {
    "policy-collapse": "--env Pendulum-v1 --steps 32 --num-steps 16 --num-minibatches 2 --update-epochs 1 --hidden 4",
    "replay-ratio": "--suite minatar --game asterix --frames 200 --points 2 --learning-starts 60 --buffer-size 300 "
    "--eval-episodes 1",
    "warm-start": "--scale laptop --images 8 --test-images 4 --epochs 1 --batch-size 4 --width 4",
}
"""Options that keep an accepted run short; they follow the random options and so override them."""

STREAM = "--steps 40 --period 20 --hidden 4 --backend reference"


def options_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.option_strings]


def value(rng: random.Random) -> str:
    return rng.choice(VALUES) if rng.random() < 0.7 else str(round(rng.uniform(0, 5), 2))


def some_options(parser: argparse.ArgumentParser, rng: random.Random) -> Iterator[str]:
    for action in rng.choices(options_of(parser), k=rng.choice((0, 1, 1, 2, 3))):
        name = rng.choice(action.option_strings)
        if rng.random() < 0.05:
            name = name[:-1] or name
        if name in ("--executor", "--address", "--slurm", "--wandb"):
            continue  # clusters and external services
        yield name
        if action.nargs != 0 and rng.random() < 0.95:
            yield value(rng)


def command_line(seed: int) -> list[str]:
    """Return a random command line, determined by the seed."""
    rng = random.Random(seed)
    command = rng.choice([*_COMMANDS, "run", "run", "sweep", "sweep", "rnu"])
    if command not in _COMMANDS:
        return [command, value(rng)]
    parser = _command_parser(command)
    if command not in ("run", "sweep"):
        words = [value(rng) for _ in range(rng.choice((0, 1, 1, 2)))]
        return [command, *words, *some_options(parser, rng)]
    problem = rng.choice([*problems(), "polcy-collapse", "--out"])
    words = [command, *(some_options(parser, rng) if rng.random() < 0.2 else ()), problem]
    if problem in problems():
        (choose,) = (action for action in parser._actions if action.dest == "problem")
        words += some_options(choose._build(problem), rng)  # type: ignore[attr-defined]
        words += SHORT.get(problem, STREAM).split()
        words += ["--seeds", "1"] if "--seed" not in words and "--seeds" not in words else []
        words += ["--dry-run"] if command == "sweep" else []
    return words
