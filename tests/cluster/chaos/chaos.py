"""The chaos: whatever happens to its machines, a cluster gives every answer whole, once, and leaves nothing.

Rounds of random users and faults, after each of which the cluster rests: it must have all its nodes, no
request, no replica too many, and after its models are unloaded no process of any, and no more memory and
descriptors than before.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil

from puna.cluster.credentials import init
from tests.cluster.chaos.faults import WORKERS, Faults, excuse
from tests.cluster.chaos.network import Network, network
from tests.cluster.chaos.questions import CONTEXT, Question, add_models, all_questions, whole
from tests.cluster.clusters import Cluster, clustered
from tests.e2e.servers import running
from tests.ports import free_port
from tests.soak.asking import LIMIT_S, RefusedError
from tests.soak.leaks import SERVER_GROWTH_BYTES, bad_signs
from tests.soak.report import Report
from tests.soak.soak import judged
from tests.waiting import wait_until

USERS = 5
SETTINGS = {
    "PUNA_CONTEXT_LENGTH": str(CONTEXT),
    "PUNA_NUM_PARALLEL": "2",
    "PUNA_NUM_THREADS": "1",
    "PUNA_MAX_LOADED_MODELS": "4",
    "MALLOC_MMAP_THRESHOLD_": "131072",  # see tests/soak/soak.py
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "PYTHONWARNINGS": "always::ResourceWarning",
}
_ROUND_S = 60.0
_BETWEEN_FAULTS_S = 3.0
#: In one of so many rounds, the head is restarted.
_RESTART_EVERY = 10
#: Number of latest measurements of the head that are judged together.
_MEASURES = 3
#: Descriptors that the head may have more: one was seen to come and stay, perhaps a connection of Ray's.
_SPARE_DESCRIPTORS = 2


def chaos(folder: Path, *, seconds: float, seed: int, say: Callable[[str], None]) -> None:
    """Let chaos reign for about `seconds`. Raises SoakError with what went wrong."""
    questions = all_questions()
    with running(folder / "quiet", **SETTINGS) as server:
        add_models(server, folder)
        with server.http as http:
            right = {question: whole(list(question.parts(http, stream=False))) for question in questions}
    say(f"recorded the answers to {len(questions)} questions")
    with judged(seed, say) as report, network() as cuttable:
        hosts: dict[str, str] = {}
        if cuttable is not None:
            init(folder / "credentials", [cuttable.head, cuttable.worker])
            hosts["PUNA_CLUSTER_HOST"] = cuttable.head
        say(f"{'with' if hosts else 'without'} a network that can be cut, and encryption")
        # The settings of malloc and of warnings are read when Python starts.
        settings = {"PUNA_HOST": f"127.0.0.1:{free_port()}", "PUNA_REPLICAS": "1,3"} | SETTINGS | hosts
        with clustered(folder, started=True, **settings) as cluster:
            run = _Chaos(cluster, cuttable, right, report, seed, say)
            run.reign(folder, time.monotonic() + seconds)
            if cluster.server.stop() != 0:
                report.fail("the head did not exit with status 0")
            for sign in bad_signs(cluster.server):
                report.fail(f"in the head's log:\n{sign}")


class _Chaos:
    def __init__(
        self,
        cluster: Cluster,
        cuttable: Network | None,
        right: dict[Question, dict[str, object]],
        report: Report,
        seed: int,
        say: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._right = right
        self._report = report
        self._seed = seed
        self._say = say
        self._faults = Faults(cluster, cuttable, report, say)
        self._rounds = 0
        self._held: list[tuple[list[str], int]] = []  # descriptors and bytes of memory after each round

    def reign(self, folder: Path, end_s: float) -> None:
        add_models(self._cluster.server, folder)
        for _ in range(WORKERS):
            self._faults.join()
        while (len(self._held) < 2 or time.monotonic() < end_s) and not self._report.failures:
            self._rounds += 1
            self._round(min(max(end_s - time.monotonic(), 10.0), _ROUND_S))
            if not self._report.failures:
                self._rest()

    def _round(self, seconds: float) -> None:
        """Have users and faults for a while."""
        stop = threading.Event()
        rng = random.Random(f"{self._seed} {self._rounds} faults")
        restart = self._rounds % _RESTART_EVERY == 2
        if restart:
            self._held.clear()  # the new head grows anew
        threads = [
            threading.Thread(
                target=self._faults.make,
                args=[rng, _BETWEEN_FAULTS_S, stop],
                kwargs={"restart_head": restart},
                daemon=True,
            ),
            *(threading.Thread(target=self._use, args=[user, stop], daemon=True) for user in range(USERS)),
        ]
        for thread in threads:
            thread.start()
        over_s = time.monotonic() + seconds
        while any(thread.is_alive() for thread in threads):
            if time.monotonic() > over_s or self._report.failures:
                stop.set()
            hanging = self._report.hanging()
            assert hanging is None, f"{hanging}\n{self._cluster.status()}"
            time.sleep(0.2)

    def _use(self, user: int, stop: threading.Event) -> None:
        """Ask random questions, one after another, sometimes leaving in the middle of the answer."""
        rng = random.Random(f"{self._seed} {self._rounds} {user}")
        with httpx.Client(base_url=self._cluster.server.url, timeout=LIMIT_S) as http:
            while not stop.is_set():
                question = rng.choice([*self._right])
                stream = question.streams and rng.random() < 0.8
                leaves_after = rng.randrange(1, 60) if stream and rng.random() < 0.1 else 0
                began_s = time.monotonic()
                with self._report.request(question.name):
                    try:
                        outcome = self._ask(http, question, stream, leaves_after)
                    except RefusedError as error:
                        excused = excuse(error, began_s, self._faults.kills_s)
                        if excused is None:
                            raise
                        outcome = excused
                        stop.wait(1.0)
                    except httpx.TransportError:
                        if self._faults.head_was_there(began_s):
                            raise
                        outcome = "cut off"
                        stop.wait(1.0)
                    self._report.count("stream" if stream else "ask", outcome)

    def _ask(self, http: httpx.Client, question: Question, stream: bool, leaves_after: int) -> str:
        parts = []
        for part in question.parts(http, stream=stream):
            parts.append(part)
            if len(parts) == leaves_after:
                return "left"
        found, right = whole(parts), self._right[question]
        wrong = [f"{name}: expected {right[name]!r}, got {found[name]!r}" for name in right
                 if right[name] != found[name]]  # fmt: skip
        assert not wrong, f"wrong answer to {question.name}: " + "; ".join(wrong)
        return "right"

    def _rest(self) -> None:
        """Check the idle cluster."""
        cluster = self._cluster
        self._faults.settle()
        wait_until(lambda: cluster.server.running_requests() == [], "the end of all requests")

        def idle() -> bool:
            status = cluster.status()
            replicas = [replica for model in status["models"] for replica in model["replicas"]]
            return all(each["users"] == 0 and each["state"] == "ready" for each in replicas)

        wait_until(idle, "idle replicas")
        assert {node["state"] for node in cluster.status()["nodes"]} == {"ready"}
        assert cluster.status()["refused"] == {}
        with cluster.server.http as http:
            for question in self._right:
                with self._report.request(f"{question.name} at rest"):
                    self._ask(http, question, stream=question.streams, leaves_after=0)
        cluster.unload()
        machines = [*cluster.workers, cluster.machine()]

        def left() -> list[psutil.Process]:
            return [
                each for machine in machines for each in (*machine.runners(), *machine.actors("RunnerHost"))
            ]

        wait_until(lambda: left() == [], "the end of all runners and their actors")
        head = psutil.Process(cluster.server.process.pid)
        self._held.append((_descriptors(head), head.memory_info().rss))
        descriptors, memory = self._counts[-1]
        self._say(
            f"after {self._rounds} rounds, {sum(self._report.counts.values())} requests: "
            f"{descriptors} descriptors, {memory / 2**20:.1f} MiB"
        )
        self._check_growth()

    def _check_growth(self) -> None:
        """Check that the head has not grown since its second round.

        Measurements vary, and what leaks stays, so the least of the last ones counts.
        """
        counts = self._counts
        first, later = counts[1:2], counts[2:][-_MEASURES:]
        if len(later) < _MEASURES:
            return
        descriptors, memory = (min(each[place] for each in later) - first[0][place] for place in (0, 1))
        if descriptors > 0:
            self._say(f"{descriptors} more descriptors: {self._more_descriptors()}")
        assert descriptors <= _SPARE_DESCRIPTORS, f"the head has {descriptors} more descriptors: {counts}"
        assert memory <= SERVER_GROWTH_BYTES, f"the head has grown by {memory} bytes: {counts}"

    def _more_descriptors(self) -> str:
        """Return the descriptors that the head has after the last round, and had not after the second."""
        return ", ".join(sorted({*self._held[-1][0]} - {*self._held[1][0]}))

    @property
    def _counts(self) -> list[tuple[int, int]]:
        """The number of descriptors and the bytes of memory after each round."""
        return [(len(descriptors), memory) for descriptors, memory in self._held]


def _descriptors(process: psutil.Process) -> list[str]:
    """Return what each descriptor of a process is."""
    sockets = {each.fd: each for each in process.net_connections("inet")}
    found = []
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            target, each = link.readlink(), sockets.get(int(link.name))
            found.append(f"{each.status} {each.laddr} {each.raddr}" if each is not None else str(target))
    return found
