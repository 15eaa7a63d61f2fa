"""Measuring an engine in this process: prompt and decode speed, without server or text."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from puna import ops
from puna.engine.engine import Engine
from puna.engine.events import Done, Event, Failed, Generate
from puna.errors import GenerationError, RequestError
from puna.kvcache.types import KVTypes
from puna.model.load import load_model
from puna.options import Options

_SEED = 7
#: Tokens in the context before decoding is timed.
_DECODE_PROMPT = 16


class Bench:
    """A model loaded for measuring, for up to `parallel` sequences of `context` tokens."""

    def __init__(self, path: str | Path, *, context: int, parallel: int, threads: int = 0) -> None:
        ops.set_threads(threads)
        types = KVTypes.from_env()
        loaded = load_model(path, cache_tokens=parallel * context, cache_types=types)
        if loaded.trained_context and context > loaded.trained_context:
            raise RequestError(
                f"{context} tokens of context are needed, and the model was trained for "
                f"{loaded.trained_context}; use fewer prompt or generated tokens"
            )
        self._engine = Engine(loaded, context=context, parallel=parallel, cache_types=types)
        self._vocab = loaded.tokenizer.vocab_size
        self._dice = random.Random(_SEED)

    def read(self, streams: int, length: int) -> float:
        """Prompt tokens per second: from the first step until every stream has its first token."""
        ended = self._submit(streams, length, 1)
        begin = time.perf_counter()
        while len(ended) < streams:
            self._engine.step()
        return streams * length / (time.perf_counter() - begin)

    def decode(self, streams: int, length: int) -> float:
        """Generated tokens per second over all streams, their prompts already read."""
        ended = self._submit(streams, _DECODE_PROMPT, length + 1)
        self._engine.step()  # reads all prompts and gives every stream its first token
        begin = time.perf_counter()
        while len(ended) < streams:
            self._engine.step()
        return streams * length / (time.perf_counter() - begin)

    def close(self) -> None:
        self._engine.close()

    def _submit(self, streams: int, length: int, predict: int) -> list[Done]:
        """Requests with prompts nobody has in the cache, decoding greedily past end tokens."""
        ended: list[Done] = []

        def sink(event: Event) -> None:
            if isinstance(event, Failed):
                raise GenerationError(event.message)
            if isinstance(event, Done):
                ended.append(event)

        options = Options(temperature=0.0, num_predict=predict)
        for number in range(streams):
            tokens = [self._dice.randrange(self._vocab) for _ in range(length)]
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
    """Results as they come: {"test", "parallel", "tokens_per_second": one figure per repetition}.

    For each number in `parallel`, that many sequences at once: `pp<prompt>` reads random prompts of
    `prompt` tokens, `tg<generate>` decodes `generate` tokens greedily after a short prompt. The
    figures are totals over all sequences. One uncounted repetition warms up. 0 tokens leave a test
    out; 0 threads mean as many as the machine has cores. Raises `RequestError` for absurd numbers.
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
