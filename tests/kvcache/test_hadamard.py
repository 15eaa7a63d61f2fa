"""The transform of keys that are stored in few bits."""

from __future__ import annotations

import numpy as np
import pytest

from puna.batch import Batch
from puna.gguf import GGMLType
from puna.kvcache.causal import CausalCache, KVShape
from puna.kvcache.hadamard import Hadamard
from puna.kvcache.types import KVTypes
from puna.nn.attention import attend
from tests.kvcache.probe import OPS

HEADS, KV_HEADS, POSITIONS = 4, 2, 40


@pytest.mark.parametrize(
    ("head_dim", "size"), [(32, 32), (64, 64), (96, 32), (128, 64), (160, 32), (576, 64)]
)
def test_it_is_orthogonal_and_its_own_inverse(head_dim: int, size: int) -> None:
    hadamard = Hadamard.of(OPS, GGMLType.Q4_0, head_dim)
    assert hadamard is not None
    assert hadamard.matrix.shape == (size, size)
    x, y = np.random.default_rng(head_dim).standard_normal((2, 3, 2, head_dim), np.float32)
    there = hadamard(OPS, OPS.array(x))
    products = np.einsum("rhd,rhd->rh", OPS.numpy(there), OPS.numpy(hadamard(OPS, OPS.array(y))))
    assert np.allclose(products, np.einsum("rhd,rhd->rh", x, y), atol=1e-4)
    assert np.allclose(OPS.numpy(hadamard(OPS, there)), x, atol=1e-5)


@pytest.mark.parametrize("kind", [GGMLType.F32, GGMLType.F16, GGMLType.BF16])
def test_floats_are_stored_as_they_are(kind: GGMLType) -> None:
    assert Hadamard.of(OPS, kind, 64) is None


@pytest.mark.parametrize("pattern", ["one", "all", "alternating", "first half", "steps of four"])
@pytest.mark.parametrize("size", [32, 64])
def test_every_pattern_is_spread(size: int, pattern: str) -> None:
    index = np.arange(size)
    x = {
        "one": index == 5,
        "all": index >= 0,
        "alternating": (-1) ** index,
        "first half": np.where(index < size // 2, 1, -1),
        "steps of four": (-1) ** (index // 4),
    }[pattern].astype(np.float32)
    hadamard = Hadamard.of(OPS, GGMLType.Q8_0, size)
    assert hadamard is not None
    spread = np.abs(OPS.numpy(hadamard(OPS, OPS.array(x[None, None]))))
    # 32 is an odd power of two, for which no function is equally far from all patterns.
    assert spread.max() <= np.linalg.norm(x) * (1.0 if size == 64 else 2**0.5) / size**0.5 * 1.001


@pytest.mark.parametrize("types", ["q8_0,f32", "q4_0,f32"])
@pytest.mark.parametrize("head_dim", [64, 96, 128])
def test_channels_with_large_keys_leave_the_others_their_precision(
    types: str, head_dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = np.random.default_rng(head_dim)
    query, keys, values = (
        dice.standard_normal((POSITIONS, heads, head_dim), np.float32)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    # As from a bias: the same in all positions, so that softmax takes it away.
    keys[..., [3, head_dim // 2 + 3]] += 40 * np.sign(dice.standard_normal((KV_HEADS, 2)))
    query[..., [3, head_dim // 2 + 3]] *= 0.1
    exact, found = (_attended(kinds, query, keys, values) for kinds in ("f32", types))
    monkeypatch.setattr(Hadamard, "of", lambda *_: None)
    plain = _attended(types, query, keys, values)
    assert np.linalg.norm(found - exact) < 0.5 * np.linalg.norm(plain - exact)


def _attended(types: str, query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the results of attention [rows, heads * head_dim] over a cache of these types."""
    head_dim = keys.shape[2]
    cache = CausalCache(
        OPS, [KVShape(KV_HEADS, head_dim, head_dim)], sequences=1, context=64, types=KVTypes.parse(types)
    )
    cache.start_forward(Batch.of([0] * POSITIONS, list(range(POSITIONS)), [0] * POSITIONS, []))
    cache.layer(0).put(OPS.array(keys), OPS.array(values))
    mixed = OPS.numpy(attend(OPS, OPS.array(query), cache.layer(0).view(), head_dim**-0.5)).copy()
    cache.close()
    return mixed
