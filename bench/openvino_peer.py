"""The tests of `puna.engine.bench` for OpenVINO GenAI, which reads GGUF files of Llama's architecture itself.

Its continuous batching, the package's default on processors with AVX2, is used for one stream as well.
Blocks of four and eight bits become OpenVINO's own integer weights of the same size.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import numpy as np
import openvino
import openvino_genai

from puna.gguf import open_gguf

_DECODE_PROMPT = 16
_CACHE_GB = 2
_FIRST_TOKEN_ID = 256  # a random model's vocabulary starts with single bytes


class OpenVINO:
    """A model for up to `parallel` sequences."""

    def __init__(self, path: Path, *, parallel: int, threads: int) -> None:
        settings = openvino_genai.SchedulerConfig()
        settings.cache_size = _CACHE_GB
        settings.max_num_seqs = parallel
        settings.max_num_batched_tokens = 512
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(path), settings, "CPU", {"INFERENCE_NUM_THREADS": threads}
        )
        with open_gguf(path) as file:
            self._vocab = int(file.metadata["llama.vocab_size"])
        self._numbers = iter(range(1 << 31))
        self._dice = random.Random(7)

    def close(self) -> None:
        del self._pipeline

    def read(self, streams: int, length: int) -> float:
        """Return the prompt tokens per second for `streams` random prompts of `length` tokens."""
        self._submit(streams, length, 1)
        begin = time.perf_counter()
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        return streams * length / (time.perf_counter() - begin)

    def decode(self, streams: int, length: int) -> float:
        """Return the generated tokens per second, `streams` sequences advancing together."""
        self._submit(streams, _DECODE_PROMPT, length + 1)
        self._pipeline.step()  # all prompts fit into one step, which also gives the first token of each
        begin = time.perf_counter()
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        return streams * length / (time.perf_counter() - begin)

    def _submit(self, streams: int, length: int, predict: int) -> None:
        options = openvino_genai.GenerationConfig()
        options.max_new_tokens = predict
        options.ignore_eos = True
        options.do_sample = False
        self._handles = []  # dropping a handle would drop its request
        for _ in range(streams):
            tokens = [[self._dice.randrange(_FIRST_TOKEN_ID, self._vocab) for _ in range(length)]]
            prompt = openvino.Tensor(np.array(tokens, np.int64))
            self._handles.append(self._pipeline.add_request(next(self._numbers), prompt, options))
