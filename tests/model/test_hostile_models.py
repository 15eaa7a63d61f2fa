"""Absurd values are refused by key, before anything of their size is allocated."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from puna.errors import ModelError, UnsupportedModelError
from puna.gguf import GGMLType
from puna.model.load import load_model
from tests.fuzz.invented import Model, Raw, Tensor, invented
from tests.gguf import gguf_bytes as raw


def int32(value: int) -> Raw:
    return Raw(raw.INT32, struct.pack("<i", value))


def float64(value: float) -> Raw:
    return Raw(raw.FLOAT64, struct.pack("<d", value))


def saved(folder: Path, model: Model) -> Path:
    return raw.save(folder, model.encode())


def refusal(folder: Path, model: Model) -> str:
    """Return the error of loading, which must be short and take little memory."""
    path = saved(folder, model)
    tracemalloc.start()
    try:
        with pytest.raises(ModelError) as refused:
            load_model(path)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()
    assert len(str(refused.value)) < 500
    return str(refused.value)


@pytest.mark.parametrize(
    ("architecture", "keys", "complaint"),
    [
        (
            "llama",
            {"block_count": 1_000_000},
            "'llama.block_count' is 1000000, but there are tensors of only 2",
        ),
        ("llama", {"block_count": 1}, "'llama.block_count' is 1, but there are tensors of layer 1"),
        (
            "llama",
            {"context_length": int32(-1)},
            "'llama.context_length' should be positive, but is -1",
        ),
        ("llama", {"attention.head_count_kv": int32(-2)}, "head_count_kv' should be sizes, but has -2"),
        (
            "llama",
            {"embedding_length": 2**31 - 1},
            "'llama.embedding_length' is 2147483647, but tensor 'token_embd",
        ),
        (
            "llama",
            {"attention.key_length": 2**31 - 16, "rope.dimension_count": 16},
            "'llama.attention.head_count_kv' x 'llama.attention.key_length' is 2 x 2147483632, but tensor "
            "'blk.0.attn_k.weight' has 32x64 values",
        ),
        (
            "llama",
            {"attention.value_length": 2**31 - 16},
            "'llama.attention.value_length' is 2 x 2147483632, but",
        ),
        ("phi3", {"attention.key_length": 2**31 - 16}, "'phi3.attention.key_length' is 2147483632 and makes"),
        ("qwen3moe", {"expert_count": 2**31 - 2}, "'qwen3moe.expert_count' is 2147483646, but tensor"),
        (
            "qwen3moe",
            {"expert_feed_forward_length": 2**31 - 1},
            "'qwen3moe.expert_feed_forward_length' is 2147483647, but tensor 'blk.0.ffn_down_exps.weight'",
        ),
        ("lfm2", {"shortconv.l_cache": 2**31 - 1}, "'lfm2.shortconv.l_cache' is 2147483647, but tensor"),
        (
            "granitehybrid",
            {"ssm.state_size": 2**31 - 16},
            "'granitehybrid.ssm.state_size' is 2147483632 and with 2 groups makes",
        ),
        (
            "nemotron_h",
            {"ssm.inner_size": 2**31 - 16},
            "'nemotron_h.ssm.inner_size' is 2147483632, but tensor 'blk.0.ssm_out.weight' has 64x64 values",
        ),
        ("falcon-h1", {"ssm.group_count": 3}, "'falcon-h1.ssm.group_count' is 3, which does not divide 4"),
        ("mamba2", {"ssm.time_step_rank": 5}, "'mamba2.ssm.inner_size' is 64, which 5 heads cannot share"),
        (
            "rwkv7",
            {"wkv.head_size": 7},
            "'rwkv7.wkv.head_size' is 7, which does not divide the hidden size 64",
        ),
        ("rwkv7", {"token_shift_count": 1}, "'rwkv7.token_shift_count' is 1; only 2 is supported"),
        (
            "mamba2",
            {"ssm.conv_kernel": 1},
            "'mamba2.ssm.conv_kernel' is 1, which is too short for a convolution",
        ),
        (
            "qwen35",
            {"ssm.conv_kernel": 1},
            "'qwen35.ssm.conv_kernel' is 1, which is too short for a convolution",
        ),
        (
            "qwen4exp",
            {"ssm.conv_kernel": 2**31 - 1},
            "'qwen4exp.ssm.conv_kernel' is 2147483647, but tensor 'blk.0.ssm_conv1d.weight' has",
        ),
        (
            "deepseek4",
            {"hyper_connection.sinkhorn_iterations": 2**31 - 1},
            "'deepseek4.hyper_connection.sinkhorn_iterations' is 2147483647, more than 1000",
        ),
        (
            "step35",
            {"attention.sliding_window_pattern": None},
            "metadata key 'step35.attention.sliding_window_pattern' is missing",
        ),
        (
            "bailingmoe3",
            {"attention.key_length_mla": 2**31 - 1},
            "tensor 'blk.1.attn_q.weight' has 80x64 values, expected 8589934588x64",
        ),
        *(
            (
                architecture,
                {"attention.indexer.head_count": 2**31 - 1},
                f"'{architecture}.attention.indexer.head_count' x "
                f"'{architecture}.attention.indexer.key_length' is 2147483647 x 16, but tensor "
                f"'blk.{layer}.indexer.{name}.weight' has 32x",
            )
            for architecture, layer, name in (
                ("deepseek32", 0, "attn_q_b"),
                ("deepseek4", 1, "attn_q_b"),
                ("glm-dsa", 0, "attn_q_b"),
                ("glm5-next", 1, "attn_q_b"),
                ("hy_v4", 0, "attn_q_b"),
                ("qwen4exp", 1, "q_proj"),
            )
        ),
        (
            "glm5-next",
            {"nextn_predict_layers": 1},
            "'glm5-next.attention.head_count_kv' is 0 for all of the 1 layers",
        ),
        (
            "mllama",
            {"vision.max_num_tiles": 2**31 - 1},
            "'mllama.vision.image_size' is 56, which with patches of",
        ),
        ("olmo2", {"rope.freq_base": 1.0}, "'olmo2.rope.freq_base' should be above 1, but is 1.0"),
        ("llama", {"rope.freq_base": 0.5}, "'llama.rope.freq_base' should be above 1, but is 0.5"),
        (
            "olmo2",
            {"rope.scaling.factor": float64(1e300)},
            "'olmo2.rope.scaling.factor' should be a number, but is",
        ),
        ("olmo2", {"rope.scaling.attn_factor": float("nan")}, "attn_factor' should be a number, but is nan"),
        ("llama", {"rope.scaling.type": "x" * 1_000_000}, "rope scaling 'xxx"),
        ("llama", {"block_count": [2] * 100_000}, "'llama.block_count' should not differ between layers"),
        ("gemma3", {"attention.sliding_window_pattern": "x" * 1_000_000}, "should have true or false"),
    ],
)
def test_a_size_is_compared_with_the_tensors(
    architecture: str, keys: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    model = invented(architecture)
    changed = model.keys | {f"{architecture}.{key}": value for key, value in keys.items()}
    model.keys = {key: value for key, value in changed.items() if value is not None}
    assert complaint in refusal(tmp_path, model)


@pytest.mark.parametrize(
    ("layers", "words"), [(40_000, "there are no tensors of layer 2"), (900_000_000, "at most 65536 layers")]
)
def test_a_tensor_of_a_late_layer_does_not_create_the_layers_before_it(
    layers: int, words: str, tmp_path: Path
) -> None:
    model = invented("llama")
    model.keys["llama.block_count"] = layers
    model.tensors[f"blk.{layers - 1}.attn_norm.weight"] = model.tensors["blk.0.attn_norm.weight"]
    with pytest.raises(ModelError, match=f"'llama.block_count' is {layers}, .*{words}"):
        load_model(raw.save(tmp_path, model.encode()))


@pytest.mark.parametrize(
    ("tokenizer", "keys", "complaint"),
    [
        ("llama", {"scores": Raw(raw.ARRAY, struct.pack("<IQ", 12, 275) + struct.pack("<d", 1e300) * 275)},
         "'tokenizer.ggml.scores' has 1e+300 for token 0, which is not a float32 number"),
        ("llama", {"scores": [float("nan")] * 275}, "'tokenizer.ggml.scores' has nan for token 0"),
        ("llama", {"scores": [0.0]}, "'tokenizer.ggml.scores' has 1 entries for 275 tokens"),
        ("gpt2", {"merges": ["a b"] * 10_000}, "'tokenizer.ggml.merges' has 10000 entries for 287 tokens"),
        ("gpt2", {"tokens": ["a"] * 288}, "'tokenizer.ggml.tokens' has 288 tokens, and the embedding"),
        ("gpt2", {"tokens": 7.5}, "'tokenizer.ggml.tokens' is not an array of strings"),
        ("gpt2", {"tokens": Raw(raw.ARRAY, struct.pack("<IQ", raw.STRING, 0))}, "is missing or empty"),
        ("gpt2", {"bos_token_id": 287}, "'tokenizer.ggml.bos_token_id' is 287, but the last token"),
        ("gpt2", {"eos_token_ids": [1, 2**31]}, "'tokenizer.ggml.eos_token_ids' contains 2147483648"),
        ("gpt2", {"model": "x" * 1_000_000}, "tokenizer 'xxx"),
    ],
    ids=str,
)  # fmt: skip
def test_arrays_of_the_tokenizer_are_compared_with_each_other(
    tokenizer: str, keys: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    model = invented("llama", tokenizer=tokenizer)
    model.keys |= {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    assert complaint in refusal(tmp_path, model)


def test_merges_into_unknown_tokens_are_dropped(tmp_path: Path) -> None:
    model = invented("llama")
    model.keys["tokenizer.ggml.tokens"] = [chr(0x100 + i) for i in range(287)]
    tokenizer = load_model(saved(tmp_path, model)).tokenizer
    assert tokenizer.encode("ab", add_special=False) == []  # the vocabulary has no tokens for these


def test_the_name_of_an_unknown_pre_tokenizer_is_cut_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = invented("llama")
    model.keys["tokenizer.ggml.pre"] = "x\n" * 500_000
    load_model(saved(tmp_path, model))
    [message] = [record.getMessage() for record in caplog.records if "pre-tokenizer" in record.getMessage()]
    assert "unknown pre-tokenizer 'x\\nx" in message
    assert len(message) < 300


@pytest.mark.parametrize("name", ["blk.0.attn_q_norm.weight", "blk.1.attn_norm.bias", "output_norm.bias"])
def test_an_unknown_tensor_is_named(name: str, tmp_path: Path) -> None:
    model = invented("llama")
    model.tensors[name] = Tensor((16,), GGMLType.F32, bytes(64))
    path = saved(tmp_path, model)
    with pytest.raises(UnsupportedModelError, match=f"1 tensors are unknown for llama \\('{name}'\\)"):
        load_model(path)


@pytest.mark.parametrize(
    "name", ["rope_freqs.weight", "blk.0.attn_rot_embd.weight", "v.blk.0.x", "mm.0.weight"]
)
def test_harmless_tensors_may_stay_unused(name: str, tmp_path: Path) -> None:
    model = invented("bert")
    model.tensors[name] = Tensor((8,), GGMLType.F32, bytes(32))
    load_model(saved(tmp_path, model))


@pytest.mark.parametrize("factor", [0.0, 1e-40, float("nan")])
def test_factors_of_zero_are_refused(tmp_path: Path, factor: float) -> None:
    model = invented("llama")
    factors = np.array([1] * 7 + [factor], np.float32)
    model.tensors["rope_freqs.weight"] = Tensor((8,), GGMLType.F32, factors.tobytes())
    assert "'rope_freqs' or 'rope_factors' must not be 0" in refusal(tmp_path, model)
