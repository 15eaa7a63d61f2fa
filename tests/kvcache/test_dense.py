"""Lists of cells as dense tensors with a mask, and torch's own attention over them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from puna.batch import Batch
from puna.kvcache.causal import CausalCache, KVShape
from puna.kvcache.encoder import EncoderCache
from puna.kvcache.types import KVTypes
from puna.kvcache.windows import ChunkedCache, SlidingCache
from tests.kvcache.probe import OPS, Probe
from tests.kvcache.sdpa import dense_view, sdpa


def picture(mask: torch.Tensor) -> str:
    """Draw a mask as the specification does: `0` where a row sees a column, `x` elsewhere."""
    return ",".join("".join("0" if value == 0 else "x" for value in row) for row in mask.tolist())


def masked(probe: Probe, sequences: list[int], positions: list[int], **options):
    probe.store(sequences, positions, [float(p) for p in positions], **options)
    return picture(dense_view(probe.cache.layer(0).view()).mask)


def test_masks_are_causal_per_sequence() -> None:
    probe = Probe()
    assert masked(probe, [0] * 4, [0, 1, 2, 3]) == "0xxx,00xx,000x,0000"
    assert masked(probe, [0], [4]) == "00000"
    probe = Probe(sequences=2)
    assert masked(probe, [0, 0, 1, 1], [0, 1, 0, 1]) == "0xxx,00xx,xx0x,xx00"
    assert masked(probe, [0, 1], [2, 2]) == "00xx0x,xx00x0"


def test_only_cells_visible_to_the_batch_are_columns() -> None:
    probe = Probe(sequences=2)
    assert masked(probe, [0] * 3, [0, 1, 2]) == "0xx,00x,000"
    masked(probe, [0] * 2, [3, 4])
    assert masked(probe, [1], [0]) == "0"


def test_the_rows_of_a_span_see_all_of_it_and_nothing_beyond() -> None:
    # The rows of a span see all of it and nothing beyond: 000xx, where Ollama's engine has 00000.
    assert masked(Probe(), [0] * 5, list(range(5)), spans=[(1, 3)]) == "0xxxx,000xx,000xx,0000x,00000"
    window = Probe(kind=SlidingCache, window=2)
    assert masked(window, [0] * 5, list(range(5)), spans=[(1, 3)]) == "0xxxx,000xx,x00xx,xx00x,xxx00"
    probe = Probe(sequences=2)
    assert masked(probe, [0, 0, 1, 1], [0, 1, 0, 1], spans=[(2, 4)]) == "0xxx,00xx,xx00,xx00"
    assert masked(probe, [0], [2]) == "000"  # the next batch has no spans


def test_a_shared_prefix_is_one_column() -> None:
    probe = Probe(sequences=2)
    masked(probe, [0] * 4, [0, 1, 2, 3])
    probe.cache.copy_prefix(0, 1, 2)
    assert masked(probe, [0, 1, 1], [4, 2, 3]) == "00000xx,00xxx0x,00xxx00"


@pytest.mark.parametrize("types", ["f32", "f16", "q8_0,q4_0"])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize(
    ("kind", "options"),
    [(CausalCache, {}), (SlidingCache, {"window": 9}), (ChunkedCache, {"chunk": 8})],
)
def test_attention_over_dense_tensors_matches_index_lists(
    kind, options, types: str, with_sinks: bool
) -> None:
    random = np.random.default_rng(0)
    cache = kind(OPS, [KVShape(2, 64, 32)], sequences=3, context=64, types=KVTypes.parse(types), **options)
    sinks = random.standard_normal(6, np.float32) if with_sinks else None
    for sequences, spans in [([0] * 20 + [1] * 3, [(2, 7)]), ([0, 1, 2], []), ([2] * 5 + [1] * 9, [])]:
        positions = [cache.length(s) + sequences[:row].count(s) for row, s in enumerate(sequences)]
        batch = Batch.of([0] * len(positions), positions, sequences, [])
        batch.spans = spans
        cache.start_forward(batch)
        layer = cache.layer(0)
        layer.put(
            random.standard_normal((len(positions), 2, 64), np.float32),
            random.standard_normal((len(positions), 2, 32), np.float32),
        )
        query, view = random.standard_normal((len(positions), 6, 64), np.float32), layer.view()
        expected = OPS.attention(
            query, view.keys, view.values, view.cells, view.starts, view.counts, 0.2, 0.0, sinks
        )
        # What is not stored in f32 may be multiplied as integers.
        assert np.allclose(sdpa(query, view, 0.2, sinks), expected, atol=2e-5 if types == "f32" else 1e-3)


def test_rows_that_see_nothing_give_zeros() -> None:
    random = np.random.default_rng(0)
    cache = EncoderCache(OPS, {0: KVShape(1, 8, 8)}, sequences=2, longest=8, entries=len)
    batch = Batch.of([0] * 3, [0, 1, 0], [0, 0, 1], [])
    batch.payloads = [(1, "1234")]
    cache.start_forward(batch)
    cache.layer(0).put(
        random.standard_normal((4, 1, 8), np.float32), random.standard_normal((4, 1, 8), np.float32)
    )
    query, view = random.standard_normal((3, 2, 8), np.float32), cache.layer(0).view()
    expected = OPS.attention(query, view.keys, view.values, view.cells, view.starts, view.counts, 0.3)
    assert np.allclose(sdpa(query, view, 0.3), expected, atol=2e-4)
    assert not expected[[0, 2]].any()
    batch = Batch.of([0], [1], [1], [])
    cache.start_forward(batch)
    assert not sdpa(query[:1], cache.layer(0).view(), 0.3).any()
