"""Speed of the lab's Atari environments, whose state can be saved, and ale-py's `AtariVectorEnv`, which has no state.

Space Invaders, ten games, one PyTorch thread. Both sides take turns in one process, in random order and with the
same seeds; each turn is one step of all games. A ratio is the median over all turns of our time / their time.

`step` times only the environment step. `replay_ratio_1` and `replay_ratio_0.1` time a whole DQN training step: actions
of the network of Mnih et al. (2015), an environment step, the replay buffer, and ten updates or one update with batch
size 32. Games step while updates run, so these two require a second core.

    python benchmarks/atari.py [--quick]

Needs `pip install "weightclip[atari]"`.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import numpy as np
import torch
from timing import LAST_ROUND, deadline, elapsed, leave, median_ratio, print_claim, rounds, time_limit, without_warm_up
from vector_atari import VectorAtari

from weightclip.lab.experiments.dqn import training
from weightclip.lab.experiments.dqn.atari import Atari
from weightclip.lab.experiments.dqn.config import Config, resolve
from weightclip.lab.experiments.dqn.environments import Environments
from weightclip.lab.experiments.dqn.training import Trainer

GAME, GAMES = "space_invaders", 10
SIDES: dict[str, Callable[..., Environments]] = {"ours": Atari, "vector": VectorAtari}
FILLED = 10
"""Steps of each game in the replay buffer at the start."""

TURNS = {"step": (400, 50), "replay_ratio_0.1": (300, 50), "replay_ratio_1": (40, 10)}
"""Claim -> maximum number of turns, without and with `--quick`."""


@contextmanager
def games_of(side: str) -> Iterator[None]:
    """Make trainers use the environments of one side."""
    make = training.make_environments
    training.make_environments = lambda suite, game, number, sticky: SIDES[side](game, number, sticky)
    try:
        yield
    finally:
        training.make_environments = make


def game_steps(side: str) -> Callable[[], None]:
    games, generator = SIDES[side](GAME, GAMES), np.random.default_rng(0)
    games.reset(range(GAMES))

    def step() -> None:
        games.send(generator.integers(games.actions, size=GAMES))
        games.receive()

    return step


def training_steps(side: str, ratio: float) -> Callable[[], None]:
    # The preset with a smaller replay buffer and greedy actions.
    config = resolve(
        Config(method="adam", game=GAME, num_envs=GAMES, replay_ratio=ratio, buffer_size=10_000,
               exploration_initial_eps=0.0, exploration_final_eps=0.0)
    )  # fmt: skip
    with games_of(side):
        trainer = Trainer(config, torch.device("cpu"))
    trainer.play(FILLED)

    def step() -> None:
        actions = trainer._send()
        trainer.train(round(ratio * GAMES))
        trainer._store(actions)

    return step


CLAIMS: dict[str, Callable[[str], Callable[[], None]]] = {
    "step": game_steps,
    "replay_ratio_0.1": lambda side: training_steps(side, 0.1),
    "replay_ratio_1": lambda side: training_steps(side, 1.0),
}


def measure(claim: str, turns: int, until: float, times: dict[str, list[float]]) -> None:
    """Append the seconds of each turn to the list of its side in `times`."""
    steps = {side: CLAIMS[claim](side) for side in SIDES}
    generator = np.random.default_rng(0)
    for step in steps.values():
        step()
    for _ in rounds(turns, until):
        for side in generator.permutation(list(SIDES)).tolist():
            began = time.perf_counter()
            steps[side]()
            times[side].append(time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer turns, within 45 s")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    times: dict[str, dict[str, list[float]]] = {claim: defaultdict(list) for claim in CLAIMS}
    with time_limit(quick):
        for left, claim in zip(range(len(CLAIMS), 0, -1), CLAIMS, strict=True):
            until = elapsed() + (LAST_ROUND - elapsed()) / left if quick else deadline(quick)
            measure(claim, TURNS[claim][quick], until, times[claim])
            for side, seconds in times[claim].items():
                print(f"{claim}, {side}: {1000 * median(without_warm_up(seconds)):.2f} ms")
    for claim, sides in times.items():
        print_claim(claim, median_ratio(without_warm_up(sides["ours"]), without_warm_up(sides["vector"])))
    leave(quick)


if __name__ == "__main__":
    main()
