"""The dense view: what backends ask for, and the same results as from index lists; scenarios by number.

Scenario 16 (the mask is built once per pass) has no counterpart: a view is made when asked for, and index
lists need none. Scenarios 60 and 61 name two backends' configurations; 62 the plain one. 63 (a second
configuration) cannot come about, for a cache has none.
"""

from __future__ import annotations

import pytest
import torch

from puna import ops
from puna.batch import Batch
from puna.errors import NotSupportedError
from puna.kvcache.causal import CausalCache, KVShape
from puna.kvcache.chunked import ChunkedCache
from puna.kvcache.dense import DenseConfig, dense_view
from puna.kvcache.encoder import EncoderCache
from puna.kvcache.sliding import SlidingCache
from puna.kvcache.types import KVTypes
from tests.kvcache.probe import NUMBERS, Probe
from tests.kvcache.sdpa import sdpa


def picture(mask: torch.Tensor) -> str:
    """`0` where a row sees a column, `x` elsewhere, as the specification draws it."""
    return ",".join("".join("0" if value == 0 else "x" for value in row) for row in mask.tolist())


def masked(
    probe: Probe, sequences: list[int], positions: list[int], config: DenseConfig | None = None, **options
):
    probe.store(sequences, positions, [float(p) for p in positions], **options)
    return picture(dense_view(probe.cache.layer(0).view(), config).mask)


@pytest.mark.scenario(1, 2, 3, 4)
def test_scenarios_1_to_4_masks() -> None:
    probe = Probe()
    assert masked(probe, [0] * 4, [0, 1, 2, 3]) == "0xxx,00xx,000x,0000"
    assert masked(probe, [0], [4]) == "00000"
    probe = Probe(sequences=2)
    assert masked(probe, [0, 0, 1, 1], [0, 1, 0, 1]) == "0xxx,00xx,xx0x,xx00"
    assert masked(probe, [0, 1], [2, 2]) == "00xx0x,xx00x0"


def test_scenarios_7_and_8_columns_are_padded() -> None:
    # Only cells that somebody in the batch sees are columns, so the other sequence's are not (8).
    padded = DenseConfig(padding=4)
    probe = Probe(sequences=2)
    assert masked(probe, [0] * 3, [0, 1, 2], padded) == "0xxx,00xx,000x"
    masked(probe, [0] * 2, [3, 4])
    assert masked(probe, [1], [0], padded) == "0xxx"


@pytest.mark.scenario(12, 13, 14)
def test_scenarios_12_to_14_spans() -> None:
    # A span is seen whole by its own rows and no further: 12 has 000xx where the ancestor had 00000.
    assert masked(Probe(), [0] * 5, list(range(5)), spans=[(1, 3)]) == "0xxxx,000xx,000xx,0000x,00000"
    window = Probe(kind=SlidingCache, window=2)
    assert masked(window, [0] * 5, list(range(5)), spans=[(1, 3)]) == "0xxxx,000xx,x00xx,xx00x,xxx00"
    probe = Probe(sequences=2)
    assert masked(probe, [0, 0, 1, 1], [0, 1, 0, 1], spans=[(2, 4)]) == "0xxx,00xx,xx00,xx00"
    assert masked(probe, [0], [2]) == "000"  # 15: the next batch has no spans


@pytest.mark.scenario(31)
def test_scenario_31_a_shared_prefix_is_one_column() -> None:
    probe = Probe(sequences=2)
    masked(probe, [0] * 4, [0, 1, 2, 3])
    probe.cache.copy_prefix(0, 1, 2)
    assert masked(probe, [0, 1, 1], [4, 2, 3]) == "00000xx,00xxx0x,00xxx00"


@pytest.mark.parametrize(
    "config",
    [
        DenseConfig(),
        DenseConfig(padding=256, mask_dtype=torch.float16),
        DenseConfig(padding=256, permuted_values=True),
        DenseConfig(padding=32, batch_padding=64, mask_dtype=torch.bfloat16, dtype=torch.float16),
    ],
)
def test_scenarios_60_to_62_a_view_is_as_the_backend_asks(config: DenseConfig) -> None:
    cache = CausalCache([KVShape(2, 8, 4)], sequences=2, context=300, types=NUMBERS)
    keys, values = torch.randn(70, 2, 8), torch.randn(70, 2, 4)
    cache.start_forward(Batch.of([0] * 70, list(range(70)), [0] * 70, []))
    cache.layer(0).put(keys, values)
    view = dense_view(cache.layer(0).view(), config)
    columns = -(-70 // config.padding) * config.padding
    assert view.mask.shape == (-(-70 // config.batch_padding) * config.batch_padding, columns)
    assert view.mask.dtype is config.mask_dtype
    assert (view.mask[70:] == -torch.inf).all()
    assert (view.mask[:, 70:] == -torch.inf).all()
    given = view.values.transpose(1, 2) if config.permuted_values else view.values
    assert view.values.is_contiguous()
    assert given.shape == (2, columns, 4)
    assert torch.equal(given[:, :70], values.transpose(0, 1).to(config.dtype))
    assert torch.equal(view.keys[:, :70], keys.transpose(0, 1).to(config.dtype))
    assert not given[:, 70:].any()


@pytest.mark.scenario(64)
@pytest.mark.parametrize("types", ["f32", "f16", "q8_0,q4_0"])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize(
    ("kind", "options"),
    [(CausalCache, {}), (SlidingCache, {"window": 9}), (ChunkedCache, {"chunk": 8})],
)
def test_scenario_64_torch_gives_the_same_as_index_lists(kind, options, types: str, with_sinks: bool) -> None:
    torch.manual_seed(0)
    cache = kind([KVShape(2, 64, 32)], sequences=3, context=64, types=KVTypes.parse(types), **options)
    sinks = torch.randn(6) if with_sinks else None
    for sequences, spans in [([0] * 20 + [1] * 3, [(2, 7)]), ([0, 1, 2], []), ([2] * 5 + [1] * 9, [])]:
        positions = [cache.length(s) + sequences[:row].count(s) for row, s in enumerate(sequences)]
        batch = Batch.of([0] * len(positions), positions, sequences, [])
        batch.spans = spans
        cache.start_forward(batch)
        layer = cache.layer(0)
        layer.put(torch.randn(len(positions), 2, 64), torch.randn(len(positions), 2, 32))
        query, view = torch.randn(len(positions), 6, 64), layer.view()
        expected = ops.attention(
            query, view.keys, view.values, view.cells, view.starts, view.counts, 0.2, 0.0, sinks
        )
        assert torch.allclose(sdpa(query, view, 0.2, sinks=sinks), expected, atol=2e-5)
    with pytest.raises(NotSupportedError, match=r"caps its attention scores at 30, which .* PUNA_ATTENTION"):
        sdpa(query, view, 0.2, 30.0)


def test_rows_that_see_nothing_give_zeros() -> None:
    cache = EncoderCache({0: KVShape(1, 8, 8)}, sequences=2, longest=8, entries=len)
    batch = Batch.of([0] * 3, [0, 1, 0], [0, 0, 1], [])
    batch.payloads = [(1, "1234")]
    cache.start_forward(batch)
    cache.layer(0).put(torch.randn(4, 1, 8), torch.randn(4, 1, 8))
    query, view = torch.randn(3, 2, 8), cache.layer(0).view()
    expected = ops.attention(query, view.keys, view.values, view.cells, view.starts, view.counts, 0.3)
    assert torch.allclose(sdpa(query, view, 0.3), expected, atol=1e-5)
    assert not expected[[0, 2]].any()
    batch = Batch.of([0], [1], [1], [])
    cache.start_forward(batch)
    assert not sdpa(query[:1], cache.layer(0).view(), 0.3).any()
