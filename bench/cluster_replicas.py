"""Measure replicas in real processes on this machine: `make bench-cluster`.

way       a cluster of one node beside a server without one: what the way through a cluster costs
replicas  three replicas of one thread each beside one with all threads
routing   conversations on six replicas, with our router and in turn

Servers that are compared take turns. `--output` names the folder of the tables.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from cluster_replicas_report import REPORT, Load, Routing, Run, Way
from cluster_traces import conversations
from crowds import Crowd, burst, text
from http_load import ask
from models import random_model
from report import load_warning
from servers import SERVER_READY_S, Server, Setting, environment, free_port, puna, running
from serving_report import Burst

REPLICAS: Final = 3
#: Replicas that conversations are routed to. In turn, each of a few has a third of what a conversation needs.
ROUTED: Final = 6
SLOTS: Final = 8
CONTEXT: Final = 8192
#: Clients that converse at the same time, and the mean seconds between turns of each. There are as many as
#: cores, for replicas of one thread: with more, first tokens wait for others' answers, whatever the router.
CLIENTS, PAUSE_S = 2, 2.0
#: Runs `puna` with a router that lets replicas take turns.
IN_TURN: Final = str(Path(__file__).with_name("cluster_in_turn.py"))
ALONE: Final = Crowd("one client", 1, 0, 30, 64, repetitions=15)
CROWDED: Final = Crowd("8 clients", SLOTS, 0, 30, 64, repetitions=15)
#: Of first tokens, whose times vary much more than speeds do, with this length of answers.
BRIEF_REPETITIONS, BRIEF = 100, 4
SHARED: Final = Crowd("850 tokens in common", 2 * SLOTS, 850, 20, 64, repetitions=3, seen=True)
UNRELATED: Final = Crowd("unrelated", 2 * SLOTS, 0, 200, 64, repetitions=3)


@contextlib.contextmanager
def cluster(setting: Setting, replicas: int, *, in_turn: bool = False) -> Iterator[Server]:
    """Run a head and workers, and load a replica of the model on each."""
    with contextlib.ExitStack() as stack:
        # Paths of Ray's sockets must be short.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True))
        port = str(free_port())
        settings = {
            "PUNA_CLUSTER": "1",
            "PUNA_CLUSTER_PORT": port,
            "PUNA_CLUSTER_TEMP": f"{folder}/ray",
            "PUNA_CLUSTER_FOLDER": f"{folder}/credentials",
            "PUNA_REPLICAS": f"{replicas},{replicas}",
        }
        program = [IN_TURN] if in_turn else ["-m", "puna"]
        server = stack.enter_context(puna(setting, program=program, **settings))
        for number in range(1, replicas):
            join = {
                "PUNA_CLUSTER_JOIN": f"127.0.0.1:{port}",
                "PUNA_MODELS": f"{folder}/models-{number}",
                "PUNA_NUM_PARALLEL": str(setting.slots),
            }
            command = [sys.executable, "-m", "puna", "serve"]
            stack.enter_context(running(command, environment(**settings, **join)))
            # Ray's nodes that start at the same moment on few processors give up.
            _wait(lambda count=number + 1: len(_status(server)["nodes"]) == count, "nodes")
        asyncio.run(ask(server.port, server.completion("a", 1)))
        _wait(lambda: _loaded(server) == replicas, "replicas")
        yield server


def _loaded(server: Server) -> int:
    return sum(len(model["replicas"]) for model in _status(server)["models"])


def _status(server: Server) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/api/cluster", timeout=30) as reply:
        return json.load(reply)


def _wait(done: Callable[[], bool], awaited: str) -> None:
    deadline = time.monotonic() + SERVER_READY_S
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the cluster has not all of its {awaited} after {SERVER_READY_S:g} s")
        time.sleep(0.2)


def measure_way(local: Server, through: Server) -> list[Way]:
    """Measure both servers in turn, the first round of which is a warm-up."""
    found = []
    for crowd in (ALONE, CROWDED):
        brief = replace(crowd, name=f"{crowd.name}, brief", answer=BRIEF, repetitions=BRIEF_REPETITIONS)
        first, whole = (_in_turn(local, through, each) for each in (brief, crowd))
        found.append(
            Way(
                crowd.name,
                local_first_ms=[1e3 * one.first for one in first[local]],
                cluster_first_ms=[1e3 * one.first for one in first[through]],
                local_rates=[one.rate for one in whole[local]],
                cluster_rates=[one.rate for one in whole[through]],
            )
        )
    return found


def _in_turn(one: Server, other: Server, crowd: Crowd) -> dict[Server, list[Burst]]:
    bursts: dict[Server, list[Burst]] = {one: [], other: []}
    for number in range(crowd.repetitions + 1):
        for server in (one, other) if number % 2 else (other, one):
            bursts[server].append(asyncio.run(burst(server, crowd, number)))
    return {server: found[1:] for server, found in bursts.items()}


def measure_loads(one: Server, several: Server) -> list[Load]:
    """Measure one replica and several in turn."""
    found = []
    for crowd in (SHARED, UNRELATED):
        bursts = [
            [asyncio.run(burst(server, crowd, number)) for server in (one, several)]
            for number in range(crowd.repetitions)
        ]
        found.append(
            Load(
                crowd.name,
                crowd.clients,
                one_rates=[alone.rate for alone, _ in bursts],
                several_rates=[together.rate for _, together in bursts],
                one_first_s=[alone.first for alone, _ in bursts],
                several_first_s=[together.first for _, together in bursts],
            )
        )
    return found


async def _converse(server: Server, sessions: int) -> tuple[list[float], float]:
    """Return the times to the first token of all turns but first ones, and how much of them was cached."""
    dice = random.Random(1)
    waiting = [session for session, _ in zip(conversations(dice, PAUSE_S), range(sessions), strict=False)]
    first_s: list[float] = []
    evaluated = prompt = 0

    async def client() -> None:
        nonlocal evaluated, prompt
        while waiting:
            session = waiting.pop(0)
            words = random.Random(session.number)
            before, context = None, 0
            for number, turn in enumerate(session.turns):
                if context + turn.tokens + turn.answer > CONTEXT:
                    break
                if number:
                    await asyncio.sleep(turn.pause_s)
                request = text(words, turn.tokens)
                answer = await ask(server.port, server.turn(before, request, turn.answer))
                before = server.turned(before, request, answer)
                context = before.prompt_tokens + turn.answer
                if number:
                    first_s.append(answer.first_s)
                    evaluated += before.evaluated
                    prompt += before.prompt_tokens

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return first_s, 1 - evaluated / prompt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", nargs=2, default=["135m", "q8_0"], metavar=("SHAPE", "MIX"))
    parser.add_argument("--sessions", type=int, default=12, help="conversations, default 12")
    parser.add_argument("--output", type=Path, help="write the report to this folder")
    arguments = parser.parse_args()
    if warning := load_warning():
        print(warning)
    path, threads = random_model(*arguments.model), len(os.sched_getaffinity(0))
    whole = Setting(path, SLOTS, CONTEXT, threads)
    part = Setting(path, SLOTS, CONTEXT, 1)
    with puna(whole) as local, cluster(whole, 1) as one:
        way = measure_way(local, one)
        print(*(result.line for result in way), sep="\n", flush=True)
        # The local server is idle meanwhile.
        with cluster(part, REPLICAS) as several:
            loads = measure_loads(one, several)
            print(*(result.line for result in loads), sep="\n", flush=True)
    routing = []
    for name, in_turn in (("in turn", True), ("Puna", False)):
        with cluster(part, ROUTED, in_turn=in_turn) as server:
            routing.append(Routing(name, *asyncio.run(_converse(server, arguments.sessions))))
        print(routing[-1].line, flush=True)
    if arguments.output is not None:
        name = " ".join(arguments.model)
        REPORT.write(Run(name, threads, REPLICAS, ROUTED, CLIENTS, way, loads, routing), arguments.output)


if __name__ == "__main__":
    main()
