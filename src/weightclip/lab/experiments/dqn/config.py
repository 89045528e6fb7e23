"""The configuration of a run of DQN or Rainbow: what a user may set, the defaults, and the checks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import cache
from typing import Any

from weightclip._validation import check_count, check_finite, check_fraction, check_name, check_number, check_truth
from weightclip.lab.config import (
    METHOD,
    OUTPUT,
    PROBLEM,
    MethodConfig,
    check_names,
    option,
    packaged_presets,
    with_settings,
)
from weightclip.lab.experiments.dqn.games import FRAME_SKIP, STACK, SUITES, suite_name

NAME = "replay-ratio"
"""Of the experiment, and of its one problem."""

METHODS = ("adam", "adam+wc")
"""Those of the paper."""

PAPER_RATIOS = (1.0, 0.1)
"""What the paper runs, and Tianshou's own, which it compares with."""

AGENTS = ("dqn", "rainbow")
LOSSES = ("squared", "huber")
RAINBOWS = ("alpha", "beta", "beta_steps", "dueling", "noisy", "noise", "atoms", "v_min", "v_max")
OTHERS = {"dqn": RAINBOWS, "rainbow": ("loss",), "minatar": ("lives",)}
"""Options that an agent, or a suite, does not have."""

TRUTHS = ("double", "dueling", "noisy", "scaled", "clip_rewards", "lives", "save_memory")
SHARES = ("sticky", "gamma", "epsilon", "epsilon_final", "epsilon_test", "alpha", "beta")
COUNTS = ("frames", "environments", "memory", "batch", "n_step", "target_every", "points", "episodes", "threads")


@dataclass(frozen=True)
class Config(MethodConfig):
    """One run. What is None takes the value of the suite, the agent and the method (`resolve`)."""

    how = ("device", "threads", "save_memory")

    problem: str = field(default=NAME, metadata=option(NAME))
    seed: int = field(default=0, metadata=option("of initial weights, games, exploration, replay and noise"))
    suite: str = field(default="atari", metadata=option("atari or minatar", PROBLEM))
    agent: str = field(default="dqn", metadata=option("dqn or rainbow", PROBLEM))
    game: str = field(default="SpaceInvaders", metadata=option("for example SpaceInvaders or space_invaders", PROBLEM))
    replay_ratio: float = field(default=1.0, metadata=option("gradient updates per environment step", PROBLEM))
    bounds: str | None = field(default=None, metadata=option("of clipping: fan_in (by layer) or paper", METHOD))
    frames: int | None = field(default=None, metadata=option("total frames; an Atari step has 4", PROBLEM))
    environments: int | None = field(default=None, metadata=option("parallel environments", PROBLEM))
    sticky: float | None = field(default=None, metadata=option("probability of sticky actions", PROBLEM))
    memory: int | None = field(default=None, metadata=option("replay buffer size in transitions"))
    batch: int = field(default=32, metadata=option("batch size"))
    gamma: float = field(default=0.99, metadata=option("discount factor"))
    n_step: int = field(default=3, metadata=option("n of n-step returns"))
    double: bool = field(default=True, metadata=option("double Q-learning"))
    loss: str = field(default="squared", metadata=option("loss of DQN: squared or huber"))
    target_every: int = field(default=500, metadata=option("updates between copies to the target network"))
    warm_up: int | None = field(default=None, metadata=option("steps before the first update"))
    epsilon: float = field(default=1.0, metadata=option("initial epsilon"))
    epsilon_final: float = field(default=0.05, metadata=option("final epsilon"))
    epsilon_steps: int | None = field(default=None, metadata=option("epsilon annealing steps"))
    epsilon_test: float = field(default=0.005, metadata=option("epsilon during evaluation"))
    alpha: float = field(default=0.5, metadata=option("priority exponent of Rainbow; 0 is uniform replay"))
    beta: float = field(default=0.4, metadata=option("initial importance-sampling exponent of Rainbow"))
    beta_steps: int = field(default=5_000_000, metadata=option("steps in which beta is annealed to 1"))
    dueling: bool = field(default=True, metadata=option("dueling network of Rainbow"))
    noisy: bool = field(default=True, metadata=option("noisy layers of Rainbow"))
    noise: float = field(default=0.1, metadata=option("initial sigma of noisy layers"))
    atoms: int = field(default=51, metadata=option("atoms of Rainbow's value distribution"))
    v_min: float = field(default=-10.0, metadata=option("value of the first atom"))
    v_max: float = field(default=10.0, metadata=option("value of the last atom"))
    scaled: bool = field(default=False, metadata=option("divide pixels by 255"))
    clip_rewards: bool | None = field(default=None, metadata=option("learn from the signs of rewards", PROBLEM))
    lives: bool = field(default=True, metadata=option("losing a life ends a training episode", PROBLEM))
    points: int = field(default=100, metadata=option("rows of the table: equal parts of the run", OUTPUT))
    episodes: int = field(default=5, metadata=option("episodes per evaluation", OUTPUT))
    covariance: int = field(
        default=32, metadata=option("transitions of the gradient covariance matrix; 0 records none", OUTPUT)
    )
    covariance_at: tuple[int, ...] = field(
        default=(100,), metadata=option("when to record it, in percent of the run", OUTPUT)
    )
    device: str = field(default="auto", metadata=option("auto, cpu, cuda, cuda:1, ..."))
    threads: int = field(default=1, metadata=option("CPU threads of PyTorch"))
    save_memory: bool = field(
        default=True,
        metadata=option("save the replay buffer in checkpoints", OUTPUT),
    )

    @property
    def stack(self) -> int:
        """Frames that make a state."""
        return STACK[self.suite]

    @property
    def steps(self) -> int:
        """Of all games together; of a resolved configuration."""
        return check_count("frames", self.frames) // FRAME_SKIP[self.suite]

    def updates_after(self, steps: int) -> int:
        """How many there are after so many steps: exactly the replay ratio of those after the warm-up, rounded down."""
        return int(_exact(self.replay_ratio) * max(0, steps - (self.warm_up or 0)))

    @property
    def most_updates(self) -> int:
        """At most so many between two steps of all games: twice those of the replay ratio, for a run that is behind."""
        return 2 * math.ceil(_exact(self.replay_ratio) * (self.environments or 1))

    @property
    def least_warm_up(self) -> int:
        """Steps after which the memory has enough for a batch."""
        return self.batch + (self.environments or 1) * (self.n_step + 1)

    def epsilon_after(self, steps: int) -> float:
        """The probability of a random action after so many steps."""
        done = min(1.0, steps / max(1, self.epsilon_steps or 0))
        return self.epsilon + done * (self.epsilon_final - self.epsilon)

    def beta_after(self, steps: int) -> float:
        """That of importance weights after so many steps."""
        return self.beta + min(1.0, steps / max(1, self.beta_steps)) * (1.0 - self.beta)


@cache
def _exact(ratio: float) -> Fraction:
    """0.1 as 1/10: as it is written."""
    return Fraction(str(ratio))


def presets(suite: str = "atari", agent: str = "dqn") -> dict[str, Any]:
    """The settings searched (`grid`) and found best (`best`), of an agent on a suite."""
    tables = packaged_presets(__package__)
    table = tables[check_name("suite", suite, SUITES)][check_name("agent", agent, AGENTS)]
    return {"grid": table["grid"], "best": {NAME: {**table["best"], **tables["rivals"]}}}


def resolve(config: Config) -> Config:
    """The same configuration, checked, with nothing left open."""
    check_names(config, ("problem", "suite", "agent", "game", "method", "loss", "device"))
    check_name("problem", config.problem, (NAME,))
    check_name("loss", config.loss, LOSSES)
    check_name("agent", config.agent, AGENTS)
    usual = packaged_presets(__package__)[check_name("suite", config.suite, SUITES)]["usual"]
    config = replace(config, **_no_others(config))
    config = replace(config, **{name: value for name, value in usual.items() if getattr(config, name) is None})
    config = replace(config, **_checked(config))
    config = replace(config, frames=_whole_frames(config))
    _check_sizes(config)
    config = with_settings(config, presets(config.suite, config.agent)["best"][NAME])
    bounds = config.checked_bounds(config.bounds, "fan_in")
    return replace(config, game=suite_name(config.suite, config.game), bounds=bounds)


def _no_others(config: Config) -> dict[str, Any]:
    """What changes nothing, alike in all runs; a ValueError for an option that the agent or the suite does not have."""
    usual = {one.name: one.default for one in fields(Config)}
    for owner in (config.agent, config.suite):
        for name in OTHERS.get(owner, ()):
            if getattr(config, name) != usual[name]:
                raise ValueError(f"{name}: got {getattr(config, name)!r}, but {owner} has no such option")
    off = {
        *(() if config.covariance else ("covariance_at",)),
        *(() if config.noisy else ("noise",)),
        *(() if config.alpha else ("beta", "beta_steps")),
    }
    return {name: usual[name] for name in off}


def _whole_frames(config: Config) -> int:
    """Those of whole steps of all games."""
    frames, step = check_count("frames", config.frames), FRAME_SKIP[config.suite] * (config.environments or 1)
    if frames < step:
        raise ValueError(f"frames: got {frames}, expected at least {step}: a step of all games")
    return frames - frames % step


def _checked(config: Config) -> dict[str, Any]:
    """What is no name, each as the type of its field: a 1 and a 1.0 make one run."""
    found: dict[str, Any] = {name: check_count(name, getattr(config, name)) for name in COUNTS}
    found["atoms"] = check_count("atoms", config.atoms, least=2)
    for name in ("warm_up", "epsilon_steps", "beta_steps", "covariance"):
        found[name] = check_count(name, getattr(config, name), least=0)
    if found["covariance"] == 1:
        raise ValueError("covariance: got 1, expected at least 2 transitions, or 0: none")
    found |= {name: check_fraction(name, getattr(config, name)) for name in SHARES}
    found |= {name: check_finite(name, getattr(config, name)) for name in ("v_min", "v_max")}
    found |= {name: check_truth(name, getattr(config, name)) for name in TRUTHS}
    found["replay_ratio"] = check_number("replay_ratio", config.replay_ratio)
    found["noise"] = check_number("noise", config.noise, zero=True)
    if not found["v_min"] < found["v_max"]:
        raise ValueError(f"v_max: got {config.v_max!r}, expected more than v_min, {config.v_min!r}")
    if not isinstance(config.covariance_at, Sequence) or not config.covariance_at:
        raise ValueError(
            f"covariance_at: got {config.covariance_at!r}, expected percents of the run, such as (50, 100)"
        )
    found["covariance_at"] = tuple(sorted({check_count("covariance_at", percent) for percent in config.covariance_at}))
    for percent in found["covariance_at"]:
        if percent > 100 or percent * config.points % 100:
            ends = f"ends of its {config.points} parts"
            raise ValueError(f"covariance_at: got {percent}, expected percents of the run, from 1 to 100, at {ends}")
    return found


def _check_sizes(config: Config) -> None:
    environments, memory = check_count("environments", config.environments), check_count("memory", config.memory)
    least = environments * (config.n_step + config.stack + 2)
    if memory < max(least, config.batch):
        raise ValueError(f"memory: got {memory}, expected at least {max(least, config.batch)}")
    if config.steps <= (config.warm_up or 0):
        raise ValueError(f"warm_up: got {config.warm_up}, expected fewer than the run's {config.steps} steps")
    if config.steps < config.points * environments:
        raise ValueError(f"points: got {config.points}, expected at most {max(1, config.steps // environments)} here")
    if (config.warm_up or 0) < config.least_warm_up:
        least = config.least_warm_up
        raise ValueError(f"warm_up: got {config.warm_up}, expected at least {least}: enough for a batch")
