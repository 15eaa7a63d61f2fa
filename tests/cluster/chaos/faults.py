"""Faults of a cluster's machines, and the errors of requests that they excuse."""

from __future__ import annotations

import contextlib
import math
import os
import random
import re
import resource
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.cluster.chaos.network import Network
from tests.cluster.clusters import Cluster, Worker, resume
from tests.soak.asking import RefusedError
from tests.soak.report import Report
from tests.waiting import PATIENCE_S, wait_until

#: The number of workers that the cluster has again after each fault.
WORKERS = 2
#: The disk of a worker; the models take half of it.
_DISK_BYTES = 32 << 20
#: A request fails if so many of its runners crash (`_CRASHES` in replicas.py).
_CRASHES = 2
#: A model is refused after so many crashes in a row, for so long at most (server/fleet/loading.py).
_IN_A_ROW = 3
_APART_S = 600.0
#: How long a request may wait for a kill to be noticed before it began.
_UNNOTICED_S = 10.0

_CRASHED = re.compile(r"model runner has unexpectedly stopped|model runner process has terminated")
_REFUSED = re.compile(r"the model crashed \d+ times in a row")


def excuse(error: RefusedError, began_s: float, kills_s: list[float]) -> str | None:
    """Return the outcome that excuses `error` of a request that began at `began_s`, or None.

    Only runner processes that were killed count: whatever happens to nodes, an answer is whole.
    """
    if _REFUSED.search(error.message):
        return "refused" if sum(kill > began_s - _APART_S for kill in kills_s) >= _IN_A_ROW else None
    if _CRASHED.search(error.message):
        return "crashed" if sum(kill > began_s - _UNNOTICED_S for kill in kills_s) >= _CRASHES else None
    return None


class Faults:
    """A source of random faults, one after another."""

    def __init__(
        self, cluster: Cluster, network: Network | None, report: Report, say: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._network = network
        self._apart: Worker | None = None  # the worker in the network
        self._report = report
        self._say = say
        self._stack = cluster.stack
        self._gone: list[psutil.Process] = []  # of nodes that are no more
        self.kills_s: list[float] = []
        self.absences_s: list[tuple[float, float]] = []  # begin and end of each time without a head

    def make(
        self, rng: random.Random, mean_s: float, stop: threading.Event, *, restart_head: bool = False
    ) -> None:
        """Make a fault about every `mean_s` seconds until `stop` is set; the first may be the head's end."""
        faults: dict[Callable[[random.Random], None], int] = {
            self._kill_runner: 3, self._kill_host: 3, self._kill_agent: 1, self._vanish: 2,
            self._suspend: 3, self._suspend_for_long: 2, self._drain: 2, self._drain_head: 1,
            self._leave: 2, self._fill_disk: 2,
        }  # fmt: skip
        if self._network is not None:
            faults |= {self._cut: 3, self._cut_for_long: 2}
        while not stop.wait(rng.uniform(0.2, 1.8) * mean_s) and not self._report.hopeless:
            [fault] = rng.choices([*faults], [*faults.values()])
            if restart_head:
                fault, restart_head = self._restart_head, False
            name = fault.__name__.strip("_").replace("_", " ")
            self._say(name)
            with self._report.request(f"fault: {name}"):
                fault(rng)
                self._report.event(name)
                self.settle()

    def head_was_there(self, began_s: float) -> bool:
        """Whether the head has been there since `began_s`."""
        return all(end_s < began_s for _, end_s in self.absences_s)

    def join(self) -> Worker:
        """Start a worker with a small disk of its own; one of them is beyond a network."""
        network = self._network
        if network is None or self._apart in self._cluster.workers:
            return self._cluster.join(self._small_disk)
        self._apart = self._cluster.join(self._small_disk, network.prefix, PUNA_CLUSTER_HOST=network.worker)
        return self._apart

    def settle(self) -> None:
        """Wait until all nodes are there again; those that have ended are replaced, and leave nothing."""
        # A node that was cut off is known for a while, and ends when it learns that it counts as lost.
        while not self._replaced():
            pass

    def _replaced(self) -> bool:
        """Replace the nodes that have ended; return whether all are there, and False if another ends."""
        for worker in [*self._cluster.workers]:
            wait_until(lambda worker=worker: self._decided(worker), "a node that works, or that has ended")
            if worker.process.poll() is not None:
                self._report.event("nodes ended")
                self._cluster.workers.remove(worker)
        wait_until(lambda: not any(map(_runs, self._gone)), "the end of all processes of lost nodes")
        self._gone.clear()
        while len(self._cluster.workers) < WORKERS:
            self.join()
        names = {worker.node for worker in self._cluster.workers}

        def all_there() -> bool:
            found = set(self._cluster.nodes())
            return len(found) == WORKERS + 1 and names <= found

        def one_ended() -> bool:
            return any(worker.process.poll() is not None for worker in self._cluster.workers)

        wait_until(lambda: one_ended() or all_there(), f"the nodes {names} and the head")
        return not one_ended()

    def _decided(self, worker: Worker) -> bool:
        return worker.process.poll() is not None or worker.node in self._cluster.nodes()

    # --- faults ---

    def _any(self, rng: random.Random) -> Worker:
        return rng.choice([*self._cluster.workers, self._cluster.machine()])

    def _kill_runner(self, rng: random.Random) -> None:
        if runners := self._any(rng).runners():
            self.kills_s.append(time.monotonic())
            with contextlib.suppress(psutil.NoSuchProcess):
                rng.choice(runners).kill()

    def _kill_host(self, rng: random.Random) -> None:
        self._kill_actor(rng, "RunnerHost")

    def _kill_agent(self, rng: random.Random) -> None:
        self._kill_actor(rng, "NodeAgent")

    def _kill_actor(self, rng: random.Random, kind: str) -> None:
        if actors := self._any(rng).actors(kind):
            with contextlib.suppress(psutil.NoSuchProcess):
                rng.choice(actors).kill()

    def _vanish(self, rng: random.Random) -> None:
        worker = rng.choice(self._cluster.workers)
        self._gone += worker.processes()
        if rng.random() < 0.5:  # a new machine comes before the old one goes
            self.join()
        self._cluster.kill(worker)

    def _suspend(self, rng: random.Random) -> None:
        """Suspend a node for less time than it takes to be lost."""
        with self._suspended(rng.choice(self._cluster.workers)):
            time.sleep(rng.uniform(0.1, 4.0))

    def _suspend_for_long(self, rng: random.Random) -> None:
        """Suspend a node until it is lost, or nearly."""
        worker = rng.choice(self._cluster.workers)
        self._lose(rng, worker, self._suspended(worker))

    def _cut(self, rng: random.Random) -> None:
        """Cut the network for less time than it takes to lose a node."""
        with self._without_network():
            time.sleep(rng.uniform(0.1, 4.0))

    def _cut_for_long(self, rng: random.Random) -> None:
        if self._apart in self._cluster.workers:
            self._lose(rng, self._apart, self._without_network())

    def _lose(
        self, rng: random.Random, worker: Worker, fault: contextlib.AbstractContextManager[None]
    ) -> None:
        """Wait within a fault until its worker is lost, or nearly."""
        self._gone += worker.processes()
        with fault:
            if rng.random() < 0.3:
                time.sleep(rng.uniform(4.0, 8.0))
            else:
                wait_until(lambda: worker.node not in self._cluster.nodes(), "the loss of a node")
        if worker.node in self._cluster.nodes():
            self._gone.clear()
        else:
            worker.process.wait(PATIENCE_S)

    @contextlib.contextmanager
    def _suspended(self, worker: Worker) -> Iterator[None]:
        processes = worker.suspend()
        try:
            yield
        finally:
            resume(processes)

    @contextlib.contextmanager
    def _without_network(self) -> Iterator[None]:
        assert self._network is not None
        self._network.cut()
        try:
            yield
        finally:
            self._network.heal()

    def _restart_head(self, rng: random.Random) -> None:
        """Let the head vanish, and start it again; its workers end, and others come."""
        nodes = [*self._cluster.workers, self._cluster.machine()]
        self._gone += [process for node in nodes for process in node.processes()]
        self.absences_s.append((time.monotonic(), math.inf))
        self._cluster.restart_head()
        self.absences_s[-1] = self.absences_s[-1][0], time.monotonic()

    def _drain(self, rng: random.Random) -> None:
        worker = rng.choice(self._cluster.workers)
        self._cluster.drain(worker.node)
        held = self._cluster.holding(worker.node)
        assert not held, f"a drained node has replicas of {held}"
        assert worker.runners() == [], "a drained node has runners"
        self._cluster.drain(worker.node, undo=True)

    def _drain_head(self, rng: random.Random) -> None:
        """Have the workers do all the work for a while."""
        self._cluster.drain(self._cluster.head)
        self._kill_runner(rng)
        self._cluster.drain(self._cluster.head, undo=True)

    def _leave(self, rng: random.Random) -> None:
        worker = rng.choice(self._cluster.workers)
        self._gone += worker.processes()
        worker.leave()
        assert worker.process.wait(PATIENCE_S) == 0, worker.log.read_text()
        self._cluster.workers.remove(worker)

    def _fill_disk(self, rng: random.Random) -> None:
        """Have a node without files and without room for any, which must be of no use and do no harm."""
        worker = self.join()
        blobs = worker.models / "blobs"
        agents = worker.actors("NodeAgent")
        if blobs.is_mount():
            rest = blobs / "rest"
            with contextlib.suppress(OSError), rest.open("wb", buffering=0) as file:
                while file.write(bytes(1 << 16)):
                    pass
        else:
            for agent in agents:
                resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
        victim = rng.choice([other for other in self._cluster.workers if other is not worker])
        self._gone += [*victim.processes(), *worker.processes()]
        self._cluster.kill(victim)
        time.sleep(rng.uniform(1.0, 4.0))
        self._cluster.kill(worker)

    def _small_disk(self, models: Path) -> None:
        """Make the folder of a node, with a small file system for blobs where that is allowed."""
        blobs = models / "blobs"
        blobs.mkdir(parents=True)
        if os.geteuid() == 0:
            command: list[Any] = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "none", blobs]
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                self._stack.callback(subprocess.run, ["umount", "--lazy", blobs], check=False)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
