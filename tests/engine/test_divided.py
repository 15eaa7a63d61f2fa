"""The engine with a model divided among devices: the same answers, steps replayed, and prefixes reused."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from puna.batch import Batch
from puna.engine.executor import Replay
from puna.kvcache.types import F16_TYPES
from puna.model.load import load_model
from puna.ops import Backend, backend_named
from tests.engine.adapted import adapted_llama, check_mixed
from tests.engine.drafting import draft_always
from tests.engine.runs import Run
from tests.engine.test_replay import Pair
from tests.engine.test_split import MADE, story
from tests.model.divisions import divided
from tests.stand_in_gpus import use_gpus
from tests.tiny.decoders import tiny_decoder_gguf
from tests.tiny.gemmas import TinyGemma3n
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.tiny.rwkv import RWKV7

PLENTY = 1 << 30


@pytest.fixture(scope="module")
def processor() -> Backend:
    pytest.importorskip("puna._native")
    return backend_named("cpu")


@pytest.mark.parametrize("kind", MADE)
def test_answers_are_those_of_the_whole_model(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processor: Backend
) -> None:
    path = MADE[kind](tmp_path / "model.gguf")
    draft_always(monkeypatch, random.Random(5))
    expected = story(load_model(path, ops=processor))
    draft_always(monkeypatch, random.Random(5))
    assert story(divided(path, [1], [processor] * 2)) == expected


@pytest.mark.parametrize(
    "make",
    [
        lambda path: tiny_llama_gguf(path, TinyLlama(layers=3)),
        lambda path: tiny_decoder_gguf(path, RWKV7),  # hands on hidden states and values
        lambda path: tiny_decoder_gguf(path, TinyGemma3n()),  # and inputs of later layers
    ],
    ids=["llama", "rwkv7", "gemma3n"],
)
def test_steps_of_each_part_are_replayed_to_the_bit(
    make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processor: Backend
) -> None:
    path = make(tmp_path / "model.gguf")
    [gpu] = use_gpus(monkeypatch, PLENTY)
    for devices in ([processor, processor], [gpu, processor]):
        pair = Pair(divided(path, [1], devices))
        pair.step(0, 1, 2)  # storage that moves as it grows has its size now
        for streams in (1, 3):
            for _ in range(5):
                pair.step(*range(streams))
        assert pair.proven == [1, 3]
        recorded = [piece.program is not None for piece in pair.replay._steps[1, False].pieces]
        assert recorded == [device is processor for device in (*devices, devices[0])]


def test_a_part_that_reads_something_else_is_not_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processor: Backend
) -> None:
    loaded: Any = divided(tiny_llama_gguf(tmp_path / "model.gguf"), [1], [processor] * 2)
    second, factor = loaded.model.stages[1], [1.0]
    run = second.run

    def scaled(carried: Any, batch: Any, cache: Any) -> Any:
        factor[0] += 0.5
        return run([each * factor[0] for each in carried], batch, cache)

    monkeypatch.setattr(second, "run", scaled)
    model = type(loaded.model)(loaded.model.stages)  # its parts run that
    cache = model.make_cache(sequences=2, context=64, capacity=64, types=F16_TYPES)
    replay = Replay(model, cache)
    for position in range(5):
        batch = Batch.of([5], [position], [0], [])
        batch.outputs = None
        cache.start_forward(batch)
        replay.forward(batch)
    assert not replay._steps


def test_a_draft_model_drafts_for_a_divided_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processor: Backend
) -> None:
    path = tiny_llama_gguf(tmp_path / "model.gguf", TinyLlama(layers=3, context=128))
    [gpu] = use_gpus(monkeypatch, PLENTY)
    loaded = divided(path, [2], [gpu, processor], draft=path)
    assert loaded.draft is not None
    assert loaded.draft.ops is gpu
    draft_always(monkeypatch, random.Random(5))
    run = Run(loaded)
    run.submit(0, [1, 5, 9, 13], num_predict=20, temperature=0.0)
    run.finish()
    assert run.engine.clock.totals.accepted > 5
    expected = Run(load_model(path, ops=processor), speculate="off")
    expected.submit(0, [1, 5, 9, 13], num_predict=20, temperature=0.0)
    expected.finish()
    assert run.tokens(0) == expected.tokens(0)


def test_each_row_has_its_own_adapters_on_both_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processor: Backend
) -> None:
    path, files, merged = adapted_llama(tmp_path)
    whole = load_model(path, adapters=files, ops=processor)
    expected = check_mixed((whole, merged))
    parts = divided(path, [1], [processor] * 2, adapters=files)
    assert check_mixed((parts, merged)) == expected
    assert parts.adapters is not None
    assert whole.adapters is not None
    uses = ((0, 1.0), (1, 0.5))
    assert parts.adapters.identity(uses) == whole.adapters.identity(uses), "saved prompts are found again"
    of_layers = [parts.adapters._row_scales[f"blk.{layer}.attn_v.weight"] for layer in range(3)]
    first, other = parts.model.stages  # type: ignore[attr-defined]
    assert of_layers == [first.row_scales, other.row_scales, other.row_scales]
    [gpu] = use_gpus(monkeypatch, PLENTY)
    check_mixed((divided(path, [2], [gpu, processor], adapters=files), merged))
