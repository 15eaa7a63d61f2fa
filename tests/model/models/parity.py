"""Comparison of a model with the same one in transformers: tiny, random, in float32."""

from __future__ import annotations

import weakref
from functools import cache
from pathlib import Path
from typing import Any

import torch

from puna.batch import Batch
from puna.engine.engine import Engine
from puna.engine.room import EngineSizes
from puna.gguf import open_gguf
from puna.kvcache.cache import Cache, Saving
from puna.kvcache.types import KVTypes
from puna.model.load import LoadedModel
from puna.options import Options
from puna.protocol import Chunk, Event, Generate
from tests.tiny.forward import logits_of

FLOATS = KVTypes.parse("f32")


_originals: dict[str, Any] = {}
#: Results of originals by text: they are the same however ours reads the text, and on every backend.
_said: weakref.WeakKeyDictionary[Any, dict[tuple[int, ...], torch.Tensor]] = weakref.WeakKeyDictionary()
#: The largest difference found of each architecture; see `note`.
differences: dict[str, float] = {}


def original(config: Any) -> Any:
    """Return transformers' model of `config`, built once for all tests, which must not change it."""
    key = f"{config!r}"
    if key not in _originals:
        _originals[key] = config.build()
    return _originals[key]


def reference_log_probabilities(theirs: Any, tokens: list[int]) -> torch.Tensor:
    """Return log-probabilities after each of `tokens`, computed once per text."""
    said = _said.setdefault(theirs, {})
    if (found := said.get(tuple(tokens))) is None:
        with torch.inference_mode():
            found = said[tuple(tokens)] = torch.log_softmax(theirs(torch.tensor([tokens])).logits[0], dim=-1)
    return found


def check_close(ours: LoadedModel, found: torch.Tensor, expected: torch.Tensor, limit: float = 1e-3) -> None:
    """Check that log-probabilities, or hidden states of encoders, match the reference."""
    assert found.shape == expected.shape
    difference = float((found - expected).abs().max())
    note(ours, difference)
    assert difference < limit


def note(ours: LoadedModel, difference: float) -> None:
    """Record the largest difference of each architecture, for docs/models.md."""
    architecture = _architecture(ours.path)
    differences[architecture] = max(differences.get(architecture, 0.0), difference)


@cache
def _architecture(path: Path) -> str:
    with open_gguf(path) as file:
        return file.architecture


def random_tokens(ours: LoadedModel, count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(ours.tokenizer.vocab_size, (count,), generator=generator).tolist()


def read(ours: LoadedModel, cache: Cache, sequence: int, tokens: list[int]) -> torch.Tensor:
    """Return log-probabilities of all `tokens`, which continue `sequence`."""
    begin, count = cache.length(sequence), len(tokens)
    batch = Batch.of(tokens, list(range(begin, begin + count)), [sequence] * count, list(range(count)))
    with torch.inference_mode():
        cache.start_forward(batch)
        return torch.log_softmax(logits_of(ours.model, batch, cache), dim=-1)


def our_log_probabilities(ours: LoadedModel, tokens: list[int], parts: list[int]) -> torch.Tensor:
    """Return log-probabilities of every position, reading the prompt in `parts` beside another sequence."""
    cache = ours.make_cache(sequences=3, context=256, types=FLOATS)
    other = [7, 8, 9]
    found, begin = [], 0
    for part in parts:
        part_tokens = tokens[begin : begin + part]
        extra = other[:1] if begin == 0 else []
        batch = Batch.of(
            [*extra, *part_tokens],
            [0] * len(extra) + list(range(begin, begin + len(part_tokens))),
            [0] * len(extra) + [2] * len(part_tokens),
            list(range(len(extra), len(extra) + len(part_tokens))),
        )
        with torch.inference_mode():
            cache.start_forward(batch)
            found.append(torch.log_softmax(logits_of(ours.model, batch, cache), dim=-1))
        begin += part
    return torch.cat(found)


def log_probabilities_after_reuse(
    ours: LoadedModel, tokens: list[int], shared: int, *, chunk: int = 256
) -> torch.Tensor:
    """Return log-probabilities of a sequence that reuses the first `shared` positions of another.

    The other is read `chunk` inputs at a time. If the cache has forgotten some of the shared positions, the
    sequence continues at the earlier position that the cache reports.
    """
    cache = ours.make_cache(sequences=2, context=256, types=FLOATS)

    other = [*tokens[:shared], *reversed(tokens)]  # continues differently from the sequence that shares
    for begin in range(0, len(other), chunk):
        read(ours, cache, 0, other[begin : begin + chunk])
    cache.copy_prefix(0, 1, shared)
    begin = cache.resume_point(1, shared)
    cache.remove(1, begin)
    return read(ours, cache, 1, tokens[begin:])


def check_greedy(ours: LoadedModel, theirs: Any, *, count: int = 40) -> None:
    """Check that our engine's `count` tokens after each of several concurrent prompts are the reference's.

    Each must be the likeliest after those before it, so the reference need not generate them one by one. The
    first prompt is longer than a batch, and read alone at first: no row of that batch has a result.
    """
    prompts = [list(range(40)), [3, 1, 4, 1, 5], [200], [250, 7] * 10]
    engine = Engine(ours, EngineSizes(context=128, parallel=4, batch_size=16, cache_types=FLOATS))
    produced: dict[int, list[int]] = {number: [] for number in range(len(prompts))}

    def sink(event: Event) -> None:
        if isinstance(event, Chunk):
            produced[event.id] += event.tokens

    for number, prompt in enumerate(prompts):
        options = Options(temperature=0, num_predict=count)
        engine.submit(Generate(id=number, prompt=prompt, options=options, ignore_eos=True), sink)
        if number == 0:
            engine.step()
    while engine.step():
        pass
    for number, prompt in enumerate(prompts):
        answer = produced[number]
        assert len(answer) == count
        expected = reference_log_probabilities(theirs, [*prompt, *answer])
        assert answer == expected[len(prompt) - 1 : -1].argmax(dim=-1).tolist()


def check_restored(ours: LoadedModel, tokens: list[int], saved: int) -> None:
    """Check that a text goes on to the same bits from its first `saved` tokens, saved in another cache."""
    caches = [ours.make_cache(sequences=1, context=64) for _ in range(2)]
    read(ours, caches[0], 0, tokens[:saved])
    assert isinstance(caches[0], Saving)
    assert isinstance(caches[1], Saving)
    caches[1].plan_restore(0, caches[0].save(0))()
    found, expected = (read(ours, cache, 0, tokens[saved:]) for cache in (caches[1], caches[0]))
    assert torch.equal(found, expected)


def check_shifted(ours: LoadedModel, theirs: Any) -> None:
    """Check that keys shifted to new positions are those computed there.

    The model must have one layer, so that the remaining keys do not depend on what was removed.
    """
    tokens = random_tokens(ours, 60, 3)
    cache = ours.make_cache(sequences=1, context=64, types=FLOATS)
    read(ours, cache, 0, tokens[:50])
    cache.remove(0, 3, 28)
    found = read(ours, cache, 0, tokens[50:])
    expected = reference_log_probabilities(theirs, [*tokens[:3], *tokens[28:]])
    assert (found - expected[-10:]).abs().max() < 1e-3


def check_few_chosen(few: torch.Tensor, all_chosen: torch.Tensor, every: torch.Tensor, *, same: int) -> None:
    """Check log-probabilities of layers that choose few positions, choose all, and attend to every one.

    The first `same` rows see no more than the few.
    """
    assert torch.equal(all_chosen, every)
    assert torch.equal(few[:same], all_chosen[:same])
    assert (few[20:] - all_chosen[20:]).abs().amin(0).max() > 1e-3


def check_rounded_keys(ours: LoadedModel) -> None:
    """Check that keys in q8_0 choose nearly the same positions as exact ones."""
    tokens = random_tokens(ours, 70, 8)
    exact, rounded = (
        read(ours, ours.make_cache(sequences=1, context=128, types=types), 0, tokens)
        for types in (FLOATS, KVTypes.parse("q8_0"))
    )
    assert (rounded - exact)[20:].abs().amax(1).mean() < 0.5
