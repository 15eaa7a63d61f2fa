"""Real clusters on this machine: a head and workers, each with its own store."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests import commands
from tests.e2e.servers import Process, Server, command, environment, running
from tests.ports import free_port
from tests.waiting import PATIENCE_S, wait_until


@dataclass(eq=False)
class Worker:
    """A worker of a cluster, and the name of its node."""

    process: Process
    models: Path
    log: Path
    node: str

    def processes(self) -> list[psutil.Process]:
        """Return all processes of the node."""
        with contextlib.suppress(psutil.NoSuchProcess):
            mine = psutil.Process(self.process.pid)
            return [mine, *mine.children(recursive=True)]
        return []

    def runners(self) -> list[psutil.Process]:
        """Return the processes of its replicas."""
        return [each for each in self.processes() if "puna.runner" in _command(each)]

    def actors(self, kind: str) -> list[psutil.Process]:
        """Return the processes of its actors of a class."""
        return [each for each in self.processes() if " ".join(_command(each)).startswith(f"ray::{kind}")]

    def suspend(self) -> list[psutil.Process]:
        """Let no process of it run any code until they are resumed, and return them."""
        found: list[psutil.Process] = []
        while new := [each for each in self.processes() if each not in found]:
            found += new
            _signal(new, signal.SIGSTOP)
        return found

    def kill(self) -> None:
        """Let the machine vanish: no process of it runs any code any more."""
        _signal(self.suspend(), signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def leave(self) -> None:
        """Ask it to leave, as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)


def resume(processes: list[psutil.Process]) -> None:
    """Let suspended processes go on."""
    _signal(processes, signal.SIGCONT)


def _signal(processes: list[psutil.Process], number: int) -> None:
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.send_signal(number)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


@dataclass
class Cluster:
    """A head and its workers."""

    server: Server
    folder: Path
    settings: dict[str, str]
    stack: ExitStack
    started: bool = False  # by Python, see `running`
    workers: list[Worker] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.server.http.get("/api/cluster").raise_for_status().json()
        return found

    def nodes(self) -> dict[str, dict[str, Any]]:
        return {node["name"]: node for node in self.status()["nodes"]}

    @property
    def head(self) -> str:
        """The name of the head's own node."""
        return next(name for name in self.nodes() if name not in {worker.node for worker in self.workers})

    def replicas(self, model: str) -> dict[str, dict[str, Any]]:
        """Return the replicas of a model by their nodes."""
        found = [each["replicas"] for each in self.status()["models"] if each["name"].startswith(model)]
        return {replica["node"]: replica for replicas in found for replica in replicas}

    def holding(self, node: str) -> list[str]:
        """Return the models that have replicas on a node."""
        models = self.status()["models"]
        return [each["name"] for each in models if any(one["node"] == node for one in each["replicas"])]

    def worker(self, node: str) -> Worker:
        return next(worker for worker in self.workers if worker.node == node)

    def machine(self) -> Worker:
        """Return the head as one of the nodes."""
        return Worker(self.server.process, self.server.models, self.server.log, self.head)

    def join(
        self,
        prepare: Callable[[Path], object] = Path.mkdir,
        prefix: tuple[str, ...] = (),
        **settings: str,
    ) -> Worker:
        """Start a worker, whose folder `prepare` makes, and return once the head knows it.

        With a `prefix`, that command runs it.
        """
        known = set(self.nodes())
        number = next(self._numbers)
        models = self.folder / f"worker-{number}"
        prepare(models)
        log = models / "node.log"
        env = environment(models, **{**self.settings, **settings})
        head = self.settings.get("PUNA_CLUSTER_HOST", "127.0.0.1")
        env["PUNA_CLUSTER_JOIN"] = f"{head}:{self.settings['PUNA_CLUSTER_PORT']}"
        with log.open("a") as file, Path(os.devnull).open() as nothing:
            streams = (nothing.fileno(), file.fileno(), file.fileno())
            process: Process
            if prefix:
                stdin, stdout, stderr = streams
                process = subprocess.Popen(
                    [*prefix, *command()], stdin=stdin, stdout=stdout, stderr=stderr, env=env, text=True
                )
            else:
                process = commands.start("serve", env=env, streams=streams)
        self.stack.callback(_end, process)
        wait_until(lambda: log.read_text().startswith("Joined"), "the worker to join")
        wait_until(lambda: len(set(self.nodes()) - known) == 1, "the new node")
        [node] = set(self.nodes()) - known
        worker = Worker(process, models, log, node)
        self.workers.append(worker)
        return worker

    def restart_head(self) -> None:
        """Let the head vanish, and start it again once its workers have ended."""
        self.machine().kill()
        for worker in self.workers:  # on the same machine, Ray takes them for another head
            worker.process.wait(PATIENCE_S)
        self.server = self.stack.enter_context(
            running(self.folder / "head", started=self.started, **self.settings)
        )

    def kill(self, worker: Worker) -> None:
        """Let a worker vanish, and forget it."""
        worker.kill()
        self.workers.remove(worker)

    def unload(self) -> None:
        """Unload all models."""
        wait_until(lambda: self.server.running_requests() == [], "all requests to end")
        for model in self.server.client.ps().models:
            self.server.client.generate(model.model or "", keep_alive=0)
        wait_until(lambda: self.server.client.ps().models == [], "all models to be unloaded")

    def spread(self, model: str) -> None:
        """Ask for more answers than one replica gives at a time, until a second one is there."""

        def ask(_: int) -> None:
            self.server.client.generate(model, "Go on.", options={"num_predict": 40, "seed": 1})

        with ThreadPoolExecutor() as pool:
            while len(self.replicas(model)) < 2:
                list(pool.map(ask, range(8)))

    def busy(self, model: str) -> Worker:
        """Return the worker on which the only request runs."""
        found = [node for node, replica in self.replicas(model).items() if replica["users"]]
        assert len(found) == 1, self.status()
        return self.worker(found[0])

    def drain(self, node: str, *, undo: bool = False) -> None:
        reply = self.server.http.post("/api/cluster/drain", json={"node": node, "undo": undo})
        reply.raise_for_status()


def _end(process: Process) -> None:
    """End a worker that still runs; Ray's processes end with it."""
    if process.poll() is None:
        process.kill()
        process.wait(PATIENCE_S)


@contextmanager
def clustered(folder: Path, workers: int = 0, *, started: bool = False, **settings: str) -> Iterator[Cluster]:
    """Run a cluster within the block; its head is a fork unless `started`, see `running`."""
    with ExitStack() as stack:
        # Paths of Ray's sockets must be short.
        temp = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True))
        settings = {
            "PUNA_CLUSTER": "1",
            "PUNA_CLUSTER_PORT": str(free_port()),
            "PUNA_CLUSTER_TEMP": temp,
            "PUNA_CLUSTER_FOLDER": str(folder / "credentials"),
            **settings,
        }
        server = stack.enter_context(running(folder / "head", started=started, **settings))
        cluster = Cluster(server, folder, settings, stack, started)
        for _ in range(workers):
            cluster.join()
        yield cluster
