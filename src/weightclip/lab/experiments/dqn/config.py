"""The configuration of a run of DQN or Rainbow: fields, defaults and checks."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from weightclip._validation import check_name
from weightclip.lab.config import (
    BOUNDS,
    METHOD,
    OUTPUT,
    PROBLEM,
    Help,
    MethodConfig,
    check_fields,
    fill,
    paper_tables,
    resolve_method,
    resolver,
)
from weightclip.lab.constraints import AtLeast, Between, Finite, OneOf, Positive
from weightclip.lab.experiments.dqn.environments import FRAME_SKIP, STACK, SUITES, suite_name

if TYPE_CHECKING:
    from torch import nn

NAME = "replay-ratio"
"""Name of the experiment and of its only problem."""

PAPER_METHODS = ("adam", "adam+wc")
"""Methods of the paper."""

PAPER_RATIOS = (1.0, 0.1)
"""The paper's replay ratio, and Tianshou's default for comparison."""

AGENTS = ("dqn", "rainbow")
NOT_OPTIONS = {
    "dqn": ("alpha", "beta", "beta_steps", "dueling", "noisy", "noisy_sigma", "atoms", "v_min", "v_max"),
    "rainbow": ("loss",),
    "minatar": ("terminal_on_life_loss",),
}
"""Agent or suite -> fields that it does not have."""


@dataclass(frozen=True)
class Config(MethodConfig):
    """The configuration of one run. `resolve` replaces None by the value for the suite, the agent and the method.

    Options of the algorithm have the names of Stable-Baselines3 or CleanRL.
    """

    experiment = NAME
    execution_fields = ("device", "threads", "save_buffer")

    problem: Annotated[str, OneOf(NAME), Help("the problem")] = NAME
    suite: Annotated[str, OneOf(*SUITES), Help("collection of games", PROBLEM)] = "atari"
    agent: Annotated[str, OneOf(*AGENTS), Help("algorithm", PROBLEM)] = "dqn"
    game: Annotated[str, Help("for example SpaceInvaders or space_invaders", PROBLEM)] = "SpaceInvaders"
    replay_ratio: Annotated[float, Positive(), Help("gradient updates per environment step", PROBLEM)] = 1.0
    bounds: Annotated[str | None, OneOf(*BOUNDS), Help("clipping bounds: fan_in (by layer) or paper", METHOD)] = None
    frames: Annotated[int | None, AtLeast(1), Help("total frames; an Atari step has 4", PROBLEM)] = None
    num_envs: Annotated[int | None, AtLeast(1), Help("parallel environments", PROBLEM)] = None
    sticky_action_prob: Annotated[float | None, Between(0, 1), Help("probability of sticky actions", PROBLEM)] = None
    buffer_size: Annotated[int | None, AtLeast(1), Help("replay buffer size in transitions")] = None
    batch_size: Annotated[int, AtLeast(1), Help("batch size")] = 32
    gamma: Annotated[float, Between(0, 1), Help("discount factor")] = 0.99
    n_step: Annotated[int, AtLeast(1), Help("n of n-step returns")] = 3
    double: Annotated[bool, Help("double Q-learning")] = True
    loss: Annotated[str, OneOf("squared", "huber"), Help("loss of DQN")] = "squared"
    target_update_interval: Annotated[int, AtLeast(1), Help("updates between copies to the target network")] = 500
    learning_starts: Annotated[int | None, AtLeast(0), Help("environment steps before the first update")] = None
    exploration_initial_eps: Annotated[float, Between(0, 1), Help("initial epsilon")] = 1.0
    exploration_final_eps: Annotated[float, Between(0, 1), Help("final epsilon")] = 0.05
    exploration_steps: Annotated[int | None, AtLeast(0), Help("epsilon annealing steps")] = None
    evaluation_eps: Annotated[float, Between(0, 1), Help("epsilon during evaluation")] = 0.005
    alpha: Annotated[float, Between(0, 1), Help("priority exponent of Rainbow; 0 is uniform replay")] = 0.5
    beta: Annotated[float, Between(0, 1), Help("initial importance-sampling exponent of Rainbow")] = 0.4
    beta_steps: Annotated[int, AtLeast(0), Help("beta annealing steps (to 1)")] = 5_000_000
    dueling: Annotated[bool, Help("dueling network of Rainbow")] = True
    noisy: Annotated[bool, Help("noisy layers of Rainbow")] = True
    noisy_sigma: Annotated[float, AtLeast(0), Help("initial sigma of noisy layers")] = 0.1
    atoms: Annotated[int, AtLeast(2), Help("atoms of Rainbow's value distribution")] = 51
    v_min: Annotated[float, Finite(), Help("value of the first atom")] = -10.0
    v_max: Annotated[float, Finite(), Help("value of the last atom")] = 10.0
    scale_pixels: Annotated[bool, Help("divide pixels by 255")] = False
    clip_rewards: Annotated[bool | None, Help("learn from the signs of rewards", PROBLEM)] = None
    terminal_on_life_loss: Annotated[bool, Help("losing a life ends a training episode", PROBLEM)] = True
    points: Annotated[int, AtLeast(1), Help("rows of the table: equal parts of the run", OUTPUT)] = 100
    eval_episodes: Annotated[int, AtLeast(1), Help("episodes per evaluation", OUTPUT)] = 5
    covariance: Annotated[
        int, AtLeast(0), Help("transitions of the gradient covariance matrix; 0 records none", OUTPUT)
    ] = 32
    covariance_at: Annotated[tuple[int, ...], AtLeast(1), Help("when to record it, in percent of the run", OUTPUT)] = (
        100,
    )
    device: Annotated[str, Help("auto, cpu, cuda, cuda:1, ...")] = "auto"
    threads: Annotated[int, AtLeast(1), Help("CPU threads of PyTorch")] = 1
    save_buffer: Annotated[bool, Help("save the replay buffer in checkpoints", OUTPUT)] = True

    def small_network(self) -> tuple[nn.Module, str]:
        from weightclip.lab.networks.q_networks import QNetwork, RainbowNetwork

        size = (84, 84) if self.suite == "atari" else (10, 10)
        rainbow = self.agent == "rainbow"
        network = (
            RainbowNetwork(1, size, 1, dueling=self.dueling, noisy=self.noisy) if rainbow else QNetwork(1, size, 1)
        )
        return network, self.bounds or "fan_in"

    @property
    def stack(self) -> int:
        """Frames per state."""
        return STACK[self.suite]

    @property
    def steps(self) -> int:
        """Environment steps, over all environments, of a resolved configuration."""
        assert self.frames is not None
        return self.frames // FRAME_SKIP[self.suite]

    def updates_after(self, steps: int) -> int:
        """Updates due after `steps` steps: replay ratio * (steps - learning_starts), exact, rounded down."""
        return int(_exact(self.replay_ratio) * max(0, steps - (self.learning_starts or 0)))

    @property
    def max_updates(self) -> int:
        """Maximum number of updates between two steps of all environments.

        It is twice the replay ratio per step, so that a run with updates due catches up.
        """
        return 2 * math.ceil(_exact(self.replay_ratio) * (self.num_envs or 1))

    @property
    def min_learning_starts(self) -> int:
        """Steps after which the replay buffer holds a batch."""
        return self.batch_size + (self.num_envs or 1) * (self.n_step + 1)

    def epsilon_after(self, steps: int) -> float:
        """The probability of a random action after `steps` steps."""
        done = min(1.0, steps / max(1, self.exploration_steps or 0))
        return self.exploration_initial_eps + done * (self.exploration_final_eps - self.exploration_initial_eps)

    def beta_after(self, steps: int) -> float:
        """The importance-sampling exponent after `steps` steps."""
        return self.beta + min(1.0, steps / max(1, self.beta_steps)) * (1.0 - self.beta)


@cache
def _exact(ratio: float) -> Fraction:
    """The decimal number as a fraction: 0.1 is 1/10."""
    return Fraction(str(ratio))


def presets(suite: str = "atari", agent: str = "dqn") -> dict[str, Any]:
    """The settings searched (`grid`) and selected (`best`) for an agent on a suite."""
    tables = paper_tables(__package__)
    table = tables[check_name("suite", suite, SUITES)][check_name("agent", agent, AGENTS)]
    return {"grid": table["grid"], "best": {NAME: {**table["best"], **tables["baselines"]}}}


@resolver
def resolve(config: Config) -> Config:
    """Check a configuration and fill in every field."""
    config = check_fields(config)
    config = replace(config, **_unused(config))
    config = fill(config, paper_tables(__package__)[config.suite]["defaults"])
    config = replace(config, frames=_whole_frames(config), covariance_at=_covariance_at(config))
    _check_atoms(config)
    _check_sizes(config)
    config = resolve_method(config, presets(config.suite, config.agent)["best"][NAME])
    bounds = config.clipping_bounds(config.bounds, "fan_in")
    return replace(config, game=suite_name(config.suite, config.game), bounds=bounds)


def _unused(config: Config) -> dict[str, Any]:
    """Defaults for fields without effect, so that they do not change the identity of the run.

    A field that the agent or the suite does not have raises a ValueError unless it has its default.
    """
    defaults = {one.name: one.default for one in fields(Config)}
    for owner in (config.agent, config.suite):
        for name in NOT_OPTIONS.get(owner, ()):
            if getattr(config, name) != defaults[name]:
                raise ValueError(f"{name}: got {getattr(config, name)!r}, but {owner} has no such option")
    off = {
        *(() if config.covariance else ("covariance_at",)),
        *(() if config.noisy else ("noisy_sigma",)),
        *(() if config.alpha else ("beta", "beta_steps")),
    }
    return {name: defaults[name] for name in off}


def _whole_frames(config: Config) -> int:
    """The frames rounded down to whole steps of all environments."""
    frames, step = config.frames or 0, FRAME_SKIP[config.suite] * (config.num_envs or 1)
    if frames < step:
        raise ValueError(f"frames: got {frames}, expected at least {step}: one step of all environments")
    return frames - frames % step


def _covariance_at(config: Config) -> tuple[int, ...]:
    if not config.covariance_at:
        raise ValueError("covariance_at: got (), expected percentages of the run, such as (50, 100)")
    for percent in config.covariance_at:
        if percent > 100 or percent * config.points % 100:
            raise ValueError(
                f"covariance_at: got {percent}, expected percentages of the run, from 1 to 100, "
                f"at ends of its {config.points} parts"
            )
    return tuple(sorted(set(config.covariance_at)))


def _check_atoms(config: Config) -> None:
    if config.covariance == 1:
        raise ValueError("covariance: got 1, expected at least 2 transitions, or 0 for none")
    if not config.v_min < config.v_max:
        raise ValueError(f"v_max: got {config.v_max!r}, expected more than v_min, {config.v_min!r}")


def _check_sizes(config: Config) -> None:
    """Check that the replay buffer and the run are large enough."""
    num_envs, buffer_size, starts = config.num_envs or 1, config.buffer_size or 0, config.learning_starts or 0
    least = max(num_envs * (config.n_step + config.stack + 2), config.batch_size)
    if buffer_size < least:
        raise ValueError(f"buffer_size: got {buffer_size}, expected at least {least}")
    if config.steps <= starts:
        raise ValueError(f"learning_starts: got {starts}, expected fewer than the run's {config.steps} steps")
    if config.steps < config.points * num_envs:
        raise ValueError(f"points: got {config.points}, expected at most {max(1, config.steps // num_envs)} here")
    if starts < config.min_learning_starts:
        least = config.min_learning_starts
        raise ValueError(f"learning_starts: got {starts}, expected at least {least}: enough for a batch")
