"""Measure the time a decode step spends in kernels and in each part of the engine.

    make bench-steps               # the models of bench/rows.py: writes docs/steps.json and its table
    python bench/steps.py MODEL.gguf [--streams 1] [--steps 64] [--threads 0] [--repetitions 5] [--cpu]

Kernel time is spent inside the extension's functions; everything else is Python and numpy. The time of
each part excludes the parts it calls. Because the timers themselves take time, the total comes from separate
runs without them, which alternate with the timed ones. With --cpu, for a busy machine, processor time of the
stepping thread is measured; use --threads 1.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import roofline
from models import random_model
from pages import DOCS
from report import processor
from rows import ARCHITECTURES, CASES, Case
from steps_report import REPORT, Row, Run, line

from puna import _native
from puna.engine import executor as executor_module
from puna.engine.answers import Answers
from puna.engine.engine import Engine
from puna.engine.executor import Replay
from puna.engine.room import EngineSizes
from puna.engine.scheduler import Scheduler
from puna.engine.text import TextStream
from puna.kvcache.causal import CausalCache
from puna.model.load import load_model
from puna.ops import Backend, default_backend
from puna.ops.cpu import recorder
from puna.ops.recording import Program
from puna.options import Options
from puna.protocol import Done, Event, Generate
from puna.sample import Sampler

PROMPT = 16
#: Operations that kernels perform.
OPERATIONS = sorted(
    (Backend.__abstractmethods__ | {"choose", "top_k"})
    - {
        "array",
        "numpy",
        "index_buffer",
        "number_buffer",
        "concatenate",
        "pad",
        "pack",
        "packed_bytes",
        "storage",
    }
)


class Stopwatch:
    """The exclusive time of each part: its clock pauses while another part that it called is running."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.seconds: dict[str, float] = defaultdict(float)
        self._running: list[str] = []
        self._since = 0.0

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._switch()
            self._running.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self._switch()
                self._running.pop()

        return call

    def timed_program(self, program: Program) -> None:
        """Run a replayed pass, dividing its time as reported by its kernels."""
        begin = self._clock()
        by_kernel = program.run_timed()
        passed, total = self._clock() - begin, sum(by_kernel.values())
        for kernel, seconds in by_kernel.items():
            self.seconds[f"kernel {kernel}"] += passed * seconds / total
        self._since += passed  # not counted for the caller

    def _switch(self) -> None:
        now = self._clock()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now


@contextmanager
def watching(engine: Engine, watch: Stopwatch) -> Iterator[None]:
    """Time the parts of the engine and every kernel with `watch` in the block."""
    before: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, value: Any) -> None:
        before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def part(label: str, owner: Any, *names: str) -> None:
        for name in names:
            replace(owner, name, watch.timed(label, getattr(owner, name)))

    for name in OPERATIONS:
        part(f"kernel {name}", engine.loaded.ops, name)
    replace(recorder.CPUProgram, "run", lambda program: watch.timed_program(program))
    part("replay", Replay, "forward")
    part("scheduling", Scheduler, "schedule", "evaluated", "append", "leave")
    part("assemble", executor_module, "assemble")
    part("cache", CausalCache, "start_forward")
    part("sampling", Sampler, "sample", "accept")
    part("answers", Answers, "decode")
    part("text", TextStream, "feed")
    part("text", engine.loaded.tokenizer, "piece")
    part("model, ops", engine.loaded.model, "forward")
    part("engine", engine, "step")
    try:
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)


def decode(engine: Engine, streams: int, steps: int, dice: random.Random) -> Iterator[None]:
    """Evaluate all prompts and yield, then decode `steps` tokens per stream and yield again."""
    ended = []

    def sink(event: Event) -> None:
        if isinstance(event, Done):
            ended.append(event)

    options = Options(temperature=0.0, num_predict=steps + 1)
    for number in range(streams):
        prompt = [dice.randrange(engine.loaded.tokenizer.vocab_size) for _ in range(PROMPT)]
        engine.submit(Generate(id=number, prompt=prompt, options=options, ignore_eos=True), sink)
    engine.step()
    while any(not sequence.generated for sequence in engine.scheduler):
        engine.step()
    yield
    while len(ended) < streams:
        engine.step()
    yield


def measure(
    engine: Engine, streams: int, steps: int, repetitions: int, clock: Callable[[], float]
) -> tuple[float, dict[str, float]]:
    """Return the seconds of a step and of each part: minima, since interruptions only add time."""
    dice = random.Random(7)
    totals: list[float] = []
    parts: dict[str, list[float]] = defaultdict(list)
    for _ in range(repetitions + 1):
        run = decode(engine, streams, steps, dice)
        next(run)
        begin = clock()
        next(run)
        totals.append((clock() - begin) / steps)
        run, watch = decode(engine, streams, steps, dice), Stopwatch(clock)
        next(run)
        with watching(engine, watch):
            next(run)
        for name, seconds in watch.seconds.items():
            parts[name].append(seconds / steps)
    return min(totals[1:]), {name: min(values[1:]) for name, values in parts.items()}


def bounded(case: Case, streams: int, machine: roofline.Machine, steps: int, repetitions: int) -> Row:
    """Return the run with the median share of its bound; bandwidth is measured before and after each."""
    path, dice, runs = random_model(case.shape, case.mix), random.Random(7), list[Row]()
    need, depth = roofline.need(path), PROMPT + steps / 2
    size = need.decode_bytes(streams, depth)
    known = streams > 1 and _native.cpu_level() == "avx512"  # as in `peers`
    multiplying_s = need.multiplying_s(streams, streams * depth, streams, machine) if known else 0.0
    sizes = EngineSizes(context=PROMPT + steps + 2, parallel=streams)
    with closing(Engine(load_model(path), sizes)) as engine:
        for _ in range(repetitions + 1):
            run, watch = decode(engine, streams, steps, dice), Stopwatch(time.perf_counter)
            next(run)
            read, began = roofline.read_bandwidth(machine.threads), time.perf_counter()
            with watching(engine, watch):
                next(run)
            total = (time.perf_counter() - began) / steps
            read = (read + roofline.read_bandwidth(machine.threads)) / 2
            kernels = {
                name.removeprefix("kernel "): seconds / steps
                for name, seconds in watch.seconds.items()
                if name.startswith("kernel")
            }
            runs.append(Row(case.name, total, size, read, kernels, streams, multiplying_s))
    return sorted(runs[1:], key=lambda row: row.least_s / row.step_s)[repetitions // 2]


def show(model: Path, total: float, parts: dict[str, float], streams: int) -> None:
    """Print the time of each part."""
    kernels = sum(seconds for name, seconds in parts.items() if name.startswith("kernel"))
    print(f"{model.name}, {streams} streams, {default_backend().threads()} threads")
    print(f"{'step':24}{total * 1e6:10.1f} us  {streams / total:8.1f} tokens/s")
    print(f"{'outside kernels':24}{(total - kernels) * 1e6:10.1f} us  {100 * (1 - kernels / total):6.1f} %")
    for name, seconds in sorted(parts.items(), key=lambda item: -item[1]):
        print(f"{name:24}{seconds * 1e6:10.1f} us  {100 * seconds / total:6.1f} %")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--output", type=Path, help=f"folder for the results (make: {DOCS.name})")
    chosen = parser.parse_args()
    default_backend().set_threads(chosen.threads)
    if chosen.model is not None:
        clock = time.thread_time if chosen.cpu else time.perf_counter
        sizes = EngineSizes(context=PROMPT + chosen.steps + 2, parallel=chosen.streams)
        with closing(Engine(load_model(chosen.model), sizes)) as engine:
            found = measure(engine, chosen.streams, chosen.steps, chosen.repetitions, clock)
        show(chosen.model, *found, chosen.streams)
        return
    rows, machine = list[Row](), roofline.measure(default_backend().threads())
    for case in (*CASES, *ARCHITECTURES):
        for test in case.tests:
            if test.kind == "decode" and not test.depth:
                rows.append(bounded(case, test.streams, machine, chosen.steps, chosen.repetitions))
                print(line(rows[-1]), flush=True)
    rows.sort(key=lambda row: row.streams)
    if chosen.output:
        REPORT.write(Run(processor(), machine.threads, rows), chosen.output)


if __name__ == "__main__":
    main()
