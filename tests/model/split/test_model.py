"""A split model computes what the whole one does, to the bit, wherever it is cut."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from puna.batch import Batch
from puna.kvcache.types import F16_TYPES
from puna.model.load import LoadedModel, load_model
from puna.model.split import cache as split_cache
from puna.model.split import worker as split_worker
from puna.model.stages import places_to_cut
from tests.model.split.splitting import split
from tests.tiny.decoders import GEMMA2, QWEN3_MOE, TinyGpt, tiny_decoder_gguf
from tests.tiny.gemma3 import TinyGemma3, tiny_gemma3_gguf
from tests.tiny.gemmas import TinyGemma3n, TinyGemma4
from tests.tiny.glm5_next import GLM5_NEXT
from tests.tiny.hybrids import EXPERTS, SETTINGS, TinyHybrid
from tests.tiny.kimi import KIMI_LINEAR
from tests.tiny.latent import DEEPSEEK_V3
from tests.tiny.lfm2 import tiny_lfm2_gguf
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.tiny.llama4 import TinyLlama4, tiny_llama4_gguf
from tests.tiny.mamba import FALCON_H1, GRANITE_HYBRID_MOE, NEMOTRON_H
from tests.tiny.rwkv import ARWKV7, RWKV7


def decoder(tiny: Any) -> Callable[[Path], Path]:
    return lambda path: tiny_decoder_gguf(path, tiny)


MODELS: dict[str, Callable[[Path], Path]] = {
    "llama": lambda path: tiny_llama_gguf(path, TinyLlama(layers=3)),
    "gemma3": lambda path: tiny_gemma3_gguf(path, TinyGemma3(layers=4, pattern=3, window=16)),
    "llama4": lambda path: tiny_llama4_gguf(path, TinyLlama4(chunk=8, no_rope_interval=2)),
    "lfm2": tiny_lfm2_gguf,
    "qwen3moe": decoder(QWEN3_MOE),
    "qwen3next": decoder(TinyHybrid("qwen3_next", {**SETTINGS, **EXPERTS})),
    "granitehybrid": decoder(GRANITE_HYBRID_MOE),
    "gemma3n": decoder(TinyGemma3n()),
    "gemma4": decoder(TinyGemma4()),
    "rwkv7": decoder(RWKV7),
    "arwkv7": decoder(ARWKV7),
    "gemma2": decoder(GEMMA2),
    "deepseek2": decoder(DEEPSEEK_V3),
    "kimi": decoder(KIMI_LINEAR),
    "glm5-next": decoder(GLM5_NEXT),
    "falcon": decoder(FALCON_H1),
    "nemotron": decoder(NEMOTRON_H),
    "gpt2": decoder(TinyGpt("gpt2")),
    "bloom": decoder(TinyGpt("bloom")),
}


def passes(loaded: LoadedModel) -> list[np.ndarray]:
    """Return logits of two sequences that are read in pieces, shared, shortened and continued."""
    cache = loaded.model.make_cache(sequences=4, context=128, capacity=256, types=F16_TYPES)
    ops, found = loaded.ops, []

    def run(rows: list[tuple[int, int, int]], outputs: list[int] | None) -> None:
        """Read (sequence, position, count) each."""
        positions = [first + i for _, first, count in rows for i in range(count)]
        owners = [sequence for sequence, _, count in rows for _ in range(count)]
        tokens = [
            (7 * position + 3 * owner) % 60 + 1 for position, owner in zip(positions, owners, strict=True)
        ]
        batch = Batch.of(tokens, positions, owners, outputs or [])
        if outputs is None:
            batch.outputs = None
        cache.start_forward(batch)
        found.append(ops.numpy(loaded.model.forward(batch.on(ops), cache)).copy())

    run([(0, 0, 30)], [29])
    run([(0, 30, 1), (1, 0, 33)], [0, 20, 33])
    run([(0, 31, 1), (1, 33, 1)], None)
    cache.copy_prefix(1, 2, 34)
    run([(2, cache.length(2), 2), (0, 32, 1)], None)
    if cache.can_resume(0, 32):
        cache.remove(0, 32)
        run([(0, 32, 3)], None)
    cache.remove(1, 0)
    getattr(cache, "compact", int)()
    run([(3, 0, 40), (2, cache.length(2), 1)], [39, 40])
    cache.close()
    return found


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_whole_model_wherever_it_is_cut(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = MODELS[name](tmp_path / "model.gguf")
    whole = load_model(path)
    expected = passes(whole)
    model: Any = whole.model
    count = model.options.block_count
    places = places_to_cut([layer.remembers for layer in model.options.layers[:count]])
    assert places, "the model can be cut"
    monkeypatch.setattr(split_cache, "ROWS_TOGETHER", 8)
    for cuts in [[place] for place in places] + [list(each) for each in itertools.combinations(places, 2)][
        :1
    ]:
        with split(path, cuts) as parts:
            found = passes(parts.loaded)
            assert not parts.failures
            assert all(worker.passes for worker in parts.workers)
            for ours, theirs in zip(found, expected, strict=True):
                np.testing.assert_array_equal(ours, theirs, err_msg=f"cut at {cuts}")


def test_room_of_a_cache_is_that_of_the_stage_with_the_least(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = MODELS["llama"](tmp_path / "model.gguf")
    for place, factor in ((1, 0.5), (2, 2.0)):  # one layer here and two there, and the other way round
        for theirs in (10**8, 10**6):
            monkeypatch.setattr(split_worker, "available_memory", lambda theirs=theirs: theirs)
            monkeypatch.setattr("puna.machine.available_memory", lambda: 3 * 10**7)
            with split(path, [place]) as parts:
                model = parts.model
                assert model.cache_room() == min(3 * 10**7, theirs * factor)
                cache = model.make_cache(sequences=2, context=128, capacity=256, types=F16_TYPES)
                taken = cache.provided_bytes
                assert model.cache_room() == min(3 * 10**7, theirs * factor - taken)
                cache.close()
