"""Prompt and decode speed of an engine in this process, without server or text."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from puna.batch import Batch
from puna.engine.engine import Engine
from puna.engine.room import EngineSizes
from puna.errors import GenerationError, RequestError
from puna.kvcache.types import KVTypes
from puna.model.base import TextModel
from puna.model.load import LoadSettings, load_model
from puna.ops import default_backend
from puna.options import Options, engine_from_env
from puna.protocol import Done, Event, Failed, Generate

_SEED = 7
#: Tokens in the context before decoding is timed.
_DECODE_PROMPT = 16
#: Tokens the cache is filled with at a time.
_CHUNK = 512


class Bench:
    """A model loaded to measure up to `parallel` sequences of `context` tokens."""

    def __init__(self, path: str | Path, *, context: int, parallel: int, threads: int = 0) -> None:
        default_backend().set_threads(threads)
        types = KVTypes.from_env()
        loaded = load_model(
            path,
            LoadSettings(
                context=context,
                parallel=parallel,
                cache_types=types,
                prediction_heads=False,  # useless on random tokens
                engine=engine_from_env(),
            ),
        )
        if loaded.trained_context and context > loaded.trained_context:
            raise RequestError(
                f"{context} tokens of context are needed, and the model was trained for "
                f"{loaded.trained_context}; use fewer prompt or generated tokens"
            )
        self._engine = Engine(loaded, EngineSizes(context=context, parallel=parallel, cache_types=types))
        self._vocab = loaded.tokenizer.vocab_size
        self._dice = random.Random(_SEED)
        self._filled: list[int] = []
        gc.freeze()  # as in a runner: otherwise steps pay for collections of all that was ever imported

    def read(self, streams: int, length: int) -> float:
        """Return prompt tokens per second, from the first step until every stream has its first token."""
        ended = self._submit([self._tokens(length) for _ in range(streams)], 1)
        begin = time.perf_counter()
        while len(ended) < streams:
            self._engine.step()
        return streams * length / (time.perf_counter() - begin)

    def decode(self, streams: int, length: int) -> float:
        """Return generated tokens per second over all streams, once their prompts are evaluated."""
        ended = self._submit([self._tokens(_DECODE_PROMPT) for _ in range(streams)], length + 1)
        self._engine.step()
        while any(not sequence.generated for sequence in self._engine.scheduler):
            self._engine.step()
        left = sum(length + 1 - sequence.generated for sequence in self._engine.scheduler)
        begin = time.perf_counter()
        while len(ended) < streams:
            self._engine.step()
        return left / (time.perf_counter() - begin)

    def fill(self, depth: int) -> None:
        """Fill the cache with `depth` tokens for `decode_filled`.

        They are not evaluated: their keys and values are random numbers, since the cost of decoding depends
        on their number only.
        """
        engine, tokens = self._engine, self._tokens(depth)
        entry = engine.prefix_cache.acquire()
        if not isinstance(model := engine.loaded.model, TextModel):
            raise RequestError(f"the cache of {model.engine} cannot be filled with random numbers")
        shapes = model.kv_shapes()
        random = np.random.default_rng(_SEED)
        ops = engine.loaded.ops
        for start in range(0, depth, _CHUNK):
            part = range(start, min(start + _CHUNK, depth))
            batch = Batch.of(tokens[part.start : part.stop], list(part), [entry.row] * len(part), [])
            engine.cache.start_forward(batch)
            for index, shape in shapes.items():
                keys = random.standard_normal((len(part), shape.kv_heads, shape.key_dim), np.float32)
                values = random.standard_normal((len(part), shape.kv_heads, shape.value_dim), np.float32)
                own = None if shape.values_in_keys else ops.array(values)
                engine.cache.layer(index).put(ops.array(keys), own)
        entry.evaluated = depth
        engine.prefix_cache.release(entry, list(tokens))
        self._filled = tokens

    def decode_filled(self, length: int) -> float:
        """Return generated tokens per second of one stream that follows the tokens of `fill`."""
        ended = self._submit([self._filled], length + 1)
        self._engine.step()  # evaluates the last of them again and gives the stream its first token
        begin = time.perf_counter()
        while not ended:
            self._engine.step()
        took = time.perf_counter() - begin
        if ended[0].cached < len(self._filled) - 1:
            raise GenerationError("the cache does not hold the tokens it was filled with")
        return length / took

    def close(self) -> None:
        self._engine.close()

    def _tokens(self, length: int) -> list[int]:
        return [self._dice.randrange(self._vocab) for _ in range(length)]

    def _submit(self, prompts: list[list[int]], predict: int) -> list[Done]:
        """Request `predict` tokens after each prompt, decoded greedily past end tokens."""
        ended: list[Done] = []

        def sink(event: Event) -> None:
            if isinstance(event, Failed):
                raise GenerationError(event.message)
            if isinstance(event, Done):
                ended.append(event)

        options = Options(temperature=0.0, num_predict=predict)
        for number, tokens in enumerate(prompts):
            self._engine.submit(Generate(id=number, prompt=tokens, options=options, ignore_eos=True), sink)
        return ended


def run_bench(
    path: str | Path,
    *,
    prompt: int = 512,
    generate: int = 64,
    parallel: Sequence[int] = (1,),
    threads: int = 0,
    repetitions: int = 5,
) -> Iterator[dict[str, object]]:
    """Yield results as they come: {"test", "parallel", "tokens_per_second": one figure per repetition}.

    Each number in `parallel` is a number of concurrent sequences: `pp<prompt>` evaluates random prompts of
    `prompt` tokens, `tg<generate>` decodes `generate` tokens greedily after a short prompt. Figures are
    totals over all sequences. One uncounted repetition warms up. 0 tokens skip a test; 0 threads mean one per
    core. Raises `RequestError` for impossible numbers.
    """
    if prompt < 0 or generate < 0 or repetitions < 1 or not parallel or min(parallel) < 1:
        raise RequestError("bench needs prompt and generate >= 0, repetitions >= 1 and parallel >= 1")
    context = max(prompt, _DECODE_PROMPT + generate) + 1
    bench = Bench(path, context=context, parallel=max(parallel), threads=threads)
    tests = [(f"pp{prompt}", bench.read, prompt), (f"tg{generate}", bench.decode, generate)]
    try:
        for streams in parallel:
            for test, measure, length in tests:
                if length:
                    rates = [measure(streams, length) for _ in range(repetitions + 1)]
                    yield {"test": test, "parallel": streams, "tokens_per_second": rates[1:]}
    finally:
        bench.close()
