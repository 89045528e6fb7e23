"""Run configurations that differ only in their seeds in lockstep; each seed gives a record."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from weightclip.lab.callbacks import NO_CALLBACKS, Callbacks, Event
from weightclip.lab.checkpoint import Arrays, Checkpoint, CheckpointSchedule, Row, numerics, write_checkpoint
from weightclip.lab.device import threads
from weightclip.lab.experiments.ppo.config import NAME, Config, not_fused, resolve
from weightclip.lab.experiments.ppo.metrics import METRICS, SCHEMA, compare_with_paper
from weightclip.lab.experiments.ppo.ppo import Episode, Learners, in_lockstep
from weightclip.lab.networks.actor_critic import ALIGNMENT
from weightclip.lab.records.record import Record, Resumed, identity
from weightclip.lab.records.store import checkpoint_path, record_path, relative_path
from weightclip.lab.runner import find_checkpoint, find_finished, finish, how_resumed, simulator

WHOLE = ("iteration", "samples", "episodes")
"""Integer columns."""

COLUMNS = (*WHOLE, *METRICS)
"""Columns of a row."""

POLICY, CONFIG = "policy/", "config"
"""Keys in the state of a checkpoint: prefix of the arrays of `Learners.policy`, and the configuration as JSON."""

RESTARTING = "restarting from the first iteration"

_EPISODES, _STOPPED, _REASON = "episodes", "stopped/iteration", "stopped/reason"


def run_configs(
    configs: Sequence[Config], out: Path | None = None, overwrite: bool = False, callbacks: Callbacks = NO_CALLBACKS
) -> list[Record]:
    """Run configurations that differ only in their seeds, resume them, or read the records of finished ones.

    Runs at the same iteration train in lockstep, or one at a time if lockstep would change the last digits of their
    numbers (`in_lockstep`). Runs that are behind catch up first. A resumed run continues bit for bit if its environment
    can be saved (`Environments.resumable`); otherwise it starts a new episode.
    """
    callbacks = replace(callbacks, on_event=_once(callbacks.on_event))
    runs = [_SeedRun(config, out) for config in configs]
    for run in runs:
        run.find_progress(overwrite, callbacks.on_event)
    unfinished = [run for run in runs if run.record is None]
    total = runs[0].config.iterations
    for run in unfinished:
        for row in run.rows:
            callbacks.on_row(run.requested, row)
    if unfinished and runs[0].config.falls_back:
        part = not_fused(runs[0].config)
        callbacks.on_event(f"{part} is not supported by the fused backend; using reference")
    lockstep = in_lockstep(runs[0].config)
    if len(unfinished) > 1 and not lockstep:
        callbacks.on_event(
            "training one seed at a time: in lockstep, the reference backend needs hidden layers and minibatches of "
            f"multiples of {ALIGNMENT}"
        )
    with threads(1):  # more threads are slower on networks of this size
        while (behind := min((len(run.rows) for run in unfinished), default=total)) < total:
            group = [run for run in unfinished if len(run.rows) == behind]
            ahead = [run for run in unfinished if behind < len(run.rows) < total]
            if not lockstep:
                group, ahead = group[:1], []
            if ahead:
                callbacks.on_event(_behind_text(group, min(len(run.rows) for run in ahead)))
            _train(group, min((len(run.rows) for run in ahead), default=total), runs, callbacks)
    return [run.finished() for run in runs]


class _SeedRun:
    """The run of one seed: its results so far and the path of its record."""

    def __init__(self, config: Config, out: Path | None) -> None:
        self.requested = config
        self.config = resolve(config)
        self.identity = identity(NAME, self.config.facts(), None)
        self.label = f"{self.config.env} {self.config.method} seed {self.config.seed}"
        self.path = None if out is None else record_path(out, relative_path(SCHEMA, self.config), self.identity)
        self.record: Record | None = None
        self.reset()

    def reset(self) -> None:
        """Discard all progress."""
        self.rows: list[Row] = []
        self.episodes: list[tuple[float, ...]] = []
        self.seconds = 0.0
        self.stopped: tuple[int, str] | None = None
        self.checkpoint: Checkpoint | None = None
        self.reported = True  # how the run is resumed from the checkpoint
        self.resumed: Resumed = "never"

    def find_progress(self, overwrite: bool, event: Event) -> None:
        """Load the record or the checkpoint, if one exists."""
        if self.path is None:
            return
        self.record = find_finished(self.path, self.identity, self.label, overwrite, event)
        if self.record is not None:
            return
        try:
            checkpoint = find_checkpoint(self.path, self.identity, COLUMNS)
        except ValueError as error:
            event(f"{error}: {RESTARTING}")
            return
        if checkpoint is not None:
            state = checkpoint.state
            self.rows, self.seconds = checkpoint.rows, checkpoint.seconds
            self.episodes = [tuple(one) for one in state.get(_EPISODES, np.empty(0)).tolist()]
            if _STOPPED in state:
                self.stopped = int(state[_STOPPED]), str(state[_REASON])
            self.checkpoint, self.reported = checkpoint, False
            event(f"{self.label}: resuming after iteration {len(self.rows)}")

    def load(self, learners: Learners, s: int, event: Event) -> None:
        """Restore learner s from the checkpoint. If it is incompatible, the run restarts."""
        assert self.checkpoint is not None
        try:
            new_episode = learners.load_state(s, self.checkpoint.state)
        except (KeyError, RuntimeError, ValueError) as error:
            self.reset()
            event(f"{self.label}: incompatible checkpoint ({type(error).__name__}): {RESTARTING}")
            return
        if not self.reported:
            name = f"{self.config.env} {self.config.method}"  # the same message for all seeds
            self.resumed = how_resumed(self.checkpoint, name, self.numerics(), new_episode, event)
            self.reported = True

    def take_checkpoint(self, learners: Learners, s: int) -> Checkpoint:
        """The checkpoint after the last iteration."""
        state: Arrays = {
            **learners.state(s),
            **{f"{POLICY}{name}": array for name, array in learners.policy(s).items()},
            CONFIG: np.array(json.dumps(self.config.facts())),
            _EPISODES: np.array(self.episodes).reshape(-1, 3),
        }
        if self.stopped is not None:
            state |= {_STOPPED: np.array(self.stopped[0]), _REASON: np.array(self.stopped[1])}
        return Checkpoint(self.identity, self.rows, state, self.seconds, self.resumed, self.numerics())

    def numerics(self) -> dict[str, str]:
        """The `numerics` of this process."""
        if self.config.backend != "fused":
            return numerics()
        from weightclip.lab.experiments.ppo import fused  # imports numba

        return numerics(kernel=fused.kernel_name())

    def iterations(self) -> int:
        """The number of finished iterations."""
        return len(self.rows) if self.record is None else self.config.iterations

    def add_iteration(self, iteration: int, row: Row, episodes: Sequence[Episode]) -> None:
        """Add the results of an iteration."""
        samples = (iteration + 1) * self.config.num_steps
        self.rows.append({**row, "iteration": iteration + 1, "samples": samples})
        self.episodes += [(one.step, one.score, one.length) for one in episodes]

    def record_stop(self, iteration: int, reason: str | None, event: Event) -> None:
        """Record and report the reason if the run has just stopped."""
        if reason is not None and self.stopped is None:
            self.stopped = iteration + 1, reason
            event(f"{self.label}: stopped in iteration {iteration + 1}: {reason}")

    def finish_record(self, networks: Arrays) -> None:
        """Make the record and write it."""
        tables = {"episodes": episode_table(self.episodes)}
        if self.stopped is not None:
            tables["stopped"] = pl.DataFrame([self.stopped], ["iteration", "reason"], orient="row")
        setting, deviations = compare_with_paper(self.config)
        self.record = Record(
            schema=SCHEMA,
            identity=self.identity,
            config=self.config.facts(),
            table=_table(self.config, self.rows),
            data=simulator(self.config.env, ("gymnasium", "mujoco")),
            seconds=self.seconds,
            paper_setting=setting,
            deviations=deviations,
            resumed=self.resumed,
            tables=tables,
            arrays=networks,
        )
        if self.path is not None:
            finish(self.record, self.path)

    def finished(self) -> Record:
        assert self.record is not None
        return self.record


def _train(runs: Sequence[_SeedRun], until: int, all_runs: Sequence[_SeedRun], callbacks: Callbacks) -> None:
    """Train runs at the same iteration to iteration `until`, where others continue with them, or to the end.

    Return early if one of them has to restart. Runs in environments that cannot be saved train to the end, because they
    would have to abandon their episodes.
    """
    if runs[0].config.backend == "fused":
        from weightclip.lab.experiments.ppo import fused  # imports numba

        if not fused.compiled():
            note = "cached for later runs" if fused.is_saved() else "not cached: the cache directory is not writable"
            callbacks.on_event(f"compiling the PPO kernels ({note})")
    learners = Learners([run.config for run in runs])
    end = until if learners.environments.resumable else runs[0].config.iterations
    try:
        if _restore(learners, runs, callbacks.on_event):
            _iterate(learners, runs, end, all_runs, callbacks)
    finally:
        learners.close()


def _iterate(
    learners: Learners, runs: Sequence[_SeedRun], end: int, all_runs: Sequence[_SeedRun], callbacks: Callbacks
) -> None:
    config = runs[0].config
    began, schedule = time.perf_counter(), CheckpointSchedule()
    paths = [checkpoint_path(run.path) for run in runs if run.path is not None]
    for iteration in range(len(runs[0].rows), end):
        rows, episodes = learners.iterate(iteration) if len(learners.stopped) < len(runs) else (_empty_rows(runs), [])
        now = time.perf_counter()
        for s, run in enumerate(runs):
            run.seconds += (now - began) / len(runs)
            run.add_iteration(iteration, rows[s], [one for one in episodes if one.learner == s])
            run.record_stop(iteration, learners.stopped.get(s), callbacks.on_event)
            callbacks.on_row(run.requested, run.rows[-1])
        if paths and iteration + 1 < config.iterations and schedule.is_due():
            with schedule.writing():
                for s, (run, path) in enumerate(zip(runs, paths, strict=True)):
                    write_checkpoint(run.take_checkpoint(learners, s), path)
        began = now
        # The mean over all runs, including those finished before.
        steps = sum(run.iterations() for run in all_runs) * config.num_steps // len(all_runs)
        returns = [row["return"] for row in rows if math.isfinite(row["return"])]
        callbacks.on_progress(steps, float(np.mean(returns)) if returns else math.nan)
    for s, run in enumerate(runs):
        if end == config.iterations:
            run.finish_record(learners.policy(s))
        else:  # it continues in lockstep with runs that were ahead
            run.checkpoint = run.take_checkpoint(learners, s)


def _restore(learners: Learners, runs: Sequence[_SeedRun], event: Event) -> bool:
    """Restore the learners from the runs and return whether this succeeded for all of them."""
    if not runs[0].rows:
        return True
    learners.stopped = {s: run.stopped[1] for s, run in enumerate(runs) if run.stopped is not None}
    for s, run in enumerate(runs):
        run.load(learners, s, event)
    return all(run.rows for run in runs)


def _once(event: Event) -> Event:
    """Report each message only once: that of several seeds in lockstep."""
    reported: set[str] = set()

    def report(message: str) -> None:
        if message not in reported:
            reported.add(message)
            event(message)

    return report


def _behind_text(runs: Sequence[_SeedRun], iteration: int) -> str:
    """`seed 2 is behind; training it up to iteration 2 first`."""
    seeds = ", ".join(str(run.config.seed) for run in runs)
    subject, pronoun = (f"seed {seeds} is", "it") if len(runs) == 1 else (f"seeds {seeds} are", "them")
    return f"{subject} behind; training {pronoun} up to iteration {iteration} first"


def _empty_rows(runs: Sequence[_SeedRun]) -> list[Row]:
    """The rows of an iteration after all learners have stopped."""
    return [dict.fromkeys(run.rows[-1], math.nan) for run in runs]


def _table(config: Config, rows: Sequence[Row]) -> pl.DataFrame:
    """The table, with NaN after a run has stopped and null before the first episode has ended."""
    table = pl.DataFrame(rows, schema=dict.fromkeys(rows[0], pl.Float64))
    early = pl.col("episodes").cum_sum() == 0
    return table.select(
        pl.lit(config.seed, pl.Int64).alias("seed"),
        pl.col(WHOLE).fill_nan(0).cast(pl.Int64),
        pl.when(~early).then(pl.col("return", "length")),
        pl.exclude(*WHOLE, "return", "length").cast(pl.Float32),
    )


def episode_table(episodes: Sequence[tuple[float, ...]]) -> pl.DataFrame:
    """A row for each finished episode: its last step, return and length."""
    kinds = {"samples": pl.Int64, "return": pl.Float32, "length": pl.Int32}
    columns = np.array(episodes, dtype=np.float64).reshape(-1, len(kinds)).T
    return pl.DataFrame(dict(zip(kinds, columns, strict=True))).cast(kinds)  # type: ignore[arg-type]
