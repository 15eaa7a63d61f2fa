"""Measure parallel requests in this process: total speed, time to the first token, gaps between tokens.

    python bench/serving.py MODEL.gguf [--clients 16] [--tokens 64] [--threads 0] [--cpu] [--only shared]

Three workloads, each from an empty cache:

shared      all clients at once, with 850 tokens in common and 20 of their own
unrelated   all clients at once, 200 tokens each
intruder    4 streams are running when a prompt of 8192 tokens arrives: the time between a stream's tokens,
            before and during its evaluation

Tokens per second are the generated tokens of all clients over the total time. Times are those of a client
without overhead. Prompts are random tokens, and end tokens do not end an answer. With --cpu, for a busy
machine, processor time of the stepping thread is measured; use --threads 1.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from report import percentile

from puna.engine.engine import Engine
from puna.engine.room import EngineSizes
from puna.model.load import load_model
from puna.ops import default_backend
from puna.options import Options
from puna.protocol import Chunk, Done, Event, Failed, Generate

SHARED, OWN, UNRELATED, LONG, STREAMS = 850, 20, 200, 8192, 4


class Crowd:
    """Clients of one engine, and the arrival times of their tokens."""

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self.engine = engine
        self.clock = clock
        self.dice = random.Random(7)
        self.sent: dict[int, float] = {}
        self.arrivals: dict[int, list[float]] = defaultdict(list)  # of each token
        self.ended: set[int] = set()

    def tokens(self, count: int) -> list[int]:
        return [self.dice.randrange(self.engine.loaded.tokenizer.vocab_size) for _ in range(count)]

    def ask(self, number: int, prompt: list[int], predict: int) -> None:
        def sink(event: Event) -> None:
            if isinstance(event, Failed):
                raise SystemExit(f"client {number}: {event.message}")
            if isinstance(event, Chunk):
                self.arrivals[number] += [self.clock()] * len(event.tokens)
            if isinstance(event, Done):
                self.ended.add(number)

        self.sent[number] = self.clock()
        options = Options(temperature=0.0, num_predict=predict)
        self.engine.submit(Generate(id=number, prompt=prompt, options=options, ignore_eos=True), sink)

    def finish(self) -> None:
        while self.engine.step():
            pass

    def firsts(self) -> list[float]:
        """Return the seconds each client waited for its first token, ascending."""
        return sorted(self.arrivals[number][0] - sent for number, sent in self.sent.items())

    def gaps(self, number: int, begin: float, end: float) -> list[float]:
        """Return the seconds between the tokens of a client that arrived from `begin` to `end`."""
        times = [at for at in self.arrivals[number] if begin <= at <= end]
        return [after - before for before, after in itertools.pairwise(times)]


def burst(crowd: Crowd, prompts: list[list[int]], predict: int) -> str:
    """Measure all clients sending their requests at once."""
    begin = crowd.clock()
    for number, prompt in enumerate(prompts):
        crowd.ask(number, prompt, predict)
    crowd.finish()
    took = crowd.clock() - begin
    firsts = crowd.firsts()
    total = sum(len(times) for times in crowd.arrivals.values())
    return (
        f"{total / took:8.1f} tokens/s   first token: median {statistics.median(firsts):7.2f} s   "
        f"p95 {percentile(firsts, 95):7.2f} s   all done after {took:7.1f} s"
    )


def intrusion(crowd: Crowd, length: int) -> str:
    """Measure a long prompt that arrives while a few streams are running."""
    engine = crowd.engine
    for number in range(STREAMS):
        crowd.ask(number, crowd.tokens(16), 10 * engine.context)
    while min(len(crowd.arrivals[number]) for number in range(STREAMS)) < 40:
        engine.step()
    begin = crowd.arrivals[0][8]
    arrival = crowd.clock()
    crowd.ask(STREAMS, crowd.tokens(length), 1)
    while STREAMS not in crowd.ended:
        engine.step()
    end = crowd.clock()
    before = sorted(gap for number in range(STREAMS) for gap in crowd.gaps(number, begin, arrival))
    during = sorted(gap for number in range(STREAMS) for gap in crowd.gaps(number, arrival, end))
    for number in range(STREAMS):
        engine.cancel(number)
    crowd.finish()
    middle, steady = statistics.median(during), statistics.median(before)
    slow = percentile(during, 95)
    return (
        f"between tokens {1e3 * steady:.1f} ms, during the prompt {1e3 * middle:.1f} ms "
        f"({middle / steady:.2f}x), p95 {1e3 * slow:.1f} ms ({slow / percentile(before, 95):.2f}x); "
        f"prompt at {length / (end - arrival):.1f} tokens/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--long", type=int, default=LONG, help="length of the intruder's prompt")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--only", choices=("shared", "unrelated", "intruder"))
    chosen = parser.parse_args()
    ops = default_backend()
    ops.set_threads(chosen.threads)
    loaded = load_model(chosen.model, ops=ops)
    print(
        f"{chosen.model.name}, {chosen.clients} clients, {chosen.tokens} tokens each, {ops.threads()} threads"
    )
    for name in ("shared", "unrelated", "intruder"):
        if chosen.only not in (None, name):
            continue
        longest = chosen.long + 16 if name == "intruder" else SHARED + OWN + chosen.tokens
        engine = Engine(loaded, EngineSizes(context=longest, parallel=chosen.clients))
        crowd = Crowd(engine, time.thread_time if chosen.cpu else time.perf_counter)
        if name == "intruder":
            result = intrusion(crowd, chosen.long)
        else:
            shared = crowd.tokens(SHARED if name == "shared" else 0)
            own = OWN if shared else UNRELATED
            prompts = [[*shared, *crowd.tokens(own)] for _ in range(chosen.clients)]
            result = burst(crowd, prompts, chosen.tokens)
        engine.close()
        print(f"{name:12}{result}", flush=True)


if __name__ == "__main__":
    main()
