"""Play an episode with a trained policy and record a video of it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils import vector_to_parameters

from weightclip.lab.checkpoint import Arrays, read_checkpoint
from weightclip.lab.experiments.ppo.config import NAME
from weightclip.lab.experiments.ppo.environments import make_environment, normalize
from weightclip.lab.experiments.ppo.training import CONFIG, POLICY
from weightclip.lab.networks.actor_critic import ActorCritic
from weightclip.lab.records.record import read_record
from weightclip.lab.records.store import checkpoint_path

RECORD, CHECKPOINT = ".parquet", ".checkpoint.npz"

MOST_FILES = 20_000
"""Maximum number of files in a directory that is searched for one run."""

LISTED = 4
"""Maximum number of runs listed in the error for an ambiguous path."""


@dataclass(frozen=True)
class Saved:
    """The policy of a finished or unfinished run.

    Args:
        path: file that the policy was read from.
        config: configuration of the run.
        arrays: as returned by `Learners.policy`.
    """

    path: Path
    config: Mapping[str, Any]
    arrays: Arrays


@dataclass(frozen=True)
class Moment:
    """A frame of an episode: its start, or the state after a step.

    Args:
        picture: [height, width, 3].
        rate: frames per second of a video in real time.
        score: the return so far.
    """

    picture: NDArray[np.uint8]
    rate: float
    score: float


def find_policy(path: Path) -> Saved:
    """The policy of the one run whose record or checkpoint has this path, or a path that starts with it.

    Raise a ValueError if there is no such run or more than one.
    """
    found = sorted(_runs(path))
    if len(found) != 1:
        runs = f"{len(found)} runs, {_listed(found)}" if found else "no run"
        raise ValueError(f"run: got {str(path)!r}, with {runs}; expected the path of one run, or a prefix of it")
    return _checked(_saved(found[0]))


def _saved(record: Path) -> Saved:
    """The policy in the record, or in the checkpoint if there is no record yet."""
    if record.exists():
        whole = read_record(record)
        if whole.experiment != NAME:
            raise ValueError(f"{record}: got a run of {whole.experiment}, expected a run of {NAME}")
        return Saved(record, whole.config, dict(whole.arrays))
    state = read_checkpoint(checkpoint_path(record)).state
    if CONFIG not in state:
        raise ValueError(f"{checkpoint_path(record)}: got a checkpoint of another experiment, expected {NAME}")
    arrays = {name.removeprefix(POLICY): array for name, array in state.items() if name.startswith(POLICY)}
    return Saved(checkpoint_path(record), json.loads(str(state[CONFIG])), arrays)


def _listed(records: Sequence[Path]) -> str:
    """The first runs, each with the settings that differ between them."""
    saved = [_saved(record) for record in records[:LISTED]]
    names = [name for name in saved[0].config if len({str(one.config.get(name)) for one in saved}) > 1]
    runs = [f"{one.path.name} ({', '.join(f'{name} {one.config.get(name)}' for name in names)})" for one in saved]
    return ", ".join([*runs, *(["..."] if len(records) > LISTED else [])])


def _checked(saved: Saved) -> Saved:
    if not all(np.isfinite(array).all() for array in saved.arrays.values()):
        raise ValueError(f"{saved.path}: the run stopped because its weights were not finite; expected another run")
    return saved


def _runs(path: Path) -> Iterator[Path]:
    """Paths of the records of finished and unfinished runs."""
    # seed10 starts with seed1, but not with seed1_.
    whole, part = (list(path.parent.glob(path.name + ending)) for ending in ("_*", "*"))
    within = _inside(path) if path.is_dir() else whole or part
    names = {str(one).removesuffix(CHECKPOINT).removesuffix(RECORD): one for one in within}
    for name, one in names.items():
        # Additional tables of a record are in separate files: RECORD.episodes.parquet.
        if one.name.endswith((RECORD, CHECKPOINT)) and "." not in Path(name).name.rpartition("_")[2]:
            yield Path(name + RECORD)


def _inside(directory: Path) -> Iterator[Path]:
    """The files in a directory tree. Raise a ValueError if there are too many."""
    for seen, path in enumerate(directory.rglob("*")):
        if seen == MOST_FILES:
            raise ValueError(f"run: got {str(directory)!r}, with more than {MOST_FILES:,} files; expected one run")
        yield path


def play(saved: Saved, seed: int = 0, noise: bool = False, steps: int = 1000) -> Iterator[Moment]:
    """Play the first steps of an episode, frame by frame, with mean actions or with noise as in training."""
    if sys.platform == "linux" and "DISPLAY" not in os.environ:
        os.environ.setdefault("MUJOCO_GL", "egl")  # renders without a display
    environment = make_environment(saved.config["env"], render_mode="rgb_array")
    network = _network(saved, int(np.prod(environment.action_space.shape or ())))
    generator = np.random.default_rng(seed)
    deviation = np.exp(network.actor_logstd.detach().numpy()[0]) if noise else 0.0
    low, high = environment.action_space.low, environment.action_space.high  # type: ignore[attr-defined]
    rate = float(environment.metadata.get("render_fps", 30))
    try:
        seen, _ = environment.reset(seed=seed)
        score = 0.0
        yield Moment(_frame(environment), rate, score)
        for _ in range(steps):
            x = normalize(np.ravel(seen), saved.arrays["mean"], saved.arrays["var"])
            with torch.no_grad():
                mean = network.actor_mean(torch.from_numpy(x)).numpy()
            action = mean + deviation * generator.standard_normal(mean.shape, dtype=np.float32)
            seen, reward, terminated, truncated, _ = environment.step(np.clip(action.reshape(low.shape), low, high))
            score += float(reward)
            yield Moment(_frame(environment), rate, score)
            if terminated or truncated:
                break
    finally:
        environment.close()


def write_video(episode: Iterable[Moment], path: Path) -> tuple[int, float]:
    """Write an episode as MP4 or GIF, depending on the suffix; return the number of steps and the return."""
    import imageio.v2 as imageio

    path.parent.mkdir(parents=True, exist_ok=True)
    moments = iter(episode)
    last = next(moments)
    steps, every = 0, 1
    options: dict[str, Any] = {"fps": last.rate, "macro_block_size": 2}
    if path.suffix.lower() == ".gif":
        every = max(1, round(last.rate / 50))  # viewers show at most 50 frames per second
        options = {"duration": 1000 * every / last.rate, "loop": 0}  # in milliseconds
    writer: Any = imageio.get_writer(path, mode="I", **options)
    with writer:
        writer.append_data(last.picture)
        for steps, last in enumerate(moments, start=1):
            if steps % every == 0:
                writer.append_data(last.picture)
    return steps, last.score


def _network(saved: Saved, actions: int) -> ActorCritic:
    network = ActorCritic(len(saved.arrays["mean"]), actions, saved.config["hidden"])
    vector_to_parameters(torch.from_numpy(saved.arrays["weights"].copy()), network.parameters())
    return network


def _frame(environment: Any) -> NDArray[np.uint8]:
    try:
        picture: NDArray[np.uint8] = environment.render()
    except Exception as error:  # a missing display or library raises various types of errors
        raise ValueError(
            f"env: {environment.spec.id} cannot be rendered here: {error}; for MuJoCo, see MUJOCO_GL"
        ) from error
    return picture
