"""Compare vision models with llama.cpp's libmtmd: python bench/vision.py [--quick] [--rows WORDS].

Towers have real shapes and random weights, each with a text model of about a billion weights. Both engines
take turns with a picture and 512 tokens of text; measured are the tower alone, and the time to the first
token. llama.cpp runs with flash attention or without, whichever is faster with CLIP-L. A run writes
docs/vision.json and the table of docs/vision.md; one with --rows leaves other rows unchanged.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import llama_cpp
import numpy as np
import PIL.Image
from models import random_blocks, random_model, random_tower
from mtmd_peer import Mtmd
from numpy.typing import NDArray
from report import load_warning, processor
from vision_report import REPORT, Result, Run, line, merged

import puna
from puna.engine.engine import Engine
from puna.engine.requests import FittedPrompt, read_text
from puna.engine.room import EngineSizes
from puna.gguf import GGMLType
from puna.model.load import LoadSettings, load_model
from puna.ops import Weight, default_backend
from puna.options import Options
from puna.protocol import Done, Event, Failed, Generate

TEXT_TOKENS = 512
CONTEXT = 2048
KINDS = (GGMLType.F16, GGMLType.Q8_0)


@dataclass(frozen=True)
class Case:
    tower: str
    text: str
    width: int  # pixels of the picture
    height: int
    text_size: int
    repetitions: int
    tries: bool = False  # try both settings of llama.cpp; with more patches, flash attention is always ahead


CASES = (
    Case("clip-l", "1b", 640, 480, 2048, 5, tries=True),
    Case("qwen3vl-2b", "qwen3vl-1.7b", 1000, 700, 2048, 3),
    Case("siglip-400m", "windowed-1b-with-images", 1024, 768, 1280, 3),
)


class Puna:
    def __init__(self, text: Path, tower: Path, threads: int) -> None:
        ops = default_backend()
        ops.set_threads(threads)
        loaded = load_model(text, LoadSettings(context=CONTEXT), projector=tower, ops=ops)
        self._engine = Engine(loaded, EngineSizes(context=CONTEXT))
        assert loaded.vision is not None
        self._encode, self._seconds = loaded.vision.encode, 0.0
        loaded.vision.encode = self._timed  # type: ignore[method-assign]
        self.tokens = 0

    def close(self) -> None:
        self._engine.close()

    def answer(self, picture: NDArray[np.uint8], text: str) -> tuple[float, float]:
        """Return the seconds of the tower, and of all from the request (image, text) to the first token."""
        written, ended = io.BytesIO(), list[Done]()
        PIL.Image.fromarray(picture).save(written, "BMP")  # exact pixels, as the other engine gets them

        def sink(event: Event) -> None:
            if isinstance(event, Failed):
                raise RuntimeError(event.message)
            if isinstance(event, Done):
                ended.append(event)

        self._seconds = 0.0
        loaded, images = self._engine.loaded, self._engine.images
        assert images is not None
        begin = time.perf_counter()
        found = images.read([written.getvalue()])
        inputs = read_text("[img-0]" + text, found, loaded.tokenizer, loaded.vision)
        prompt = FittedPrompt([item.token for item in inputs], inputs=inputs)
        options = Options(temperature=0.0, num_predict=1)
        request = Generate(options=options, ignore_eos=True, cache_prompt=False)
        self._engine.submit(request, sink, prompt)
        while not ended:
            self._engine.step()
        took = time.perf_counter() - begin
        self.tokens = ended[0].prompt_eval_count
        return self._seconds, took

    def _timed(self, *given: Any) -> Generator[None, None, Any]:
        """Run the slices of the tower, adding up their time."""
        slices = self._encode(*given)
        while True:
            begin = time.perf_counter()
            try:
                next(slices)
            except StopIteration as end:
                return end.value
            finally:
                self._seconds += time.perf_counter() - begin
            yield


def compare(case: Case, kind: GGMLType, threads: int, repetitions: int) -> Result:
    text = random_model(case.text, "q4_k_m")
    tower = random_tower(case.tower, kind, case.text_size)
    dice = np.random.default_rng(3)

    def ask(engine: Puna | Mtmd) -> tuple[float, float]:
        picture = dice.integers(0, 256, (case.height, case.width, 3), dtype=np.uint8)
        words = "".join(map(chr, dice.integers(97, 116, TEXT_TOKENS)))  # never merged: one token per letter
        return engine.answer(picture, words)

    ours = Puna(text, tower, threads)
    settings = ("flash", "no flash") if case.tries else ("flash",)
    theirs = {
        name: Mtmd(text, tower, context=CONTEXT, threads=threads, flash=name == "flash") for name in settings
    }
    tried = {name: ask(engine) for name, engine in theirs.items()} if case.tries else {}
    setting = min(tried, key=lambda name: tried[name][1]) if tried else "flash"
    found: dict[str, list[tuple[float, float]]] = {"puna": [], setting: []}
    for repetition in range(repetitions):
        for name in sorted(found, reverse=repetition % 2 == 1):
            found[name].append(ask(ours if name == "puna" else theirs[name]))
    tokens = ours.tokens, theirs[setting].tokens
    for engine in (ours, *theirs.values()):
        engine.close()
    if abs(tokens[0] - tokens[1]) > 0.03 * tokens[0]:  # tokens around an image, rounding
        raise RuntimeError(f"the prompts have {tokens[0]} and {tokens[1]} tokens")
    (our_tower, our_first), (their_tower, their_first) = (
        tuple(map(list, zip(*found[name], strict=True))) for name in ("puna", setting)
    )
    return Result(
        case.tower, kind.name.lower(), case.text, (case.width, case.height), ours.tokens, setting,
        our_tower, their_tower, our_first, their_first, tried,
    )  # fmt: skip


def one_pass(kind: GGMLType) -> float:
    """Return the speedup per image of a CLIP-L layer's products when four images share a pass."""
    ops, dice = default_backend(), np.random.default_rng(5)
    hidden, inner, patches, together, slice_rows = 1024, 4096, 577, 4, 512
    shapes = ((hidden, hidden),) * 4 + ((inner, hidden), (hidden, inner))
    weights = []
    for out, columns in shapes:
        blocks = random_blocks(dice, kind, out * columns, columns**-0.5)
        weights.append(Weight("", blocks.view(np.uint8).reshape(-1), kind, (out, columns)))
        ops.pack(weights[-1])

    def seconds(rows: int) -> float:
        begin = time.perf_counter()
        for start in range(0, rows, slice_rows):
            for weight in weights:
                x = inputs[weight.shape[1]][start : min(start + slice_rows, rows)]
                ops.linear(x, weight)
        return time.perf_counter() - begin

    inputs = {
        columns: ops.array(dice.standard_normal((together * patches, columns), dtype=np.float32))
        for columns in (hidden, inner)
    }
    times = [(seconds(patches), seconds(together * patches) / together) for _ in range(7)]
    alone, shared = (median(each) for each in zip(*times, strict=True))
    return alone / shared


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one repetition; writes nothing")
    parser.add_argument("--rows", default="", help="only rows whose tower or type contains this")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    if warning := load_warning():
        print(warning, file=sys.stderr)
    versions = f"Puna {puna.__version__}, llama-cpp-python {llama_cpp.__version__}"
    default_backend().set_threads(arguments.threads)
    one_passes = {kind.name.lower(): one_pass(kind) for kind in KINDS}
    print("four images in one pass of products:", one_passes)
    run = Run(versions, arguments.threads, processor(), TEXT_TOKENS, one_passes)
    for case in CASES:
        for kind in KINDS:
            if arguments.rows not in f"{case.tower} {kind.name.lower()}":
                continue
            repetitions = 1 if arguments.quick else case.repetitions
            run.results.append(compare(case, kind, arguments.threads, repetitions))
            print(line(run.results[-1]), flush=True)
    if not arguments.quick:
        REPORT.write(merged(run) if arguments.rows else run)


if __name__ == "__main__":
    main()
