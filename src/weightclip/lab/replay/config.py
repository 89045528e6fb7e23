"""The configuration of a run of DQN or Rainbow: what a user may set, the defaults, and the checks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from fractions import Fraction
from functools import cache
from importlib.resources import files
from typing import Any

from weightclip.checks import check_choice, check_count, check_number, check_seed
from weightclip.lab.methods import check_other_settings, choose_settings, named_settings, split_method
from weightclip.lab.replay.games import FRAME_SKIP, STACK, SUITES, game_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAME = "replay-ratio"
"""Of the experiment, and of its one problem."""

METHODS = ("adam", "adam+wc")
"""Those of the paper."""

AGENTS = ("dqn", "rainbow")
BOUNDS = ("default", "paper")
LOSSES = ("squared", "huber")
NAMED = ("lr", "kappa", "decay", "sigma")
"""Settings with a field of their own; other ones (Adam's `beta2`, ...) go into `settings`."""

HOW = ("device", "threads", "save_memory")
"""Fields that say how a run is made; the run's numbers are not theirs."""

COUNTS = ("frames", "environments", "memory", "batch", "n_step", "target_every", "points", "episodes", "atoms")


def _help(text: str) -> dict[str, str]:
    return {"help": text}


@dataclass(frozen=True)
class Config:
    """One run. What is None takes the value of the suite, the agent and the method (`resolve`)."""

    problem: str = field(default=NAME, metadata=_help(NAME))
    suite: str = field(default="atari", metadata=_help("atari, or minatar"))
    agent: str = field(default="dqn", metadata=_help("dqn, or rainbow"))
    game: str = field(default="SpaceInvaders", metadata=_help("for example SpaceInvaders, or space_invaders"))
    method: str = field(
        default="adam+wc", metadata=_help("optimizer+remedy+..., for example adam, adam+wc, adam+l2init")
    )
    replay_ratio: float = field(default=1.0, metadata=_help("updates for each step of the game, on average"))
    bounds: str = field(default="default", metadata=_help("of clipping: default (by layer), or paper (by shape)"))
    lr: float | None = field(default=None, metadata=_help("step size"))
    kappa: float | None = field(default=None, metadata=_help("half-width of the box in units of s_l (wc)"))
    decay: float | None = field(default=None, metadata=_help("lambda of l2, l2init and sp"))
    sigma: float | None = field(default=None, metadata=_help("standard deviation of sp's noise"))
    settings: Mapping[str, float] = field(
        default_factory=dict, metadata=_help("other arguments of the optimizer, for example beta2=0.9")
    )
    seed: int = field(default=0, metadata=_help("fixes initial weights, games, exploration, replay and noise"))
    frames: int | None = field(default=None, metadata=_help("of the game, in all; a step of Atari has 4, of MinAtar 1"))
    environments: int | None = field(default=None, metadata=_help("games at once"))
    sticky: float | None = field(default=None, metadata=_help("probability of repeating the last action"))
    memory: int | None = field(default=None, metadata=_help("transitions that are remembered"))
    batch: int = field(default=32, metadata=_help("transitions in an update"))
    gamma: float = field(default=0.99, metadata=_help("discount"))
    n_step: int = field(default=3, metadata=_help("steps of a return before values take over"))
    double: bool = field(default=True, metadata=_help("the online network chooses the action that the target judges"))
    loss: str = field(default="squared", metadata=_help("of DQN: squared, or huber"))
    target_every: int = field(default=500, metadata=_help("updates between copies of the target network"))
    warm_up: int | None = field(default=None, metadata=_help("steps before the first update"))
    epsilon: float = field(default=1.0, metadata=_help("probability of an action by chance, at first"))
    epsilon_final: float = field(default=0.05, metadata=_help("and in the end"))
    epsilon_steps: int | None = field(default=None, metadata=_help("steps until then"))
    epsilon_test: float = field(default=0.005, metadata=_help("while it is evaluated"))
    alpha: float = field(default=0.5, metadata=_help("of Rainbow's priorities; 0: all transitions alike"))
    beta: float = field(default=0.4, metadata=_help("of importance weights, at first"))
    beta_steps: int = field(default=5_000_000, metadata=_help("steps until it is 1"))
    dueling: bool = field(default=True, metadata=_help("of Rainbow"))
    noisy: bool = field(default=True, metadata=_help("of Rainbow"))
    noise: float = field(default=0.1, metadata=_help("sigma of noisy layers, at first"))
    atoms: int = field(default=51, metadata=_help("of Rainbow's distributions"))
    v_min: float = field(default=-10.0, metadata=_help("the first atom"))
    v_max: float = field(default=10.0, metadata=_help("the last atom"))
    scaled: bool = field(default=False, metadata=_help("divide pixels by 255"))
    clip_rewards: bool | None = field(default=None, metadata=_help("learn from the signs of rewards"))
    lives: bool = field(default=True, metadata=_help("a lost life ends an episode, for learning"))
    points: int = field(default=100, metadata=_help("of the curves: equal parts of the run"))
    episodes: int = field(default=5, metadata=_help("of an evaluation, after each part"))
    covariance: int = field(default=0, metadata=_help("transitions of a gradient covariance matrix; 0: none"))
    covariance_at: tuple[int, ...] = field(default=(100,), metadata=_help("when it is taken, in percent of the run"))
    device: str = field(default="auto", metadata=_help("auto, cpu, cuda, cuda:1, ..."))
    threads: int = field(default=1, metadata=_help("of PyTorch on the CPU"))
    save_memory: bool = field(default=True, metadata=_help("with checkpoints; else a run that goes on fills it anew"))

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
        beyond = max(0, steps - (self.warm_up or 0))
        return int(Fraction(str(self.replay_ratio)) * beyond)

    def epsilon_after(self, steps: int) -> float:
        """The probability of an action by chance after so many steps."""
        done = min(1.0, steps / max(1, self.epsilon_steps or 0))
        return self.epsilon + done * (self.epsilon_final - self.epsilon)

    def beta_after(self, steps: int) -> float:
        """That of importance weights after so many steps."""
        return self.beta + min(1.0, steps / max(1, self.beta_steps)) * (1.0 - self.beta)

    def parts(self) -> tuple[str, tuple[str, ...]]:
        """The optimizer and the remedies."""
        return split_method(self.method)

    def all_settings(self) -> dict[str, float]:
        """Every setting of the method by name; of a resolved configuration."""
        named = {name: getattr(self, name) for name in NAMED if getattr(self, name) is not None}
        return {**named, **self.settings}

    def facts(self) -> dict[str, Any]:
        """What the run's numbers depend on."""
        own = {name: value for name, value in asdict(self).items() if name not in HOW}
        return {**own, "covariance_at": list(self.covariance_at)}


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads((files(__package__) / "presets.toml").read_text())


def presets(suite: str = "atari", agent: str = "dqn") -> dict[str, Any]:
    """The settings searched (`grid`) and found best (`best`), of an agent on a suite."""
    table = _tables()[check_choice("suite", suite, SUITES)][check_choice("agent", agent, AGENTS)]
    return {"grid": table["grid"], "best": {NAME: table["best"]}}


def method_settings(method: str) -> tuple[str, ...]:
    """The settings of a method that have a field of their own."""
    return named_settings(*split_method(method), NAMED)


def resolve(config: Config) -> Config:
    """The same configuration, checked, with nothing left open."""
    for name in ("problem", "suite", "agent", "game", "method", "bounds", "loss", "device"):
        if not isinstance(getattr(config, name), str):
            raise ValueError(f"{name}: got {getattr(config, name)!r}, expected a name")
    check_choice("problem", config.problem, (NAME,))
    check_choice("bounds", config.bounds, BOUNDS)
    check_choice("loss", config.loss, LOSSES)
    check_choice("agent", config.agent, AGENTS)
    usual = _tables()[check_choice("suite", config.suite, SUITES)]["usual"]
    config = replace(config, **{name: value for name, value in usual.items() if getattr(config, name) is None})
    counts: dict[str, Any] = {name: check_count(name, getattr(config, name)) for name in COUNTS}
    for name in ("warm_up", "epsilon_steps", "beta_steps", "covariance"):
        counts[name] = check_count(name, getattr(config, name), least=0)
    for name in ("sticky", "gamma", "epsilon", "epsilon_final", "epsilon_test", "alpha", "beta"):
        if check_number(name, getattr(config, name), zero=True) > 1:
            raise ValueError(f"{name}: got {getattr(config, name)!r}, expected a number from 0 to 1")
    check_number("replay_ratio", config.replay_ratio)
    check_number("noise", config.noise, zero=True)
    if not config.v_min < config.v_max:
        raise ValueError(f"v_max: got {config.v_max!r}, expected more than v_min, {config.v_min!r}")
    for percent in config.covariance_at:
        if check_count("covariance_at", percent) > 100:
            raise ValueError(f"covariance_at: got {percent}, expected percents of the run, from 1 to 100")
    _check_sizes(replace(config, **counts))
    return replace(config, **counts, **_settings(config), game=game_name(config.game), seed=check_seed(config.seed))


def _check_sizes(config: Config) -> None:
    environments, memory = check_count("environments", config.environments), check_count("memory", config.memory)
    least = environments * (config.n_step + config.stack + 2)
    if memory < max(least, config.batch):
        raise ValueError(f"memory: got {memory}, expected at least {max(least, config.batch)}")
    if config.steps < config.points * environments:
        raise ValueError(f"points: got {config.points}, expected at most {max(1, config.steps // environments)} here")
    least = config.batch + environments * (config.n_step + 1)
    if (config.warm_up or 0) < least:
        raise ValueError(f"warm_up: got {config.warm_up}, expected at least {least}: enough for a batch")


def _settings(config: Config) -> dict[str, Any]:
    """The method's settings: given, or those of the presets, a combination's from its parts."""
    optimizer, remedies = config.parts()
    best = presets(config.suite, config.agent)["best"][NAME]
    parts = (optimizer, *(f"{optimizer}+{remedy}" for remedy in remedies), config.method)
    given = {name: getattr(config, name) for name in NAMED if getattr(config, name) is not None}
    found = choose_settings(
        config.method, method_settings(config.method), [best.get(part, {}) for part in parts], given
    )
    own = check_other_settings(config.settings, [one.name for one in fields(Config)])
    return {**{name: found.get(name) for name in NAMED}, "settings": own}
