"""The Ray executor: runs on the machines of a cluster.

This process locks the runs and sends configurations and data to the workers. A worker that sees the store, because the
file system is shared, writes checkpoints and records into it. Any other worker sends its records back, and this process
writes them.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from weightclip.lab.callbacks import Callbacks
from weightclip.lab.experiment import Experiment
from weightclip.lab.records.record import Record, write_record
from weightclip.lab.records.store import record_path
from weightclip.lab.sweep.executor import (
    ATTEMPTS,
    THREADS,
    Advanced,
    Ended,
    Message,
    Report,
    Started,
    check_installed,
)
from weightclip.lab.sweep.local import SECONDS_BETWEEN_REPORTS, cores
from weightclip.lab.sweep.locks import Token
from weightclip.lab.sweep.loggers import logging_rows
from weightclip.lab.sweep.plan import Run
from weightclip.lab.sweep.worker import Job, Outcome, Shared, lock_missing, mark_done, mark_failed, one_line

LOOPBACK = "127.0.0.2" if sys.platform == "linux" else None
"""Address of a local cluster. For 127.0.0.1, Ray uses the external address of the machine, which a firewall may block.
On systems other than Linux, Ray uses the loopback interface by default."""

SECONDS_TO_ANSWER = 10.0
SECONDS_TO_CONNECT = 120.0
SECONDS_TO_FETCH = 300.0
SECONDS_TO_END = 30.0
POLL_SECONDS = 1.0

NODE_ATTEMPTS = 10
"""Number of times the node of a job may die before the job counts as failed; most often, the job is not the cause."""


@dataclass(frozen=True)
class Ray:
    """The workers of a Ray cluster. A job whose worker or node dies restarts elsewhere.

    Args:
        address: HOST:PORT of a cluster that this machine belongs to, or "auto"; None starts a cluster on this machine
            for the duration of the sweep. An existing connection is reused.
        count: number of jobs that run at the same time (default: one per core of the cluster, including nodes that join
            later).
        shared_store: whether workers that see the store write to it; if False, all workers send their records back.
    """

    address: str | None = None
    count: int | None = None
    shared_store: bool = True

    def __post_init__(self) -> None:
        check_installed("ray", "ray")

    @cached_property
    def workers(self) -> int:
        """Number of jobs that run at the same time, as known before the sweep."""
        if self.count is not None:
            return self.count
        if self.address is None:
            return cores()
        with _connected(self):
            return _cores_of_cluster()

    def run(self, shared: Shared, jobs: Sequence[Job]) -> Generator[Report, None, None]:
        """Run the jobs, approximately in order."""
        waiting = deque(_Task(f"job {number}", job, shared) for number, job in enumerate(jobs, start=1))
        running: list[_Task] = []
        with ExitStack() as stack:
            cluster: _Cluster | None = None
            try:
                while waiting or running:
                    while waiting and (cluster is None or len(running) < cluster.capacity()):
                        task = waiting.popleft()
                        if not task.lock():
                            yield task.end()
                            continue
                        running.append(task)
                        if cluster is None:  # connect only if there is a run left: another sweep may have locked all
                            stack.enter_context(_connected(self))
                            cluster = _Cluster(self, shared)
                        task.start(cluster)
                    for task in _ready(running):
                        yield from task.receive()
                        if task.finished:
                            running.remove(task)
            finally:
                for task in running:
                    task.stop()


class _Cluster:
    """Submits runs to the cluster."""

    def __init__(self, executor: Ray, shared: Shared) -> None:
        ray = _ray()
        self._count = executor.count if executor.address is not None else None
        self._shared, self._shared_store = shared, executor.shared_store
        self._data: dict[Hashable, Any] = {}
        threads = {"env_vars": dict.fromkeys(THREADS, "1")}
        # `_Task` restarts lost jobs, to count and report the attempts.
        options = ray.remote(num_cpus=1, max_retries=0, num_returns="streaming", runtime_env=threads)
        self._serve = options(_serve)

    def capacity(self) -> int:
        """Maximum number of submitted jobs. Some are queued in the cluster, so that no worker is idle."""
        return self._count or 2 * _cores_of_cluster()

    def submit(self, runs: Sequence[Run], token: Token) -> Any:
        """The stream of messages from the worker that executes these runs."""
        ray = _ray()
        if self._shared_store:
            token.write()
        key = runs[0].data
        if key not in self._data:
            self._data[key] = ray.put(self._shared.data[key])
        store = self._shared.store.absolute()
        return self._serve.remote(self._shared.experiment, tuple(runs), self._data[key], store, token)


class _Task:
    """A submitted job: its locks, and the stream of messages from its worker."""

    def __init__(self, name: str, job: Job, shared: Shared) -> None:
        self.name, self.job, self._shared = name, job, shared
        self.finished = False
        self.stream: Any = None
        self._deaths = 0
        self._node_deaths = 0
        self._stack = ExitStack()
        self._outcomes: list[Outcome] = []

    def lock(self) -> bool:
        """Lock the missing runs of the job; return False if there are none."""
        self._outcomes, locked = lock_missing(self._shared.store, self.job, self._stack, self._shared.retried)
        self._runs = tuple(run for run, _ in locked)
        self._locks = [lock for _, lock in locked if lock is not None]
        rows = logging_rows(self._shared.loggers, self._shared.experiment, self._runs)
        self._log_row = self._stack.enter_context(rows)
        return bool(locked)

    def start(self, cluster: _Cluster) -> None:
        self._cluster = cluster
        self._started = False
        self.stream = cluster.submit(self._runs, self._locks[0].token())

    def receive(self) -> Iterator[Report]:
        """Report new messages of the worker, or its death."""
        ray = _ray()
        try:
            messages = ray.get(next(self.stream), timeout=SECONDS_TO_FETCH)
        except ray.exceptions.RayTaskError as error:  # exceptions of runs arrive as messages instead
            reason = one_line(error).rpartition(": ")[2]
            raise ValueError(
                f"--executor ray: a worker cannot run this: {reason}; every node needs the same packages"
            ) from error
        except (ray.exceptions.RayError, StopIteration) as error:
            yield self._restart(error)
            return
        if not self._started:
            self._started = True
            for lock in self._locks:
                lock.start()
            yield Started(self.name, self.job)
        for message in messages:
            yield from self._report(message)

    def end(self) -> Ended:
        self.finished = True
        self._stack.close()
        return Ended(self.name, self.job, tuple(self._outcomes))

    def stop(self) -> None:
        self._cancel()
        self._stack.close()

    def _cancel(self) -> None:
        if self.stream is not None:
            with suppress(Exception):  # the cluster may have failed
                _ray().cancel(self.stream, force=True)

    def _report(self, message: Any) -> Iterator[Report]:
        if isinstance(message, float):
            for lock in self._locks:
                lock.update(message)
            yield Advanced(self.name, message)
        elif isinstance(message, str):
            yield Message(message)
        elif isinstance(message, tuple):
            number, row = message
            self._log_row(self._runs[number].config, row)
        elif isinstance(message, _Failed):
            self._fail(message.reason, message.trace)
            yield self.end()
        elif isinstance(message, _Stored):
            self._outcomes += message.outcomes
            yield self.end()
        else:
            self._outcomes += [self._save(run, record) for run, record in zip(self._runs, message, strict=True)]
            yield self.end()

    def _save(self, run: Run, record: Record) -> Outcome:
        if record.identity == run.identity:
            write_record(record, record_path(self._shared.store, run.relative_path, run.identity))
        return mark_done(self._shared.store, run, record)

    def _restart(self, error: Exception) -> Report:
        self._cancel()  # a worker that timed out is still running
        node = isinstance(error, _ray().exceptions.NodeDiedError)
        self._node_deaths += node
        self._deaths += not node
        if self._deaths < ATTEMPTS and self._node_deaths < NODE_ATTEMPTS:
            self.start(self._cluster)
            return Message(f"{self.job[0].relative_path}: {'node' if node else 'worker'} died; restarting")
        reason = f"node died {NODE_ATTEMPTS} times" if node else f"worker died {ATTEMPTS} times"
        self._fail(reason, one_line(error))
        return self.end()

    def _fail(self, reason: str, trace: str) -> None:
        self._outcomes += [mark_failed(self._shared.store, run, reason, trace) for run in self._runs]


@dataclass(frozen=True)
class _Failed:
    """Message of a worker whose runs raised an exception."""

    reason: str
    trace: str


@dataclass(frozen=True)
class _Stored:
    """Message of a worker that wrote the records of its runs into the store."""

    outcomes: Sequence[Outcome]


def _serve(
    experiment: Experiment[Any], runs: Sequence[Run], data: Any, store: Path, token: Token
) -> Iterator[list[Any]]:
    """Execute runs on a worker and yield its messages periodically.

    The worker writes to the driver's store if it sees the token there. A float is the finished fraction, a string is a
    message for the user, and a pair is the index of a run and a row of its table. The last message is `_Stored`, the
    list of records, or `_Failed`.
    """
    messages: SimpleQueue[Any] = SimpleQueue()
    thread = threading.Thread(
        target=_run, args=(experiment, runs, data, store if token.is_visible() else None, messages.put), daemon=True
    )
    thread.start()
    yield []
    alive = True
    while alive:
        thread.join(SECONDS_BETWEEN_REPORTS)
        alive = thread.is_alive()  # checked before reading the queue, so that no message is missed
        yield _newest(messages)


def _run(
    experiment: Experiment[Any], runs: Sequence[Run], data: Any, store: Path | None, send: Callable[[Any], None]
) -> None:
    configs = [run.config for run in runs]
    length = experiment.length(configs[0])
    numbers = {id(config): number for number, config in enumerate(configs)}
    callbacks = Callbacks(
        send,
        on_progress=lambda steps, score: send(steps / length),
        on_row=lambda config, row: send((numbers[id(config)], row)),
    )
    try:
        records = experiment.run(configs, data, store, overwrite=False, callbacks=callbacks)
        if store is None:
            send(records)
        else:
            send(_Stored([mark_done(store, run, record) for run, record in zip(runs, records, strict=True)]))
    except Exception as error:
        send(_Failed(one_line(error), traceback.format_exc()))


def _newest(messages: SimpleQueue[Any]) -> list[Any]:
    """All queued messages, with only the last of consecutive fractions."""
    found: list[Any] = []
    with suppress(Empty):
        while True:
            one = messages.get_nowait()
            if isinstance(one, float) and found and isinstance(found[-1], float):
                found.pop()
            found.append(one)
    return found


def _ready(tasks: Sequence[_Task]) -> list[_Task]:
    """Tasks whose workers have sent messages or died; possibly none after a second."""
    ray = _ray()
    owners = {task.stream: task for task in tasks}
    if not owners:
        return []
    ray.wait(list(owners), num_returns=1, timeout=POLL_SECONDS, fetch_local=False)
    ready, _ = ray.wait(list(owners), num_returns=len(owners), timeout=0, fetch_local=False)
    return [owners[stream] for stream in ready]


def _cores_of_cluster() -> int:
    return max(int(_ray().cluster_resources().get("CPU", 0)), 1)


@contextmanager
def _connected(executor: Ray) -> Iterator[None]:
    if _ray().is_initialized():
        yield
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if executor.address is None:
        problem = "--executor ray: cannot start a cluster on this machine"
        options |= {"address": "local", "_node_ip_address": LOOPBACK, "include_dashboard": False}
        options |= {"num_cpus": executor.workers}
    else:
        problem = (
            f"--address: got {executor.address!r}, expected the address of a Ray cluster that this machine belongs to"
        )
        options |= {"address": executor.address}
        _check_address(executor.address, problem)
    session = _Session(options)
    try:
        session.wait_for_start(problem)
        yield
    finally:
        session.end()


class _Session:
    """A connection in a separate thread, so that waiting for it can time out.

    The thread lives as long as the connection, because Linux ends child processes with the thread that started them.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._started: SimpleQueue[Exception | None] = SimpleQueue()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._keep_open, daemon=True)
        self._thread.start()

    def _keep_open(self) -> None:
        ray = _ray()
        try:
            ray.init(**self._options)
        except Exception as error:
            self._started.put(error)
            return
        self._started.put(None)
        self._end.wait()
        ray.shutdown()

    def wait_for_start(self, problem: str) -> None:
        """Raise a ValueError if the connection fails or takes too long."""
        try:
            error = self._started.get(timeout=SECONDS_TO_CONNECT)
        except Empty:
            raise ValueError(f"{problem}: no response in {SECONDS_TO_CONNECT:g} s") from None
        if error is not None:
            raise ValueError(f"{problem}: {one_line(error)}") from error

    def end(self) -> None:
        self._end.set()
        self._thread.join(SECONDS_TO_END)


def _check_address(address: str, problem: str) -> None:
    """Raise a ValueError if the address does not respond; Ray would retry for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"--address: got {address!r}, expected auto or HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f"{problem}: {error}") from error


def _ray() -> Any:
    """Import the optional library, which is slow."""
    return import_module("ray")
