"""Sequences saved to files and restored in other caches and processes are the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from puna.batch import Batch
from puna.errors import CacheFileError, CacheFullError
from puna.kvcache.cache import Cache
from puna.kvcache.causal import CausalCache, KVShape
from puna.kvcache.encoder import EncoderCache
from puna.kvcache.recurrent import RecurrentCache
from puna.kvcache.saved import read_sequence, write_sequence
from puna.kvcache.types import KVTypes
from puna.kvcache.windows import ChunkedCache, SlidingCache
from puna.kvcache.wrapper import WrapperCache
from puna.model.load import LoadedModel, load_model
from tests.kvcache.probe import OPS, stretches
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

SHAPE = KVShape(2, 32, 32)


def save_sequence(cache: Cache, sequence: int, path: Path, *, model: str, tokens: list[int]) -> None:
    write_sequence(cache.save(sequence), path, model=model, tokens=tokens)


def restore_sequence(cache: Cache, sequence: int, path: str | Path, *, model: str) -> list[int]:
    saved, tokens = read_sequence(path, model=model)
    cache.plan_restore(sequence, saved)()
    return tokens


def make(types: str = "f16", sequences: int = 2, context: int = 64, window: int = 6) -> WrapperCache:
    """Return a cache with one layer of every kind."""
    how = {"sequences": sequences, "context": context, "types": KVTypes.parse(types)}
    return WrapperCache(
        SlidingCache(OPS, {0: SHAPE}, window=window, **how),
        CausalCache(OPS, {1: SHAPE}, **how),
        ChunkedCache(OPS, {2: SHAPE}, chunk=5, **how),
        EncoderCache(
            OPS, {3: SHAPE}, sequences=sequences, longest=32, entries=int, types=KVTypes.parse(types)
        ),
        RecurrentCache(OPS, {4: {"conv": (2, 3)}}, sequences=sequences),
    )


def feed(cache: Cache, sequence: int, count: int, seed: int, images: bool = False) -> list[np.ndarray]:
    """Run a pass of made-up numbers; return what every layer then shows."""
    random = np.random.default_rng(seed)
    begin = cache.length(sequence)
    batch = Batch.of([0] * count, list(range(begin, begin + count)), [sequence] * count, [])
    batch.payloads = [(0, 3), (count - 1, 4)] if images else []
    cache.start_forward(batch)
    for index in (0, 1, 2):
        cache.layer(index).put(*random.standard_normal((2, count, 2, 32), np.float32))
    if images:
        cache.layer(3).put(*random.standard_normal((2, 7, 2, 32), np.float32))
    state = cache.state(4)
    states = state.states["conv"]
    for _, _, source, target in stretches(state.slots):
        new = states.read(np.array([source])) / 2 + random.standard_normal((1, 2, 3), np.float32)
        states.write(np.array([target]), new)
    shown = [states.read(OPS.numpy(state.slots.targets)[-1:])]
    for index in range(4):
        view = cache.layer(index).view()
        for start, seen in zip(OPS.numpy(view.starts), OPS.numpy(view.counts), strict=True):
            cells = OPS.numpy(view.cells)[start : start + seen]
            shown += [view.keys.read(cells), view.values.read(cells)]
    return shown


def same(first: list[np.ndarray], second: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("types", ["f32", "f16", "bf16", "q8_0,q4_0"])
def test_a_restored_sequence_equals_the_saved_one(types: str, tmp_path: Path) -> None:
    cache = make(types)
    feed(cache, 0, 20, 1, images=True)
    feed(cache, 1, 3, 2)
    feed(cache, 0, 1, 3)
    path = tmp_path / "prompt.safetensors"
    save_sequence(cache, 0, path, model="m", tokens=list(range(100, 121)))
    other = make(types, sequences=3, context=128)
    feed(other, 0, 9, 5)
    feed(other, 2, 9, 6, images=True)
    assert restore_sequence(other, 2, path, model="m") == list(range(100, 121))
    assert other.length(2) == 21
    assert [other.resume_point(2, p) for p in range(22)] == [cache.resume_point(0, p) for p in range(22)]
    assert same(feed(other, 2, 4, 7), feed(cache, 0, 4, 7))
    for inner in other.caches[:4]:
        inner.cells.check()
    other.caches[4].check()
    assert list(tmp_path.iterdir()) == [path]


_ELSEWHERE = """
import sys, numpy as np
sys.path.insert(0, sys.argv[1])
from tests.kvcache.test_files import feed, make, restore_sequence
cache = make()
assert restore_sequence(cache, 1, sys.argv[2], model="m") == list(range(20))
np.savez(sys.argv[3], *feed(cache, 1, 2, 9))
"""


@pytest.mark.slow
def test_another_process_continues_a_saved_sequence(tmp_path: Path) -> None:
    cache = make()
    feed(cache, 0, 20, 1, images=True)
    path, result = tmp_path / "a.safetensors", tmp_path / "result.npz"
    save_sequence(cache, 0, path, model="m", tokens=list(range(20)))
    root = str(Path(__file__).parents[2])
    subprocess.run([sys.executable, "-c", _ELSEWHERE, root, path, result], check=True, cwd=root)
    assert same(list(np.load(result).values()), feed(cache, 0, 2, 9))


_WARM_START = """
import sys, numpy as np
sys.path.insert(0, sys.argv[1])
from tests.kvcache.test_files import PROMPT, read, restore_sequence
from puna.kvcache.types import KVTypes
from puna.model.load import load_model
from tests.kvcache.probe import stretches, OPS
from tests.tiny.forward import logits_of
loaded = load_model(sys.argv[2])
cache = loaded.make_cache(sequences=3, context=256, types=KVTypes.parse(sys.argv[5]))
assert restore_sequence(cache, 2, sys.argv[3], model="tiny") == PROMPT
np.save(sys.argv[4], read(loaded, cache, 2, [5, 6, 7]))
"""
PROMPT = [(31 * i) % 250 for i in range(120)]


def read(loaded: LoadedModel, cache: Cache, sequence: int, tokens: list[int]) -> np.ndarray:
    """Return the logits of further inputs of a sequence."""
    begin, count = cache.length(sequence), len(tokens)
    batch = Batch.of(tokens, list(range(begin, begin + count)), [sequence] * count, list(range(count)))
    cache.start_forward(batch)
    return loaded.ops.numpy(loaded.model.forward(batch.on(loaded.ops), cache))


@pytest.mark.slow
@pytest.mark.parametrize("types", ["f16", "q8_0,q4_0"])
def test_another_process_answers_a_saved_prompt_the_same(types: str, tmp_path: Path) -> None:
    model = tiny_llama_gguf(tmp_path / "tiny.gguf", TinyLlama(hidden=128))
    loaded = load_model(model)
    cache = loaded.make_cache(sequences=1, context=128, types=KVTypes.parse(types))
    read(loaded, cache, 0, PROMPT)
    path, result = tmp_path / "prompt.safetensors", tmp_path / "logits.npy"
    save_sequence(cache, 0, path, model="tiny", tokens=PROMPT)
    root = str(Path(__file__).parents[2])
    script = [sys.executable, "-c", _WARM_START, root, model, path, result, types]
    subprocess.run(script, check=True, cwd=root)
    assert np.array_equal(np.load(result), read(loaded, cache, 0, [5, 6, 7]))


def saved(tmp_path: Path, **options) -> Path:
    cache = make(**options)
    feed(cache, 0, 20, 1)
    path = tmp_path / "a.safetensors"
    save_sequence(cache, 0, path, model="m", tokens=list(range(20)))
    return path


def refused(cache: WrapperCache, path: Path, error: type[Exception], match: str, model: str = "m") -> None:
    feed(cache, 0, 2, 1)
    before = cache.save(0)
    with pytest.raises(error, match=match):
        restore_sequence(cache, 0, path, model=model)
    after = cache.save(0)
    assert before.facts == after.facts
    assert same(list(before.arrays.values()), list(after.arrays.values()))


def test_another_models_file_is_refused(tmp_path: Path) -> None:
    refused(make(), saved(tmp_path), CacheFileError, "saved with model 'm', and this is 'n'", model="n")


def test_other_types_are_refused(tmp_path: Path) -> None:
    refused(
        make("q8_0"),
        saved(tmp_path),
        CacheFileError,
        r"'0.keys' is \[20, 2, 1, 34\] uint8 in this cache",
    )


def test_a_window_longer_than_the_saved_one_is_refused(tmp_path: Path) -> None:
    cache = make()
    for seed in range(20):
        feed(cache, 0, 1, seed)
    path = tmp_path / "a.safetensors"
    save_sequence(cache, 0, path, model="m", tokens=list(range(20)))
    refused(make(window=12), path, CacheFileError, "positions before 13 were not saved")


def test_a_context_too_short_for_the_sequence_is_refused(tmp_path: Path) -> None:
    refused(
        make(context=19), saved(tmp_path), CacheFullError, "20 positions were saved, and the context is 19"
    )


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    tensors = {name: tensor.copy() for name, tensor in load_file(path).items()}
    path.write_bytes(path.read_bytes()[:1000])
    refused(make(), path, CacheFileError, "this is not a saved sequence")
    save_file(tensors, path, metadata={"format": "other"})
    refused(make(), path, CacheFileError, "not a sequence saved by this version")
    save_file(tensors, path, metadata={"format": "puna-sequence-5", "model": "m", "facts": "{}"})
    refused(make(), path, CacheFileError, "needs 'first', which was not saved")


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ("[" * 100_000, "this is not a saved sequence"),
        ("[]", "this is not a saved sequence"),
        ('{"1.length": [1e9]}', "this is not a saved sequence"),
        ('{"1.length": [-1]}', "this is not a saved sequence"),
        ('{"1.length": [4294967296]}', "this is not a saved sequence"),
        ({"1.length": []}, "a sequence has one length, not 0"),
        ({"1.first": [21]}, r"cannot extend over positions \[21\] to 20"),
        ({"1.first": [0, 0]}, r"cannot extend over positions \[0, 0\]"),
        ({"1.first": [7]}, "positions before 7 were not saved"),
        ({"1.length": [19]}, r"'1.keys' is \[19, 2, 32\]"),
        ({"3.length": [2_000_000_000]}, "one sequence cannot have the lengths"),
        ({"3.images": [0, 0, 1]}, r"'3.keys' is \[1, 2, 32\]"),
        ({"3.images": [0, 5, 3]}, "the saved images are inconsistent"),
        ({"3.images": [0, 0]}, "the saved images are inconsistent"),
        ({"3.images": [30, 0, 3]}, "the saved images are inconsistent"),
        ({"4.lengths": []}, r"there cannot be states after \[\] inputs"),
        ({"4.lengths": [20, 19]}, r"there cannot be states after \[20, 19\]"),
        ({"4.lengths": [20] * 1000}, "'4.conv' is"),
    ],
    ids=lambda case: str(case)[:40],
)
def test_impossible_facts_are_refused(
    facts: str | dict[str, list[int]], message: str, tmp_path: Path
) -> None:
    """They determine how much is allocated and where saved rows are put."""
    path = saved(tmp_path)
    tensors = {name: tensor.copy() for name, tensor in load_file(path).items()}
    with safe_open(path, framework="np") as file:
        about = file.metadata()
    changed = facts if isinstance(facts, str) else json.dumps(json.loads(about["facts"]) | facts)
    save_file(tensors, path, metadata=about | {"facts": changed})
    refused(make(), path, CacheFileError, message)


def test_number_types_unknown_to_numpy_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"dtype":"F16"', b'"dtype":"F4"  ', 1))
    refused(make(), path, CacheFileError, "this is not a saved sequence")
