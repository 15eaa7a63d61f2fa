"""Compare Puna with llama.cpp: same file, same number of threads, alternating in one process.

    make bench-peers                                    # installs llama-cpp-python once, runs everything
    make bench-architectures                            # a model of each kind of architecture instead
    python bench/peers.py --rows "1b q4_k_m, f16"       # some rows of either; only prints
    python bench/peers.py --quick                       # one repetition, without the longest prompt
    python bench/peers.py --model MODEL.gguf ...        # any model

A complete run writes docs/performance.json and docs/performance.svg, and the tables in docs/performance.md
and the README; one of the architectures writes docs/architectures.json and its table. Where there is AVX2 but
no AVX-512, there are fewer rows, written to docs/performance-avx2.json and its table. The last three are
published together: run it on different hours, and the first time after a change with --first. The result is
the ratio of medians: if the machine is busy, it is equally busy for both, and the order alternates. In each
row, llama.cpp runs at its best settings: weights repacked or as in the file, flash attention or not. All are
tried briefly, and the best one or two take turns with Puna. Some rows are also compared with OpenVINO GenAI,
if it is installed. The models are created in build/bench-models on first use.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))

import architectures_report
import avx2_report
import choosing
import llama_cpp
import report
import roofline
from llama_cpp_peer import SETTINGS, LlamaCpp
from models import random_model
from report import Result, Run, line, load_warning
from rows import ARCHITECTURES, AVX2_CASES, CASES, Case, Test, chosen, decode, prompt
from shapes import SHAPES

import puna
from puna.engine.bench import Bench
from puna.errors import PunaError
from puna.ops import default_backend

if TYPE_CHECKING:
    from openvino_peer import OpenVINO
    from pages import Report
    from report import Comparison

    Engine = Bench | LlamaCpp | OpenVINO
    Published = Report[Comparison]

PUNA, OPENVINO = "Puna", "OpenVINO GenAI"


def rate(engine: Engine, test: Test) -> float:
    """Return the tokens per second of one run of `test`."""
    if test.kind == "prompt":
        return engine.read(test.streams, test.tokens)
    if test.depth:
        return engine.decode_filled(test.tokens)
    return engine.decode(test.streams, test.tokens)


def warm_up(engine: Engine, test: Test) -> None:
    """Run a short test of the same kind, which allocates memory and starts threads."""
    if test.depth:
        engine.fill(test.depth)
    rate(engine, replace(test, tokens=min(test.tokens, 256 if test.kind == "prompt" else 4)))


def alternate(
    engines: Mapping[str, Engine], test: Test, times: int, threads: int
) -> tuple[dict[str, list[float]], list[float]]:
    """Return the rates of all engines in alternating order, and the read bandwidth, at each repetition.

    The bandwidth, which varies with other load on the machine, is measured for decoding only.
    """
    rates: dict[str, list[float]] = {name: [] for name in engines}
    bandwidths: list[float] = []
    for repetition in range(times):
        if test.kind == "decode":
            bandwidths.append(roofline.read_bandwidth(threads))
        for name in list(engines)[:: 1 if repetition % 2 == 0 else -1]:
            rates[name].append(rate(engines[name], test))
    return rates, bandwidths


def compare(
    name: str,
    path: Path,
    tests: Sequence[Test],
    machine: roofline.Machine,
    repetitions: int,
    openvino: bool = False,
) -> Iterator[Result]:
    """Yield the results of the tests of one model."""
    threads = machine.threads
    context, parallel = max(test.context for test in tests), max(test.streams for test in tests)
    deep = any(test.depth for test in tests)
    costs = roofline.need(path)
    with ExitStack() as stack:
        ours = stack.enter_context(closing(Bench(path, context=context, parallel=parallel, threads=threads)))
        theirs = {
            str(setting): stack.enter_context(closing(LlamaCpp(
                path, context=context, parallel=parallel + deep, threads=threads, setting=setting,
                shared_cells=deep,  # filling its cache needs a second sequence
            )))
            for setting in SETTINGS
        }  # fmt: skip
        always: dict[str, Engine] = {PUNA: ours}
        if openvino:
            from openvino_peer import OpenVINO

            always[OPENVINO] = stack.enter_context(
                closing(OpenVINO(path, parallel=parallel, threads=threads))
            )
        for test in tests:
            for engine in (*always.values(), *theirs.values()):
                warm_up(engine, test)
            brief = test.brief
            tried = choosing.tried(lambda setting, brief=brief: rate(theirs[setting], brief), theirs)
            engines = always | {setting: theirs[setting] for setting in choosing.contenders(tried)}
            rates, bandwidths = alternate(engines, test, test.runs(repetitions), threads)
            our_rates, openvino_rates = rates.pop(PUNA), rates.pop(OPENVINO, [])
            best = choosing.best(rates)
            comparable = tried | rates if brief == test else rates
            others = {setting: some for setting, some in comparable.items() if setting != best}
            vnni, depth = kernels() == "avx512", test.depth + test.tokens / 2
            yield Result(
                name, test.label, test.kind, our_rates, rates[best], test.bar, bandwidths,
                tokens=test.tokens, streams=test.streams, step_bytes=costs.decode_bytes(test.streams, depth),
                prompt_products=costs.prompt_products(test.tokens), floats=costs.floats,
                setting=best, others=others, openvino=openvino_rates, share_bar=test.share,
                prompt_bound=costs.prompt_bound(test.tokens, machine)
                if test.kind == "prompt" and vnni else None,
                multiplying_s=costs.multiplying_s(test.streams, test.streams * depth, test.streams, machine)
                if test.streams > 1 and vnni else 0.0,
            )  # fmt: skip


def versions() -> str:
    """Return the compared versions."""
    found = [f"Puna {puna.__version__}", f"llama-cpp-python {llama_cpp.__version__}"]
    return ", ".join([*found, f"{OPENVINO} {version('openvino-genai')}"] if openvino_installed() else found)


def openvino_installed() -> bool:
    return find_spec("openvino_genai") is not None


def kernels() -> str:
    """Return the name of the kernels that Puna uses."""
    if (name := default_backend().name) != "cpu":
        return name
    from puna import _native

    return _native.cpu_level()


def complete_run(level: str, architectures: bool) -> tuple[tuple[Case, ...], Published, str]:
    """Return the cases of a complete run with some kernels, its report, and the kernels that this shows."""
    if architectures:
        return ARCHITECTURES, architectures_report.REPORT, "avx512"
    return (AVX2_CASES, avx2_report.REPORT, level) if level == "avx2" else (CASES, report.REPORT, "avx512")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", help="only rows that contain all words of one of these comma-separated parts"
    )
    parser.add_argument("--architectures", action="store_true", help="a model of each kind of architecture")
    parser.add_argument("--quick", action="store_true", help="one repetition, without the longest prompt")
    parser.add_argument("--model", type=Path, action="append", help="GGUF files instead of the usual rows")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--first", action="store_true", help="publish this run without those before it")
    parser.add_argument("--output", type=Path, help="folder for the results (default: docs, if complete)")
    arguments = parser.parse_args()
    repetitions = 1 if arguments.quick else arguments.repetitions
    complete = not (arguments.rows or arguments.quick or arguments.model)
    level = kernels()
    cases, written, shown = complete_run(level, arguments.architectures)
    if complete and level != shown and not arguments.output:
        parser.error(f"the tables are those of {shown} kernels, not of {level}: give --output")
    if arguments.rows:
        cases = chosen(CASES + ARCHITECTURES, arguments.rows)
    elif arguments.quick:
        cases = tuple(case for case in cases if all(test == test.brief for test in case.tests))
    if not cases:
        parser.error(f"no row matches {arguments.rows!r}")
    if arguments.model:
        usual = (prompt(512), decode(32), decode(16, streams=8))
        cases = tuple(Case(str(path), "", usual) for path in arguments.model)
    if warning := load_warning():
        print(warning, file=sys.stderr)
    began = time.time()
    run = Run(level, versions(), roofline.measure(arguments.threads))
    print(f"{run.versions}; {run.kernels}\n{run.machine.sentence()}", flush=True)
    if not openvino_installed():
        print(f"{OPENVINO} is skipped: not installed", flush=True)
    for case in cases:
        if not case.mix:
            name, path = Path(case.shape).name, Path(case.shape)
        elif case.shape in SHAPES:
            name, path = case.name, random_model(case.shape, case.mix)
        else:
            print(f"{case.name:>14}  skipped: no such shape in models.py", flush=True)
            continue
        try:
            openvino = case.openvino and openvino_installed()
            for result in compare(name, path, case.tests, run.machine, repetitions, openvino):
                run.results.append(result)
                print(line(result, run.machine), flush=True)
        except PunaError as error:
            print(f"{name:>14}  skipped: {error}", flush=True)
    print(f"took {(time.time() - began) / 60:.0f} minutes")
    if complete or arguments.output:
        alone = arguments.first or arguments.output is not None
        written.write(report.published(written, run, first=alone), arguments.output)


if __name__ == "__main__":
    main()
