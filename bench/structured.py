"""Measure the cost of an answer's format: `make bench-structured`.

Decodes with and without a schema, in one stream and in eight, taking turns so that both run under the same
load; and measures the time from a fresh schema of 10 KB to the first token. Weights are random, which makes
no difference to a schema.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator
from typing import Any

from models import random_model

import puna

_ROUNDS = 7
_TOKENS = 64
_STREAMS = 8
#: Options for answers that use all their tokens.
_GREEDY = {"temperature": 0.0, "num_predict": _TOKENS, "ignore_eos": True, "cache_prompt": True}


def schema(number: int) -> dict[str, Any]:
    """Return one of many different schemas, each for a long answer."""
    part = {
        "type": "object",
        "properties": {
            f"name_{number}": {"type": "string", "minLength": 20, "maxLength": 200},
            "place": {"type": "string", "minLength": 20},
            "amount": {"type": "number", "minimum": number},
            "done": {"type": "boolean"},
        },
        "required": [f"name_{number}", "place", "amount", "done"],
        "additionalProperties": False,
    }
    return {"type": "array", "items": part, "minItems": 50}


def large_schemas() -> Iterator[dict[str, Any]]:
    """Yield schemas of about 10 KB, each new."""
    for number in itertools.count():
        properties = {
            f"field_{number}_{i}": {"type": ("string", "integer", "boolean")[i % 3], "description": "x" * 40}
            for i in range(100)
        }
        yield {"type": "object", "properties": properties, "required": list(properties)}


def speed(model: puna.Model, streams: int, formats: list[Any]) -> float:
    """Return the tokens per second of all streams together, without their prompts."""
    prompts = [f"Once upon a time there were {number}" for number in range(streams)]
    open_streams = [
        model.generate(prompt, stream=True, format=format, **_GREEDY)
        for prompt, format in zip(prompts, formats, strict=True)
    ]
    done = [stream.completion() for stream in open_streams]
    return sum(one.generated_tokens - 1 for one in done) / max(one.seconds for one in done)


def compare(model: puna.Model, streams: int) -> None:
    formats = [puna.Format.json_schema(schema(number)) for number in range(streams)]
    ratios, free, formatted = [], [], []
    for _ in range(_ROUNDS):
        free.append(speed(model, streams, [None] * streams))
        formatted.append(speed(model, streams, formats))
        ratios.append(formatted[-1] / free[-1])
    print(
        f"{streams} streams: {statistics.median(free):8.1f} tokens/s free, "
        f"{statistics.median(formatted):8.1f} with a schema each: {statistics.median(ratios):.3f}"
    )


def first_token_ms(model: puna.Model, format: Any) -> float:
    began = time.perf_counter()
    with model.generate("Once upon a time", stream=True, format=format, num_predict=1) as stream:
        list(stream)
    return (time.perf_counter() - began) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="1b/q4_k_m", help="SHAPE/MIX as in bench/models.py")
    path = random_model(*parser.parse_args().model.split("/"))
    with puna.load(path, num_ctx=1024, parallel=_STREAMS) as model:
        speed(model, 1, ["json"])  # reads the vocabulary
        compare(model, 1)
        compare(model, _STREAMS)
        free = [first_token_ms(model, None) for _ in range(_ROUNDS)]
        fresh = [
            first_token_ms(model, format)
            for format in map(puna.Format.json_schema, itertools.islice(large_schemas(), _ROUNDS))
        ]
    print(
        f"time to first token: {statistics.median(free):.1f} ms free, "
        f"{statistics.median(fresh):.1f} ms with a fresh schema of 10 KB"
    )


if __name__ == "__main__":
    main()
