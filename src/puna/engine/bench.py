"""Measuring an engine in this process: prompt and decode speed, without server or text."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from puna import ops
from puna.engine.engine import Engine
from puna.engine.events import Done, Event, Failed, Generate
from puna.errors import GenerationError, RequestError
from puna.model.load import load_model
from puna.options import Options

_SEED = 7
#: Tokens in the context before decoding is timed.
_DECODE_PROMPT = 16


def run_bench(
    path: str | Path,
    *,
    prompt: int = 512,
    generate: int = 64,
    parallel: tuple[int, ...] = (1,),
    threads: int = 0,
    repetitions: int = 5,
) -> Iterator[dict[str, object]]:
    """Results as they come: {"test", "parallel", "tokens_per_second": one figure per repetition}.

    For each number in `parallel`, that many sequences at once: `pp<prompt>` reads random prompts of
    `prompt` tokens, `tg<generate>` decodes `generate` tokens greedily after a short prompt. The
    figures are totals over all sequences. One uncounted repetition warms up. 0 tokens leave a test
    out; 0 threads mean as many as the machine has cores.
    """
    if prompt < 0 or generate < 0 or repetitions < 1 or not parallel or min(parallel) < 1:
        raise RequestError("bench needs prompt and generate >= 0, repetitions >= 1 and parallel >= 1")
    if threads:
        ops.set_threads(threads)
    torch.set_num_threads(ops.threads())
    most = max(parallel)
    context = max(prompt, _DECODE_PROMPT + generate) + 1
    loaded = load_model(path, cache_tokens=most * context)
    if loaded.trained_context and context > loaded.trained_context:
        raise RequestError(
            f"{context} tokens of context are needed, and the model was trained for {loaded.trained_context}; "
            "use fewer prompt or generated tokens"
        )
    engine = Engine(loaded, context=context, parallel=most)
    dice = random.Random(_SEED)
    try:
        for streams in parallel:
            if prompt:
                rates = [_read(engine, dice, streams, prompt) for _ in range(repetitions + 1)]
                yield {"test": f"pp{prompt}", "parallel": streams, "tokens_per_second": rates[1:]}
            if generate:
                rates = [_decode(engine, dice, streams, generate) for _ in range(repetitions + 1)]
                yield {"test": f"tg{generate}", "parallel": streams, "tokens_per_second": rates[1:]}
    finally:
        engine.close()


def _read(engine: Engine, dice: random.Random, streams: int, length: int) -> float:
    """Prompt tokens per second: from the first step until every stream has its first token."""
    ended: list[Done] = []
    for number in range(streams):
        engine.submit(_request(engine, dice, number, length, 1), _collect(ended))
    begin = time.perf_counter()
    while len(ended) < streams:
        engine.step()
    return streams * length / (time.perf_counter() - begin)


def _decode(engine: Engine, dice: random.Random, streams: int, length: int) -> float:
    """Generated tokens per second over all streams, their prompts already read."""
    ended: list[Done] = []
    for number in range(streams):
        engine.submit(_request(engine, dice, number, _DECODE_PROMPT, length + 1), _collect(ended))
    engine.step()  # reads all prompts and gives every stream its first token
    begin = time.perf_counter()
    while len(ended) < streams:
        engine.step()
    return streams * length / (time.perf_counter() - begin)


def _request(engine: Engine, dice: random.Random, number: int, length: int, predict: int) -> Generate:
    """A prompt nobody has in the cache, and greedy decoding past end tokens."""
    tokens = [dice.randrange(engine.loaded.tokenizer.vocab_size) for _ in range(length)]
    options = Options(temperature=0.0, num_predict=predict)
    return Generate(id=number, prompt=tokens, options=options, ignore_eos=True)


def _collect(ended: list[Done]):  # type: ignore[no-untyped-def]
    def sink(event: Event) -> None:
        if isinstance(event, Failed):
            raise GenerationError(event.message)
        if isinstance(event, Done):
            ended.append(event)

    return sink
