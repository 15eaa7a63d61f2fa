"""A model divided among devices computes what the whole one does, and keeps the same of each sequence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from puna.batch import Batch
from puna.kvcache.cache import Cache
from puna.kvcache.divided import DividedCache
from puna.kvcache.types import F16_TYPES
from puna.model.divided import DividedModel
from puna.model.load import LoadedModel, load_model
from puna.model.models.qwen3 import Qwen3
from puna.model.models.qwen3vl import Qwen3VL
from puna.model.stages import places_to_cut
from puna.ops import Backend, backend_named
from tests.model.divisions import divided
from tests.model.split.test_images import logits, mllama, qwen3
from tests.model.split.test_model import MODELS, passes
from tests.samples import sampled
from tests.stand_in_gpus import use_gpus

PLENTY = 1 << 30
#: A model for each kind of cache, of layers that hand on more than hidden states, and of experts.
SOME = ("llama", "gemma3", "lfm2", "rwkv7", "gemma3n", "qwen3moe")


@pytest.fixture(scope="module")
def processor() -> Backend:
    pytest.importorskip("puna._native")
    return backend_named("cpu")


def places(loaded: LoadedModel) -> list[int]:
    options = loaded.model.options  # type: ignore[attr-defined]
    return places_to_cut([layer.remembers for layer in options.layers[: options.block_count]])


@pytest.mark.parametrize("name", sampled(MODELS, SOME))
def test_stages_compute_what_the_whole_model_does(
    name: str, tmp_path: Path, processor: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = MODELS[name](tmp_path / "model.gguf")
    whole = load_model(path, ops=processor)
    expected, cuts = passes(whole), places(whole)
    [gpu] = use_gpus(monkeypatch, PLENTY)
    for ours, theirs in zip(passes(divided(path, cuts[:1], [processor] * 2)), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    mixed = divided(path, cuts[-1:], [gpu, processor])
    assert isinstance(mixed.model, DividedModel)
    for ours, theirs in zip(passes(mixed), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-3)


def test_three_devices_hand_on_to_each_other_and_back(
    tmp_path: Path, processor: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = MODELS["llama"](tmp_path / "model.gguf")
    first, second = use_gpus(monkeypatch, PLENTY, PLENTY)
    loaded = divided(path, [1, 2], [second, first, processor])
    assert {ops.device: count for ops, count in loaded.layers_on.items()} == {
        "GPU 1": 1,
        "GPU 0": 1,
        "CPU": 1,
    }
    for ours, theirs in zip(passes(loaded), passes(load_model(path, ops=processor)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-3)


@pytest.mark.parametrize(
    ("make", "rows", "states"), [(qwen3, 6, 3), (mllama, 1, 1)], ids=["deepstack", "cross-attention"]
)
def test_layers_on_both_devices_read_images(
    make: Callable[[Path], Path], rows: int, states: int, tmp_path: Path, processor: Backend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name in ("after_layer", "reads_images", "_nothing"):  # all that the language model of Qwen3-VL adds
        monkeypatch.setattr(Qwen3, name, vars(Qwen3VL)[name], raising=False)
    path = make(tmp_path / "model.gguf")
    whole = load_model(path, ops=processor)
    width = whole.model.options.hidden_size * states  # type: ignore[attr-defined]
    [gpu] = use_gpus(monkeypatch, PLENTY)
    found = logits(divided(path, [2], [gpu, processor]), rows, width)
    for ours, theirs in zip(found, logits(whole, rows, width), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-3)


# --- caches -----------------------------------------------------------------------------------------


def cache_of(loaded: LoadedModel) -> Any:
    return loaded.make_cache(sequences=3, context=64, types=F16_TYPES)


def read(loaded: LoadedModel, cache: Cache, sequence: int, count: int) -> np.ndarray:
    """Read more tokens of a sequence, and return the logits after the last one."""
    begin = cache.length(sequence)
    tokens = [3 + 5 * position % 50 for position in range(begin, begin + count)]
    batch = Batch.of(tokens, [*range(begin, begin + count)], [sequence] * count, [count - 1])
    cache.start_forward(batch)
    return loaded.ops.numpy(loaded.model.forward(batch.on(loaded.ops), cache)).copy()


@pytest.mark.parametrize("name", ["llama", "gemma3", "lfm2"])
def test_saved_sequences_move_between_divisions(
    name: str, tmp_path: Path, processor: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = MODELS[name](tmp_path / "model.gguf")
    whole = load_model(path, ops=processor)
    [gpu] = use_gpus(monkeypatch, PLENTY)
    cuts = places(whole)
    ways = [whole, divided(path, cuts[:1], [gpu, processor]), divided(path, cuts[-1:], [processor] * 2)]
    for source in ways:
        there = cache_of(source)
        read(source, there, 0, 30)
        saved = there.save(0)
        expected = read(source, there, 0, 1)
        for target in ways:
            here = cache_of(target)
            here.plan_restore(2, saved)()
            assert here.length(2) == 30
            np.testing.assert_allclose(read(target, here, 2, 1), expected, atol=2e-3)


def test_a_divided_cache_describes_itself_like_a_whole_one(tmp_path: Path, processor: Backend) -> None:
    path = MODELS["lfm2"](tmp_path / "model.gguf")
    whole = load_model(path, ops=processor)
    parts = divided(path, places(whole)[:1], [processor] * 2)
    caches = [cache_of(whole), cache_of(parts)]
    assert isinstance(caches[1], DividedCache)
    for loaded, cache in zip((whole, parts), caches, strict=True):
        read(loaded, cache, 1, 20)
    one, other = caches
    assert sorted(one.layers) == sorted(other.layers)
    for name in ("counts", "contents", "extents"):
        assert getattr(one, name)() == getattr(other, name)()
    sizes = {"sequences": 2, "capacity": 100}
    assert one.layer_bytes(**sizes, batch=8) == other.layer_bytes(**sizes, batch=8)
    assert (one.provided_bytes, one.kind) == (other.provided_bytes, other.kind)
    one.close()
    other.close()


def test_room_of_caches_is_that_of_the_device_with_the_least(
    tmp_path: Path, processor: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = MODELS["llama"](tmp_path / "model.gguf")
    [gpu] = use_gpus(monkeypatch, 20_000_000)
    loaded = divided(path, [1], [gpu, processor])
    assert loaded.cache_share_on_gpu == pytest.approx(1 / 3)
    monkeypatch.setattr("puna.machine.available_memory", lambda: 1 << 40)
    assert loaded.model.cache_room() == pytest.approx(60_000_000, abs=3)
    monkeypatch.setattr("puna.machine.available_memory", lambda: 30_000_000)
    assert loaded.model.cache_room() == pytest.approx(45_000_000, abs=3)
    assert loaded.model.cache_room(reserved=10_000_000) == pytest.approx(30_000_000, abs=3)
