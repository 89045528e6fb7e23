"""A Ray cluster: the same runs on many machines, which need not share any files.

A worker is sent configurations and data, and sends back records. This process claims the runs and writes to the store.
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
from queue import Empty, SimpleQueue
from typing import Any

from weightclip.lab.experiment import Callbacks, Experiment
from weightclip.lab.records.record import Record, write_record
from weightclip.lab.records.store import record_path
from weightclip.lab.sweep.executor import (
    ATTEMPTS,
    THREADS,
    Advanced,
    Ended,
    Job,
    Report,
    Said,
    Shared,
    Started,
    check_installed,
)
from weightclip.lab.sweep.live import showing
from weightclip.lab.sweep.local import SECONDS_BETWEEN_REPORTS, cores
from weightclip.lab.sweep.plan import Run
from weightclip.lab.sweep.work import Outcome, claim_missing, in_a_line, note_failure, note_success

LOOPBACK = "127.0.0.2" if sys.platform == "linux" else None
"""The address of a cluster of our own. For 127.0.0.1 Ray takes the machine's outside address, which a firewall may
close; elsewhere than on Linux it stays inside by itself."""

SECONDS_TO_ANSWER = 10.0
SECONDS_TO_CONNECT = 120.0
SECONDS_TO_FETCH = 300.0
SECONDS_TO_END = 30.0
SECONDS_BETWEEN_LOOKS = 1.0


@dataclass(frozen=True)
class Ray:
    """The workers of a Ray cluster. A job whose worker or node dies is begun again elsewhere.

    Args:
        address: HOST:PORT of a cluster that this machine is part of, or "auto"; None starts one on this machine, which
            ends with the sweep. A connection that there already is, is used as it is.
        count: how many jobs run at once; None: one on each core of the cluster, those that join later too.
    """

    address: str | None = None
    count: int | None = None

    def __post_init__(self) -> None:
        check_installed("ray", "ray")

    @cached_property
    def workers(self) -> int:
        """How many jobs run at once, as far as is known before the sweep."""
        if self.count is not None:
            return self.count
        if self.address is None:
            return cores()
        with _connected(self):
            return _cores_of_cluster()

    def run(self, shared: Shared, jobs: Sequence[Job]) -> Generator[Report, None, None]:
        """Run the jobs, about in their order."""
        waiting = deque(_Flight(f"job {number}", job, shared) for number, job in enumerate(jobs, start=1))
        flying: list[_Flight] = []
        with ExitStack() as open_:
            cluster: _Cluster | None = None
            try:
                while waiting or flying:
                    while waiting and (cluster is None or len(flying) < cluster.room()):
                        flight = waiting.popleft()
                        if not flight.claim():
                            yield flight.ended()
                            continue
                        flying.append(flight)
                        if cluster is None:  # not before there is something to run: another sweep may have all of it
                            open_.enter_context(_connected(self))
                            cluster = _Cluster(self, shared)
                        flight.start(cluster)
                    for flight in _ready(flying):
                        yield from flight.receive()
                        if flight.landed:
                            flying.remove(flight)
            finally:
                for flight in flying:
                    flight.stop()


class _Cluster:
    """What can be asked of the cluster."""

    def __init__(self, executor: Ray, shared: Shared) -> None:
        ray = _ray()
        self._count = executor.count if executor.address is not None else None
        self._shared = shared
        self._data: dict[Hashable, Any] = {}
        threads = {"env_vars": dict.fromkeys(THREADS, "1")}
        # A job that was lost is begun again by its flight, which counts and tells.
        options = ray.remote(num_cpus=1, max_retries=0, num_returns="streaming", runtime_env=threads)
        self._serve = options(_serve)

    def room(self) -> int:
        """How many jobs may be under way; some wait in the cluster, so that no worker waits for us."""
        return self._count or 2 * _cores_of_cluster()

    def submit(self, runs: Sequence[Run]) -> Any:
        """The stream of what the worker tells of these runs."""
        ray = _ray()
        key = runs[0].data
        if key not in self._data:
            self._data[key] = ray.put(self._shared.data[key])
        return self._serve.remote(self._shared.experiment, [run.config for run in runs], self._data[key])


class _Flight:
    """A job on its way: its claims, and the stream of what its worker tells."""

    def __init__(self, name: str, job: Job, shared: Shared) -> None:
        self.name, self.job, self._shared = name, job, shared
        self.landed = False
        self.stream: Any = None
        self._attempts = 0
        self._open = ExitStack()
        self._outcomes: list[Outcome] = []

    def claim(self) -> bool:
        """Whether there is something to run that nobody else runs or has run."""
        self._outcomes, self._mine = claim_missing(self._shared.store, self.job, self._open, self._shared.began)
        self._runs = tuple(run for run, _ in self._mine)
        self._show = self._open.enter_context(showing(self._shared.live, self._shared.experiment, self._runs))
        return bool(self._mine)

    def start(self, cluster: _Cluster) -> None:
        self._cluster = cluster
        self._attempts += 1
        self._begun = False
        self.stream = cluster.submit(self._runs)

    def receive(self) -> Iterator[Report]:
        """Reports of what the worker told since the last time, or of its death."""
        ray = _ray()
        try:
            told = ray.get(next(self.stream), timeout=SECONDS_TO_FETCH)
        except ray.exceptions.RayTaskError as error:  # a run's own failure is told, not raised
            reason = in_a_line(error).rpartition(": ")[2]
            raise ValueError(
                f"--executor ray: a worker cannot run this: {reason}; every node needs the same packages"
            ) from error
        except (ray.exceptions.RayError, StopIteration) as error:
            yield self._begin_again(error)
            return
        if not self._begun:
            self._begun = True
            for _, claim in self._mine:
                claim.begin()
            yield Started(self.name, self.job)
        for one in told:
            yield from self._report(one)

    def ended(self) -> Ended:
        self.landed = True
        self._open.close()
        return Ended(self.name, self.job, tuple(self._outcomes))

    def stop(self) -> None:
        self._cancel()
        self._open.close()

    def _cancel(self) -> None:
        if self.stream is not None:
            with suppress(Exception):  # the cluster may be what failed
                _ray().cancel(self.stream, force=True)

    def _report(self, told: Any) -> Iterator[Report]:
        if isinstance(told, float):
            for _, claim in self._mine:
                claim.note(told)
            yield Advanced(self.name, told)
        elif isinstance(told, str):
            yield Said(told)
        elif isinstance(told, tuple):
            number, row = told
            self._show(self._runs[number].config, row)
        elif isinstance(told, _Failed):
            self._fail(told.reason, told.trace)
            yield self.ended()
        else:
            self._outcomes += [self._keep(run, record) for run, record in zip(self._runs, told, strict=True)]
            yield self.ended()

    def _keep(self, run: Run, record: Record) -> Outcome:
        if record.identity == run.identity:
            write_record(record, record_path(self._shared.store, run.relative_path, run.identity))
        return note_success(self._shared.store, run, record)

    def _begin_again(self, error: Exception) -> Report:
        self._cancel()  # a worker that only did not answer in time would go on
        if self._attempts < ATTEMPTS:
            self.start(self._cluster)
            return Said(f"{self.job[0].relative_path}: its worker died; beginning again")
        self._fail(f"its worker died {ATTEMPTS} times", in_a_line(error))
        return self.ended()

    def _fail(self, reason: str, trace: str) -> None:
        self._outcomes += [note_failure(self._shared.store, run, reason, trace) for run in self._runs]


@dataclass(frozen=True)
class _Failed:
    """What a worker tells of runs that raised an exception."""

    reason: str
    trace: str


def _serve(experiment: Experiment[Any], configs: Sequence[Any], data: Any) -> Iterator[list[Any]]:
    """On a worker: what the runs tell, from time to time; at the end their records, or `_Failed`.

    A float is the share that is done, a string a line to read, a pair a row and the number of its configuration.
    """
    told: SimpleQueue[Any] = SimpleQueue()
    thread = threading.Thread(target=_run, args=(experiment, configs, data, told.put), daemon=True)
    thread.start()
    yield []
    alive = True
    while alive:
        thread.join(SECONDS_BETWEEN_REPORTS)
        alive = thread.is_alive()  # asked before, so that nothing is told after the last look
        yield _newest(told)


def _run(experiment: Experiment[Any], configs: Sequence[Any], data: Any, tell: Callable[[Any], None]) -> None:
    length = experiment.length(configs[0])
    numbers = {id(config): number for number, config in enumerate(configs)}
    callbacks = Callbacks(
        tell,
        on_progress=lambda steps, score: tell(steps / length),
        on_row=lambda config, row: tell((numbers[id(config)], row)),
    )
    try:
        tell(experiment.run(configs, data, None, callbacks=callbacks))
    except Exception as error:
        tell(_Failed(in_a_line(error), traceback.format_exc()))


def _newest(told: SimpleQueue[Any]) -> list[Any]:
    """All that was told, without progress that is out of date."""
    found: list[Any] = []
    with suppress(Empty):
        while True:
            one = told.get_nowait()
            if isinstance(one, float) and found and isinstance(found[-1], float):
                found.pop()
            found.append(one)
    return found


def _ready(flights: Sequence[_Flight]) -> list[_Flight]:
    """Those whose workers have told something, or died; after a while, maybe none."""
    ray = _ray()
    owners = {flight.stream: flight for flight in flights}
    if not owners:
        return []
    ray.wait(list(owners), num_returns=1, timeout=SECONDS_BETWEEN_LOOKS, fetch_local=False)
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
        hope = "--executor ray: no cluster starts on this machine"
        options |= {"address": "local", "_node_ip_address": LOOPBACK, "include_dashboard": False}
        options |= {"num_cpus": executor.workers}
    else:
        hope = f"--address: got {executor.address!r}, expected that of a Ray cluster which this machine is part of"
        options |= {"address": executor.address}
        _check_address(executor.address, hope)
    session = _Session(options)
    try:
        session.wait_for_start(hope)
        yield
    finally:
        session.end()


class _Session:
    """A connection, made and ended in a thread of its own, so that no wait for it lasts for ever.

    The thread has to live as long: when it ends, Linux ends the processes that it started.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._started: SimpleQueue[Exception | None] = SimpleQueue()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def _live(self) -> None:
        ray = _ray()
        try:
            ray.init(**self._options)
        except Exception as error:
            self._started.put(error)
            return
        self._started.put(None)
        self._end.wait()
        ray.shutdown()

    def wait_for_start(self, hope: str) -> None:
        """A ValueError, if nothing comes of it."""
        try:
            error = self._started.get(timeout=SECONDS_TO_CONNECT)
        except Empty:
            raise ValueError(f"{hope}: no answer in {SECONDS_TO_CONNECT:g} s") from None
        if error is not None:
            raise ValueError(f"{hope}: {in_a_line(error)}") from error

    def end(self) -> None:
        self._end.set()
        self._thread.join(SECONDS_TO_END)


def _check_address(address: str, hope: str) -> None:
    """Ray itself asks an address for many minutes where nobody answers."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"--address: got {address!r}, expected auto or HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f"{hope}: {error}") from error


def _ray() -> Any:
    """The library, which is optional, and slow to import."""
    return import_module("ray")
