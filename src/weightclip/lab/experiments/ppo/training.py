"""Running: configurations that differ in their seeds become learners in lockstep, then records, one for each seed."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from weightclip.lab.checkpoint import Arrays, Checkpoint, Row, write_checkpoint
from weightclip.lab.device import threads
from weightclip.lab.experiment import NO_CALLBACKS, Callbacks, Event
from weightclip.lab.experiments.ppo.config import NAME, SCHEMA, Config, compare_with_paper, resolve
from weightclip.lab.experiments.ppo.ppo import Episode, Learners
from weightclip.lab.records.record import RESTARTED, Record, Resumed, identity
from weightclip.lab.records.store import checkpoint_path, record_path, relative_path
from weightclip.lab.runner import find_checkpoint, find_finished, finish, simulator

SECONDS_BETWEEN_CHECKPOINTS = 30.0
WHOLE = ("iteration", "samples", "episodes")
"""Columns with whole numbers."""

POLICY, CONFIG = "policy/", "config"
"""In the state of a checkpoint: what the learner's `policy` says, and its configuration as JSON."""

AGAIN = "restarting from the first iteration"

_EPISODES, _STOPPED, _REASON = "episodes", "stopped/iteration", "stopped/reason"


def run_configs(
    configs: Sequence[Config], out: Path | None = None, overwrite: bool = False, callbacks: Callbacks = NO_CALLBACKS
) -> list[Record]:
    """Run configurations that differ in their seeds alone, or go on with them, or read the records of finished ones.

    Those that have come equally far train in lockstep to their end, one group after the other. A checkpoint holds all
    but the environment: a run that goes on begins a new episode, seeded by its generator, so its numbers are those of a
    run that was interrupted there.
    """
    runs = [_Run(config, out) for config in configs]
    for run in runs:
        run.look(overwrite, callbacks.on_event)
    begun = [run for run in runs if run.record is None]
    total = runs[0].config.iterations
    for run in begun:
        for row in run.rows:
            callbacks.on_row(run.given, row)
    with threads(1):  # more are slower on networks this small
        while (behind := min((len(run.rows) for run in begun), default=total)) < total:
            # They do not wait for others that are ahead: to join these, they would have to give up their episodes.
            group = [run for run in begun if len(run.rows) == behind]
            ahead = [run for run in begun if behind < len(run.rows) < total]
            if ahead:
                callbacks.on_event(f"training {_seeds(group)} first, as {_seeds(ahead)} came farther before")
            _train(group, runs, callbacks)
    return [run.finished() for run in runs]


@dataclass(frozen=True)
class _Kept:
    """A run at the end of an iteration: so many rows and episodes, seconds, and all else that goes on from there."""

    rows: int
    episodes: int
    seconds: float
    state: Arrays


class _Run:
    """One seed's run: what it has so far, and where it goes."""

    def __init__(self, config: Config, out: Path | None) -> None:
        self.given = config
        self.config = resolve(config)
        self.identity = identity(NAME, self.config.facts(), None)
        self.label = f"{self.config.env} {self.config.method} seed {self.config.seed}"
        self.path = None if out is None else record_path(out, relative_path(SCHEMA, self.config), self.identity)
        self.record: Record | None = None
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self.rows: list[Row] = []
        self.episodes: list[tuple[float, ...]] = []
        self.seconds = 0.0
        self.stopped: tuple[int, str] | None = None
        self.kept: _Kept | None = None
        self.resumed: Resumed = "never"

    def look(self, overwrite: bool, event: Event) -> None:
        """Find what there is of it."""
        if self.path is None:
            return
        self.record = find_finished(self.path, self.identity, self.label, overwrite, event)
        if self.record is not None:
            return
        try:
            checkpoint = find_checkpoint(self.path, self.identity)
        except ValueError as error:
            event(f"{error}: {AGAIN}")
            return
        if checkpoint is not None:
            state = checkpoint.state
            self.rows, self.seconds = checkpoint.rows, checkpoint.seconds
            self.episodes = [tuple(one) for one in state.pop(_EPISODES, np.empty(0)).tolist()]
            if _STOPPED in state:
                self.stopped = int(state[_STOPPED]), str(state[_REASON])
            self.kept = _Kept(len(self.rows), len(self.episodes), self.seconds, state)
            self.resumed = RESTARTED
            event(f"{self.label}: resuming after iteration {len(self.rows)}")

    def load(self, learners: Learners, s: int, event: Event) -> None:
        """Let learner s go on where the run is; a run whose checkpoint does not fit begins anew."""
        assert self.kept is not None
        try:
            learners.load_state(s, self.kept.state)
        except (KeyError, RuntimeError, ValueError) as error:
            self.forget()
            event(f"{self.label}: its checkpoint does not fit ({type(error).__name__}): {AGAIN}")

    def keep(self, learners: Learners, s: int) -> None:
        """Remember where it is, whatever becomes of the next iteration."""
        if self.path is None:
            return
        state: Arrays = {
            **learners.state(s),
            **{f"{POLICY}{name}": array for name, array in learners.policy(s).items()},
            CONFIG: np.array(json.dumps(self.config.facts())),
        }
        if self.stopped is not None:
            state |= {_STOPPED: np.array(self.stopped[0]), _REASON: np.array(self.stopped[1])}
        self.kept = _Kept(len(self.rows), len(self.episodes), self.seconds, state)

    def save(self) -> None:
        """Write a checkpoint of what was kept last."""
        if self.path is None or self.kept is None:
            return
        kept = self.kept
        episodes = np.array(self.episodes[: kept.episodes]).reshape(-1, 3)
        write_checkpoint(
            Checkpoint(
                self.identity, self.rows[: kept.rows], {**kept.state, _EPISODES: episodes}, kept.seconds, self.resumed
            ),
            checkpoint_path(self.path),
        )

    def iterations(self) -> int:
        """How far it is."""
        return len(self.rows) if self.record is None else self.config.iterations

    def note(self, iteration: int, row: Row, episodes: Sequence[Episode]) -> None:
        """One more iteration."""
        samples = (iteration + 1) * self.config.num_steps
        self.rows.append({**row, "iteration": iteration + 1, "samples": samples})
        self.episodes += [(one.step, one.score, one.length) for one in episodes]

    def note_stop(self, iteration: int, reason: str | None, event: Event) -> None:
        """Why it has stopped, if it has now."""
        if reason is not None and self.stopped is None:
            self.stopped = iteration + 1, reason
            event(f"{self.label}: stopped in iteration {iteration + 1}: {reason}")

    def end(self, networks: Arrays) -> None:
        """Make the record, and write it."""
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


def _train(runs: Sequence[_Run], everyone: Sequence[_Run], callbacks: Callbacks) -> None:
    """Train runs that have come equally far, and finish them; nothing, where one of them turns out to begin anew."""
    learners = Learners([run.config for run in runs])
    try:
        if _go_on(learners, runs, callbacks.on_event):
            _iterate(learners, runs, everyone, callbacks)
    except KeyboardInterrupt:  # the iteration under way is lost, those before it are not
        for run in runs:
            run.save()
        raise
    finally:
        learners.close()


def _iterate(learners: Learners, runs: Sequence[_Run], everyone: Sequence[_Run], callbacks: Callbacks) -> None:
    config = runs[0].config
    began = saved = time.perf_counter()
    for iteration in range(len(runs[0].rows), config.iterations):
        rows, episodes = learners.iterate(iteration) if len(learners.stopped) < len(runs) else (_nothing(runs), [])
        now = time.perf_counter()
        for s, run in enumerate(runs):
            run.seconds += (now - began) / len(runs)
            run.note(iteration, rows[s], [one for one in episodes if one.learner == s])
            run.note_stop(iteration, learners.stopped.get(s), callbacks.on_event)
            callbacks.on_row(run.given, run.rows[-1])
            run.keep(learners, s)
        began = now
        # Of all runs together, as those count that were finished before.
        steps = sum(run.iterations() for run in everyone) * config.num_steps // len(everyone)
        returns = [row["return"] for row in rows if math.isfinite(row["return"])]
        callbacks.on_progress(steps, float(np.mean(returns)) if returns else math.nan)
        if now - saved >= SECONDS_BETWEEN_CHECKPOINTS:
            saved = now
            for run in runs:
                run.save()
    for s, run in enumerate(runs):
        run.end(learners.policy(s))


def _go_on(learners: Learners, runs: Sequence[_Run], event: Event) -> bool:
    """Let the learners go on where the runs are; whether all of them could."""
    if not runs[0].rows:
        return True
    learners.stopped = {s: run.stopped[1] for s, run in enumerate(runs) if run.stopped is not None}
    for s, run in enumerate(runs):
        run.load(learners, s, event)
    if not all(run.rows for run in runs):
        return False
    learners.begin_episodes()
    return True


def _seeds(runs: Sequence[_Run]) -> str:
    """`seed 2`, `seeds 0, 1`."""
    return f"seed{'s' if len(runs) > 1 else ''} {', '.join(str(run.config.seed) for run in runs)}"


def _nothing(runs: Sequence[_Run]) -> list[Row]:
    """Rows of learners that have all stopped."""
    return [dict.fromkeys(run.rows[-1], math.nan) for run in runs]


def _table(config: Config, rows: Sequence[Row]) -> pl.DataFrame:
    """NaN from where a run stopped; null where no episode had ended yet."""
    table = pl.DataFrame(rows, schema=dict.fromkeys(rows[0], pl.Float64))
    early = pl.col("episodes").cum_sum() == 0
    return table.select(
        pl.lit(config.seed, pl.Int64).alias("seed"),
        pl.col(WHOLE).fill_nan(0).cast(pl.Int64),
        pl.when(~early).then(pl.col("return", "length")),
        pl.exclude(*WHOLE, "return", "length").cast(pl.Float32),
    )


def episode_table(episodes: Sequence[tuple[float, ...]]) -> pl.DataFrame:
    """A row for each episode that ended: the step at which it did, its return and its length."""
    kinds = {"samples": pl.Int64, "return": pl.Float32, "length": pl.Int32}
    columns = np.array(episodes, dtype=np.float64).reshape(-1, len(kinds)).T
    return pl.DataFrame(dict(zip(kinds, columns, strict=True))).cast(kinds)  # type: ignore[arg-type]
