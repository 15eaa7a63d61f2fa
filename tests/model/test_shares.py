"""Shares of a model's layers: which part of each tensor a rank has, and what cannot be divided."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from puna.errors import UnsupportedModelError
from puna.gguf import GGMLType, open_gguf, quantize
from puna.gguf.part import TensorInfo
from puna.model.memory import Forecast
from puna.model.shares import ModelShare
from puna.ops import Weight
from tests.tiny.decoders import GEMMA2, QWEN3_MOE, TinyDecoder, tiny_decoder_gguf
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

ROWS = ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")
COLUMNS = ("attn_output", "ffn_down")


def matrix(name: str, kind: GGMLType, rows: int, columns: int) -> Weight:
    values = np.random.default_rng(5).standard_normal((rows, columns)).astype(np.float32)
    return Weight(name, quantize(values, kind), kind, (rows, columns))


@pytest.mark.parametrize("kind", [GGMLType.F32, GGMLType.F16, GGMLType.Q8_0, GGMLType.Q4_K, GGMLType.IQ4_XS])
@pytest.mark.parametrize("name", ROWS + COLUMNS)
def test_parts_of_all_ranks_make_up_the_matrix(name: str, kind: GGMLType) -> None:
    full = f"blk.11.{name}.weight"
    whole = matrix(full, kind, 24, 768).values()
    parts = []
    for rank in range(3):
        share = ModelShare(rank, 3)
        shape = share.shape(full, (24, 768))
        part = share.matrix(matrix(full, kind, 24, 768), shape)
        assert part.shape == shape
        assert 3 * part.nbytes == kind.nbytes(24 * 768)
        parts.append(part.values())
    np.testing.assert_array_equal(np.concatenate(parts, 1 if name in COLUMNS else 0), whole)


def test_output_rows_may_differ_in_number_and_a_table_stands_in_for_the_output() -> None:
    whole = matrix("token_embd.weight", GGMLType.F32, 11, 4)
    shares = [ModelShare(rank, 3) for rank in range(3)]
    assert shares[0].sizes(11) == [3, 4, 4]
    assert all(share.matrix(whole, (11, 4)) is whole for share in shares), "as a table of embeddings"
    heads = [share.matrix(whole, (share.sizes(11)[share.rank], 4)).values() for share in shares]
    np.testing.assert_array_equal(np.concatenate(heads), whole.values())


def test_biases_are_divided_like_the_rows_of_their_matrices() -> None:
    values, share = np.arange(6, dtype=np.float32), ModelShare(1, 2)
    assert share.vector("blk.0.attn_q.bias", values).tolist() == [3, 4, 5]
    assert share.vector("blk.0.attn_output.bias", values).tolist() == values.tolist()
    assert share.vector("blk.0.attn_norm.weight", values).tolist() == values.tolist()


def tensor(name: str, kind: GGMLType, *shape: int) -> TensorInfo:
    return TensorInfo(name, shape, kind, 0, 0)


@pytest.mark.parametrize(
    ("tensors", "heads", "reason"),
    [
        ([], [4, 2], r"its 2 heads of keys and values cannot be divided among 4 GPUs"),
        (
            [tensor("blk.0.ffn_down.weight", GGMLType.Q4_K, 64, 1280)], [4],
            r"the 1280 columns of its tensor 'blk.0.ffn_down.weight' cannot .*: Q4_K has blocks of 256",
        ),
        ([tensor("blk.0.ffn_up.weight", GGMLType.F32, 90, 64)], [4], r"the 90 rows of its tensor"),
        ([tensor("blk.1.attn_gate.weight", GGMLType.F32, 64, 64)], [4], r"'blk.1.attn_gate.weight'"),
        ([tensor("blk.1.ffn_gate_inp.weight", GGMLType.F32, 64, 64)], [4], r"'blk.1.ffn_gate_inp.weight'"),
        ([tensor("blk.1.ffn_down.weight", GGMLType.F32, 64)], [4], r"'blk.1.ffn_down.weight'"),
        ([tensor("cls.weight", GGMLType.F32, 64, 64)], [4], r"'cls.weight'"),
    ],
)  # fmt: skip
def test_what_cannot_be_divided_is_refused(tensors: list[TensorInfo], heads: list[int], reason: str) -> None:
    with pytest.raises(UnsupportedModelError, match=reason):
        ModelShare(0, 4).check(tensors, heads)
    ModelShare(0, 4).check([tensor("output.weight", GGMLType.F32, 287, 64)], [4])


def test_forecasts_of_shares_count_their_part(tmp_path: Path) -> None:
    path = tiny_llama_gguf(tmp_path / "llama.gguf", TinyLlama(layers=3))
    sizes = {"context": 128, "parallel": 2, "batch": 32}
    with open_gguf(path) as file:
        whole = Forecast(file).table(**sizes)
        halves = [Forecast(file, share=ModelShare(rank, 2)).table(**sizes) for rank in range(2)]
    for number in range(3):
        all_of_it, one, other = (each.layer(number) for each in (whole, *halves))
        assert one == other
        assert 2 * one.cache == all_of_it.cache
        assert 0 < one.weights - all_of_it.weights / 2 < 2000, "norms are in both"
    assert halves[0].activations < whole.activations


@pytest.mark.parametrize("tiny", [GEMMA2, QWEN3_MOE, TinyDecoder("phi3", {"pad_token_id": 0})])
def test_other_architectures_are_refused_by_name(tiny: TinyDecoder, tmp_path: Path) -> None:
    path = tiny_decoder_gguf(tmp_path / "model.gguf", tiny)
    with open_gguf(path) as file, pytest.raises(UnsupportedModelError) as caught:
        Forecast(file, share=ModelShare(0, 2))
    assert str(caught.value) == (
        "model.gguf cannot be divided as PUNA_TENSOR_PARALLEL says: tensor parallelism is there for llama, "
        f"mistral3, qwen2, qwen3, not for {tiny.hf.replace('_', '')}"
    )


def test_options_of_a_rank_have_its_heads(tmp_path: Path) -> None:
    path = tiny_llama_gguf(tmp_path / "llama.gguf", TinyLlama())
    with open_gguf(path) as file:
        whole = Forecast(file).options
        share = ModelShare(1, 2)
        own = whole.of_rank(share)
    for ours, theirs in zip(own.layers, whole.layers, strict=True):
        assert (2 * ours.heads, 2 * ours.kv_heads) == (theirs.heads, theirs.kv_heads)
        assert 2 * ours.feed_forward_size == theirs.feed_forward_size
        same = dataclasses.replace(
            ours, heads=theirs.heads, kv_heads=theirs.kv_heads, feed_forward_size=theirs.feed_forward_size
        )
        assert same == theirs
    assert (whole.output_rows, own.output_rows) == (287, 144)
