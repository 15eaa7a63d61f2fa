"""The tests of `puna.engine.bench` for llama.cpp, with llama-cpp-python's low-level calls."""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

_DECODE_PROMPT = 16
#: GGML's type of float32 numbers.
FLOATS = llama_cpp.GGML_TYPE_F32
_CHUNK = 512  # tokens evaluated to fill the cache; the rest are copies
#: Global, because llama.cpp calls it for the lifetime of the process.
_silent = llama_cpp.llama_log_callback(lambda level, text, data: None)


def log_nothing(log_set: Callable[[Any, ctypes.c_void_p], Any]) -> None:
    """Silence one of the library's logs, given the function that redirects it."""
    log_set(_silent, ctypes.c_void_p(0))


@dataclass(frozen=True)
class Setting:
    """Settings that make llama.cpp faster for some models and tests and slower for others."""

    repack: bool = True  # convert weights to the layout of other kernels
    flash: bool = True  # flash attention: one pass over keys and values

    def __str__(self) -> str:
        return f"{'repacked' if self.repack else 'as in the file'}, {'flash' if self.flash else 'no flash'}"


SETTINGS = tuple(Setting(repack, flash) for repack in (True, False) for flash in (True, False))


class LlamaCpp:
    """One model and a context for up to `parallel` sequences of `context` tokens."""

    def __init__(
        self,
        path: Path,
        *,
        context: int,
        parallel: int = 1,
        threads: int = 2,
        batch: int = 512,
        setting: Setting = SETTINGS[0],
        exact: bool = False,  # keys and values in float32
        shared_cells: bool = False,  # one pool of cells for all sequences, as `fill` needs
    ) -> None:
        log_nothing(llama_cpp.llama_log_set)
        llama_cpp.llama_backend_init()
        weights = llama_cpp.llama_model_default_params()
        weights.use_extra_bufts = setting.repack
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), weights)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = context * parallel
        settings.n_batch = max(batch, parallel * _DECODE_PROMPT)
        settings.n_ubatch = batch
        settings.n_seq_max = parallel
        settings.n_threads = settings.n_threads_batch = threads
        settings.flash_attn_type = int(setting.flash)
        settings.kv_unified = shared_cells
        if exact:
            settings.type_k = settings.type_v = llama_cpp.GGML_TYPE_F32
        self._context = llama_cpp.llama_init_from_model(self._model, settings)
        if not self._context:
            raise RuntimeError(f"llama.cpp cannot make a context for {path}")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch_size = batch
        self._filled = 0
        self._dice = random.Random(7)

    def close(self) -> None:
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    def read(self, streams: int, length: int) -> float:
        """Return the prompt tokens per second for `streams` random prompts of `length` tokens."""
        self._clear()
        begin = time.perf_counter()
        for stream in range(streams):
            tokens = self._tokens(length)
            for start in range(0, length, self._batch_size):
                part = tokens[start : start + self._batch_size]
                last = start + len(part) == length
                rows = [
                    (token, start + i, stream, last and i + 1 == len(part)) for i, token in enumerate(part)
                ]
                self._decode(rows)
        llama_cpp.llama_synchronize(self._context)
        return streams * length / (time.perf_counter() - begin)

    def decode(self, streams: int, length: int) -> float:
        """Return the generated tokens per second, `streams` sequences advancing together."""
        self._clear()
        for stream in range(streams):
            tokens = self._tokens(_DECODE_PROMPT)
            self._decode([(token, i, stream, i + 1 == len(tokens)) for i, token in enumerate(tokens)])
        llama_cpp.llama_synchronize(self._context)
        begin = time.perf_counter()
        for position in range(_DECODE_PROMPT, _DECODE_PROMPT + length):
            self._decode([(self._dice.randrange(self._vocab), position, s, True) for s in range(streams)])
            llama_cpp.llama_synchronize(self._context)
        return streams * length / (time.perf_counter() - begin)

    def fill(self, depth: int) -> None:
        """Fill the first sequence with `depth` positions. Needs `parallel=2`, for copying by a second one.

        512 random tokens are evaluated; other positions get shifted copies of their keys and values. The cost
        of decoding depends on the number of positions, not on their contents.
        """
        self._clear()
        self._decode([(token, i, 0, i + 1 == _CHUNK) for i, token in enumerate(self._tokens(_CHUNK))])
        llama_cpp.llama_synchronize(self._context)
        size = llama_cpp.llama_state_seq_get_size(self._context, 0)
        state = (ctypes.c_uint8 * size)()
        llama_cpp.llama_state_seq_get_data(self._context, state, size, 0)
        for start in range(_CHUNK, depth, _CHUNK):
            if not llama_cpp.llama_state_seq_set_data(self._context, state, size, 1):
                raise RuntimeError("llama.cpp cannot copy a part of its cache")
            llama_cpp.llama_memory_seq_add(self._memory, 1, 0, -1, start)
            llama_cpp.llama_memory_seq_cp(self._memory, 1, 0, -1, -1)
            llama_cpp.llama_memory_seq_rm(self._memory, 1, -1, -1)
        llama_cpp.llama_memory_seq_rm(self._memory, 0, depth, -1)
        self._filled = llama_cpp.llama_memory_seq_pos_max(self._memory, 0) + 1
        if self._filled != depth:
            raise RuntimeError(f"llama.cpp's cache holds {self._filled} positions, not {depth}")

    def decode_filled(self, length: int) -> float:
        """Return the generated tokens per second of one sequence, after the positions of `fill`."""
        llama_cpp.llama_memory_seq_rm(self._memory, 0, self._filled, -1)
        self._decode([(self._dice.randrange(self._vocab), self._filled, 0, True)])  # applies pending shifts
        llama_cpp.llama_synchronize(self._context)
        begin = time.perf_counter()
        for position in range(self._filled + 1, self._filled + 1 + length):
            self._decode([(self._dice.randrange(self._vocab), position, 0, True)])
            llama_cpp.llama_synchronize(self._context)
        return length / (time.perf_counter() - begin)

    def logits(self, tokens: list[int], *, at_once: int) -> np.ndarray:
        """Return raw logits [len(tokens), vocab] of every position, evaluated `at_once` tokens at a time."""
        self._clear()
        found: list[np.ndarray] = []
        for start in range(0, len(tokens), at_once):
            part = tokens[start : start + at_once]
            self._decode([(token, start + i, 0, True) for i, token in enumerate(part)])
            for row in range(len(part)):
                pointer = llama_cpp.llama_get_logits_ith(self._context, row)
                found.append(np.ctypeslib.as_array(pointer, (self._vocab,)).copy())
        return np.stack(found)

    def _tokens(self, length: int) -> list[int]:
        return [self._dice.randrange(self._vocab) for _ in range(length)]

    def _clear(self) -> None:
        llama_cpp.llama_memory_clear(self._memory, True)

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> None:
        """Call llama_decode with rows of (token, position, sequence, wants logits)."""
        batch = llama_cpp.llama_batch_init(len(rows), 0, 1)
        try:
            batch.n_tokens = len(rows)
            for i, (token, position, sequence, wanted) in enumerate(rows):
                batch.token[i] = token
                batch.pos[i] = position
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = sequence
                batch.logits[i] = wanted
            if (status := llama_cpp.llama_decode(self._context, batch)) != 0:
                raise RuntimeError(f"llama_decode failed with {status}")
        finally:
            llama_cpp.llama_batch_free(batch)
