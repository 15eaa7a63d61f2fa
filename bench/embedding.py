"""Measure the speed of embedding texts: Puna, llama.cpp and sentence-transformers with the same model.

    make bench-embedding            # installs the others once; writes docs/embedding.json and the table
    python bench/embedding.py --quick

The model is all-MiniLM-L6-v2, with its real weights. Texts go in and vectors come out, so tokenising counts.
All use the same number of threads, alternating in one process; llama.cpp and sentence-transformers run at
their best settings, all of which are tried. sentence-transformers always computes in float32.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import choosing
import llama_cpp
import numpy as np
import torch
from embedding_report import REPORT, Result, Run, line
from llama_cpp_peer import SETTINGS, Setting, log_nothing
from minilm import PACKAGE, minilm_gguf, model_folder
from models import MODELS
from report import load_warning, processor
from sentence_transformers import SentenceTransformer

import puna
from puna.gguf import GGMLType

KINDS = (GGMLType.F16, GGMLType.Q8_0)
TEXTS, WORDS = 256, (4, 24)
#: Tokens that llama.cpp evaluates at a time, and texts that sentence-transformers evaluates at a time.
BATCHES, TOGETHER = (512, 2048), (16, 32, 64, 128)


def texts(model: Path) -> list[str]:
    """Return short texts of words in the model's vocabulary, always the same."""
    words = [word for word in (model / "vocab.txt").read_text().split() if word.isalpha() and word.isascii()]
    dice = random.Random(1)
    return [" ".join(dice.choices(words, k=dice.randint(*WORDS))) for _ in range(TEXTS)]


class Puna:
    def __init__(self, path: Path, threads: int) -> None:
        self._model = puna.load(path, num_thread=threads)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return self._model.embed(list(texts))

    def close(self) -> None:
        self._model.close()


class LlamaCpp:
    """llama.cpp, with as many whole texts in a batch as fit, each a separate sequence."""

    def __init__(self, path: Path, threads: int, setting: Setting, batch: int) -> None:
        log_nothing(llama_cpp.llama_log_set)
        weights = llama_cpp.llama_model_default_params()
        weights.use_extra_bufts = setting.repack
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), weights)
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = settings.n_batch = settings.n_ubatch = self._size = batch
        settings.n_seq_max = self._most = 64
        settings.n_threads = settings.n_threads_batch = threads
        settings.flash_attn_type = int(setting.flash)
        settings.embeddings = True
        self._context = llama_cpp.llama_init_from_model(self._model, settings)
        if not self._context:
            raise RuntimeError(f"llama.cpp cannot make a context for {path}")
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._width = llama_cpp.llama_model_n_embd(self._model)
        self._batch = llama_cpp.llama_batch_init(batch, 0, 1)

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        found: list[np.ndarray] = []
        waiting: list[list[int]] = []
        for text in texts:
            tokens = self._tokens(text)
            if len(waiting) == self._most or sum(map(len, waiting)) + len(tokens) > self._size:
                found += self._evaluate(waiting)
                waiting = []
            waiting.append(tokens)
        vectors = np.array(found + self._evaluate(waiting))
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def _tokens(self, text: str) -> list[int]:
        raw = text.encode()
        ids = (ctypes.c_int32 * (len(raw) + 2))()
        return ids[: llama_cpp.llama_tokenize(self._vocab, raw, len(raw), ids, len(ids), True, True)]

    def _evaluate(self, texts: list[list[int]]) -> list[np.ndarray]:
        batch, row = self._batch, 0
        for sequence, tokens in enumerate(texts):
            for position, token in enumerate(tokens):
                batch.token[row], batch.pos[row], batch.n_seq_id[row] = token, position, 1
                batch.seq_id[row][0], batch.logits[row] = sequence, True
                row += 1
        batch.n_tokens = row
        if (status := llama_cpp.llama_encode(self._context, batch)) != 0:
            raise RuntimeError(f"llama_encode failed with {status}")
        pointers = (llama_cpp.llama_get_embeddings_seq(self._context, i) for i in range(len(texts)))
        return [np.ctypeslib.as_array(pointer, (self._width,)).copy() for pointer in pointers]


class Transformers:
    def __init__(self, model: Path, together: int) -> None:
        self._model = SentenceTransformer(str(model), device="cpu")
        self._together = together

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        found: np.ndarray = self._model.encode(
            list(texts), batch_size=self._together, normalize_embeddings=True, show_progress_bar=False
        )
        return found


Engine = Puna | LlamaCpp | Transformers


def rate(engine: Engine, given: Sequence[str]) -> float:
    """Return texts per second."""
    begin = time.perf_counter()
    engine.embed(given)
    return len(given) / (time.perf_counter() - begin)


def compare(model: Path, kind: GGMLType, given: Sequence[str], threads: int, repetitions: int) -> Result:
    path = minilm_gguf(model, MODELS, kind)
    ours = Puna(path, threads)
    theirs: dict[str, Engine] = {
        f"llama.cpp, {setting}, {batch} tokens": LlamaCpp(path, threads, setting, batch)
        for setting in SETTINGS
        for batch in BATCHES
    }
    theirs |= {
        f"sentence-transformers, {together} texts": Transformers(model, together) for together in TOGETHER
    }
    expected = next(engine for engine in theirs.values() if isinstance(engine, Transformers)).embed(given)
    cosines = {}
    for name, engine in {"Puna": ours, **theirs}.items():  # also warms them up
        cosines[name] = float((engine.embed(given) * expected).sum(axis=1).min())
    best = {}
    for peer in ("llama.cpp", "sentence-transformers"):
        tried = choosing.tried(
            lambda name: rate(theirs[name], given), [n for n in theirs if n.startswith(peer)]
        )
        best[peer] = choosing.best(tried)
    engines: dict[str, Engine] = {"Puna": ours} | {name: theirs[name] for name in best.values()}
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for repetition in range(repetitions):
        for name in list(engines)[:: 1 if repetition % 2 == 0 else -1]:
            rates[name].append(rate(engines[name], given))
    for engine in (ours, *theirs.values()):
        if not isinstance(engine, Transformers):
            engine.close()
    llama, transformers = best.values()
    return Result(
        kind.name.lower(), rates["Puna"], rates[llama], rates[transformers],
        llama.partition(", ")[2], transformers.partition(", ")[2], cosines["Puna"], cosines[llama],
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one repetition; writes nothing")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repetitions", type=int, default=9)
    arguments = parser.parse_args()
    if (model := model_folder()) is None:
        parser.error(f"the package {PACKAGE.replace('_', '-')} is not installed: run make bench-embedding")
    if warning := load_warning():
        print(warning, file=sys.stderr)
    torch.set_num_threads(arguments.threads)
    given = texts(model)
    versions = (
        f"Puna {puna.__version__}, llama-cpp-python {llama_cpp.__version__}, "
        f"sentence-transformers {version('sentence-transformers')} (torch {torch.__version__})"
    )
    run = Run(versions, arguments.threads, processor(), len(given), WORDS)
    for kind in KINDS:
        result = compare(
            model, kind, given, arguments.threads, 1 if arguments.quick else arguments.repetitions
        )
        run.results.append(result)
        print(line(result), flush=True)
    if not arguments.quick:
        REPORT.write(run)


if __name__ == "__main__":
    main()
