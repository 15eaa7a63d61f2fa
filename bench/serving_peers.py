"""Compare Puna's server with llama.cpp's and llama-cpp-python's: many parallel clients over HTTP.

    make bench-serving                                       # installs what is missing, runs everything
    python bench/serving_peers.py --quick                    # a small model and short answers, as a trial
    python bench/serving_peers.py --only shared,streaming    # some parts; only prints, does not write docs/
    python bench/serving_peers.py --servers puna,llama.cpp   # some servers

Each server is a separate process, with the same file, threads and slots. They alternate on the same requests,
in reverse order every other time. Answers are greedy and of equal length.

shared      all clients at once; their prompts have 850 tokens in common and 20 of their own
warm        the same, after the server has answered one client with these 850 tokens
unrelated   all clients at once, 200 tokens each
turns       twice as many conversations as slots, each continued once
streaming   8 streams over HTTP, alternating with 8 of an engine in this process: the overhead of HTTP
idle        1,000 connections that were used once and stay open

A complete run writes docs/serving.json and the table in docs/serving.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import servers
from crowds import Crowd, burst, converse, idle, stream
from inside import Inside
from models import random_model
from report import load_warning, processor
from servers import Server, Setting
from serving_report import AS_IN_FILE, REPORT, THEIRS, Run, idle_line, line, streaming_line, turns_line

import puna
from puna import _native

BURSTS = ("shared", "warm", "unrelated")
PARTS = (*BURSTS, "turns", "streaming", "idle")

Start = Callable[[Setting], contextlib.AbstractContextManager[Server]]
SERVERS: dict[str, Start] = {
    "puna": servers.puna,
    "llama.cpp": lambda setting: servers.llama_cpp_server(setting, THEIRS),
    "llama.cpp-as-in-file": lambda setting: servers.llama_cpp_server(setting, AS_IN_FILE, "--no-repack"),
    "llama-cpp-python": servers.llama_cpp_python,
}


def crowds(quick: bool) -> dict[str, Crowd]:
    """Return the workloads, with few repetitions if llama.cpp's server takes minutes."""
    if quick:
        return {
            "shared": Crowd("shared", 16, 100, 10, 8, 1),
            "warm": Crowd("warm", 16, 100, 10, 8, 1, seen=True),
            "unrelated": Crowd("unrelated", 16, 0, 30, 8, 1),
            "turns": Crowd("turns", 16, 0, 20, 4, 1),
            "streaming": Crowd("streaming", 8, 0, 16, 64, 3),
        }
    return {
        "shared": Crowd("shared", 16, 850, 20, 64, 2),
        "warm": Crowd("warm", 16, 850, 20, 64, 2, seen=True),
        "unrelated": Crowd("unrelated", 16, 0, 200, 64, 2),
        "turns": Crowd("turns", 16, 0, 100, 16, 1),
        "streaming": Crowd("streaming", 8, 0, 16, 128, 7),
    }


def alternate(running: Sequence[Server], crowd: Crowd) -> Iterator[tuple[Server, int]]:
    """Yield each server at each repetition, in reverse order every other time."""
    for repetition in range(crowd.repetitions):
        first = repetition % len(running)
        for server in [*running[first:], *running[:first]]:
            yield server, repetition


def measure(run: Run, parts: Sequence[str], running: Sequence[Server], setting: Setting, quick: bool) -> None:
    """Fill `run`, printing each result."""
    plan = crowds(quick)
    for name in BURSTS:
        if name in parts:
            for server, repetition in alternate(running, plan[name]):
                run.bursts.append(asyncio.run(burst(server, plan[name], repetition)))
                print(line(run.bursts[-1]), flush=True)
    if "turns" in parts:
        for server in running:
            if server.continues:
                run.turns.append(asyncio.run(converse(server, plan["turns"], new=30)))
                print(turns_line(run.turns[-1]), flush=True)
    if "streaming" in parts:
        ours = next(server for server in running if server.name == "Puna")
        with contextlib.closing(Inside(setting)) as inside:
            run.streaming = stream(ours, inside, plan["streaming"])
        print(streaming_line(run.streaming), flush=True)
    if "idle" in parts:
        for server in running:
            run.idle.append(asyncio.run(idle(server)))
            print(idle_line(run.idle[-1]), flush=True)


def compared() -> list[str]:
    """Return the compared versions and the instruction sets they were compiled for."""
    found = [f"Puna {puna.__version__} (kernels: {_native.cpu_level()})"]
    if find_spec("llama_cpp"):
        found.append(
            f"llama-cpp-python {version('llama-cpp-python')}, and llama.cpp's own server built from its "
            "source, both with every instruction set of the machine"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a small model, short prompts and answers")
    parser.add_argument("--only", help=f"only these parts: {','.join(PARTS)}")
    parser.add_argument("--servers", help=f"only these servers: {','.join(SERVERS)}")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--output", type=Path, help="folder for the results (default: docs, if complete)")
    chosen = parser.parse_args()
    parts = chosen.only.split(",") if chosen.only else PARTS
    names = chosen.servers.split(",") if chosen.servers else list(SERVERS)
    if unknown := {*parts} - {*PARTS} | {*names} - {*SERVERS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if "streaming" in parts and "puna" not in names:
        parser.error("streaming needs the server puna")
    if warning := load_warning():
        print(warning, file=sys.stderr)
    shape, mix = ("135m", "q8_0") if chosen.quick else ("1b", "q4_k_m")
    setting = Setting(
        random_model(shape, mix), slots=16, context=1024,
        threads=chosen.threads,
    )  # fmt: skip
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # both ends of 1,000 connections
    began = time.time()
    run = Run(f"{shape} {mix}", setting.threads, processor(), compared())
    print("\n".join(run.versions), flush=True)
    with contextlib.ExitStack() as stack:
        running = []
        for name in names:
            try:
                running.append(stack.enter_context(SERVERS[name](setting)))
            except servers.MissingError as error:
                run.left_out[name] = str(error)
                print(f"{name} is skipped: {error}", flush=True)
            else:
                asyncio.run(burst(running[-1], Crowd("warm-up", 2, 0, 64, 4, 1), 0))
        measure(run, parts, running, setting, chosen.quick)
    run.minutes = (time.time() - began) / 60
    print(f"took {run.minutes:.0f} minutes")
    complete = not (chosen.only or chosen.servers or chosen.quick)
    if complete or chosen.output:
        REPORT.write(run, chosen.output)


if __name__ == "__main__":
    main()
