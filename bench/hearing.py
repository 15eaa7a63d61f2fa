"""Compare models that hear with other engines: python bench/hearing.py [--quick] [--rows WORDS].

Whisper models run in whisper.cpp and CTranslate2, the engine of faster-whisper; audio towers of models that
chat in llama.cpp's libmtmd. All have real shapes and random weights. Measured are the encoder for 30 s of
sound, and of Whisper also everything from the samples to the last of a fixed number of tokens. An engine's
settings are all tried, and the fastest is measured, taking turns with Puna. whisper.cpp is what its package
contains, which uses no instructions beyond AVX2. A run writes docs/hearing.json and the table of
docs/hearing.md, and takes minutes.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the tests' models

import choosing
import llama_cpp
import numpy as np
from hearing_models import HEARING, WHISPERS, ctranslate2_folder, hearing_files, whisper_cpp, whisper_gguf
from hearing_peers import CTranslate2, PunaTower, PunaWhisper, WhisperCpp
from hearing_report import REPORT, Peer, Result, Run, line
from mtmd_peer import Mtmd
from report import load_warning, processor

import puna
from puna.audio.recording import SAMPLE_RATE
from puna.gguf import GGMLType

SECONDS, TOKENS = 30, 100
KINDS = (GGMLType.F16, GGMLType.Q8_0)
REPETITIONS = {"whisper-tiny": 5}
OTHERWISE = 3
#: CTranslate2's types of weights beside each of ours.
COMPUTE_TYPES = {GGMLType.F16: ("float32",), GGMLType.Q8_0: ("int8", "int8_float32")}
PACKAGES = {"whisper.cpp": "pywhispercpp", "CTranslate2": "ctranslate2"}

Makers = Mapping[str, Mapping[str, Callable[[], Any]]]  # of the peers, by name and setting


def sound() -> np.ndarray:
    """Return tones in noise, float32 [samples]."""
    dice = np.random.default_rng(1)
    times = np.arange(SECONDS * SAMPLE_RATE) / SAMPLE_RATE
    tones = sum(np.sin(2 * np.pi * hertz * times) for hertz in dice.uniform(100, 3000, 5))
    return (0.05 * tones + 0.02 * dice.standard_normal(len(times))).astype(np.float32)


def whispers(name: str, kind: GGMLType, threads: int) -> tuple[PunaWhisper, Makers]:
    config = WHISPERS[name]
    makers: dict[str, dict[str, Callable[[], Any]]] = {}
    if find_spec("_pywhispercpp"):
        makers["whisper.cpp"] = {
            "flash" if flash else "no flash": (
                lambda flash=flash: WhisperCpp(whisper_cpp(name, kind), config, threads, flash)
            )
            for flash in (True, False)
        }
    if find_spec("ctranslate2"):
        makers["CTranslate2"] = {
            each: (lambda each=each: CTranslate2(ctranslate2_folder(name), config, threads, each))
            for each in COMPUTE_TYPES[kind]
        }
    return PunaWhisper(whisper_gguf(name, kind), config, threads), makers


def towers(name: str, kind: GGMLType, threads: int) -> tuple[PunaTower, Makers]:
    text, tower = hearing_files(name, kind)
    makers = {
        "flash" if flash else "no flash": (
            lambda flash=flash: Mtmd(text, tower, context=2048, threads=threads, flash=flash)
        )
        for flash in (True, False)
    }
    return PunaTower(text, tower, threads), {"llama.cpp": makers}


def compare(name: str, kind: GGMLType, threads: int, repetitions: int) -> Result:
    ours, makers = (whispers if name in WHISPERS else towers)(name, kind, threads)
    samples, whole = sound(), name in WHISPERS
    engines: dict[str, Any] = {"Puna": ours}
    settings = {}
    for peer, choices in makers.items():
        made = {setting: make() for setting, make in choices.items()}
        for engine in made.values():
            engine.encode(samples)  # warms it up
        rates = choosing.tried(lambda setting, made=made: 1 / made[setting].encode(samples), made)
        settings[peer] = choosing.best(rates)
        engines[peer] = made[settings[peer]]
        for setting, engine in made.items():
            if setting != settings[peer]:
                engine.close()
    ours.encode(samples)
    encoder: dict[str, list[float]] = {each: [] for each in engines}
    all_of_it: dict[str, list[float]] = {each: [] for each in engines}
    for repetition in range(repetitions):
        for each in list(engines)[:: 1 if repetition % 2 == 0 else -1]:
            encoder[each].append(engines[each].encode(samples))
            if whole:
                all_of_it[each].append(engines[each].transcribe(samples, TOKENS))
    if isinstance(ours, PunaTower):
        rows = ours.rows, engines["llama.cpp"].tokens
        if abs(rows[0] - rows[1]) > 0.04 * rows[0]:  # llama.cpp hears some of the silence after the end
            raise RuntimeError(f"Puna and llama.cpp made {rows[0]} and {rows[1]} rows")
    for engine in engines.values():
        engine.close()
    peers = [Peer(each, settings[each], encoder[each], all_of_it[each]) for each in settings]
    return Result(name, kind.name.lower(), encoder["Puna"], all_of_it["Puna"], peers)


def versions() -> str:
    found = [f"Puna {puna.__version__}", f"llama-cpp-python {llama_cpp.__version__}"]
    for package in PACKAGES.values():
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            print(f"{package} is not installed and is left out", file=sys.stderr)
    return ", ".join(found)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one repetition; writes nothing")
    parser.add_argument(
        "--rows", default="", help="only rows whose model and type contain this; writes nothing"
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    given = parser.parse_args(arguments)
    if warning := load_warning():
        print(warning, file=sys.stderr)
    run = Run(versions(), given.threads, processor(), SECONDS, TOKENS)
    for name in (*WHISPERS, *HEARING):
        for kind in KINDS:
            if given.rows not in f"{name} {kind.name.lower()}":
                continue
            count = 1 if given.quick else REPETITIONS.get(name, OTHERWISE)
            run.results.append(compare(name, kind, given.threads, count))
            print(line(run, run.results[-1]), flush=True)
    if not given.quick and not given.rows:
        REPORT.write(run)
    sys.stdout.flush()
    os._exit(0)  # the peers' libraries crash when a process that loaded all of them ends


if __name__ == "__main__":
    main()
