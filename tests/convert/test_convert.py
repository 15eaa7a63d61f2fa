"""Converted models compute the log-probabilities of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from safetensors.numpy import load_file

from puna.convert import convert
from puna.errors import ConversionError
from puna.gguf import FileType, GGMLType, open_gguf
from puna.model.load import load_model
from tests.convert.checkpoints import LLAMA3_CUT, save_nemotron_head, save_tokenizer, saved
from tests.model.models.parity import (
    check_close,
    original,
    our_log_probabilities,
    random_tokens,
    reference_log_probabilities,
)
from tests.model.models.test_decoders import MODELS
from tests.tiny.converted import converted
from tests.tiny.gemma3 import TinyGemma3
from tests.tiny.heads import TinyHeads, save_heads
from tests.tiny.hybrids import EXPERTS, SETTINGS, TinyHybrid
from tests.tiny.llama import CHATML, LLAMA3_ROPE, TinyLlama, vocabulary
from tests.tiny.mamba import NEMOTRON_H_LATENT

#: Models whose other tests write their files by hand.
TINY: dict[str, Any] = {
    "llama": TinyLlama(),
    "llama 3": TinyLlama(tied=True, rope_scaling=LLAMA3_ROPE),
    "mixtral": TinyLlama(experts=4),
}


@pytest.mark.parametrize("name", TINY)
def test_converted_model_computes_the_log_probabilities_of_transformers(name: str, tmp_path: Path) -> None:
    theirs = original(TINY[name])
    convert(saved(tmp_path / "checkpoint", theirs), tmp_path / "model.gguf", FileType.F32)
    ours = load_model(tmp_path / "model.gguf")
    tokens = random_tokens(ours, 40, 3)
    check_close(ours, our_log_probabilities(ours, tokens, [40]), reference_log_probabilities(theirs, tokens))


@pytest.mark.parametrize(
    ("changes", "lacking"),
    [
        ({}, ()),
        ({"sliding_window_pattern": 2}, ("layer_types",)),  # as in the first publications
        ({}, ("tie_word_embeddings",)),  # tied by default in Gemma, unless the output differs
    ],
    ids=["layer by layer", "every second", "tied"],
)
def test_windows_and_output_of_gemma3_are_those_of_transformers(
    changes: dict[str, Any], lacking: tuple[str, ...], tmp_path: Path
) -> None:
    theirs = original(TinyGemma3(pattern=2, tied=False))
    folder = saved(tmp_path / "checkpoint", theirs)
    config = json.loads((folder / "config.json").read_text()) | changes
    kept = {name: value for name, value in config.items() if name not in lacking}
    (folder / "config.json").write_text(json.dumps(kept))
    convert(folder, tmp_path / "m.gguf", FileType.F32)
    ours = load_model(tmp_path / "m.gguf")
    tokens = random_tokens(ours, 40, 3)
    check_close(ours, our_log_probabilities(ours, tokens, [40]), reference_log_probabilities(theirs, tokens))


@pytest.mark.parametrize("said", [{}, {"full_attention_interval": 3}], ids=["not said", "said"])
def test_qwen3_next_without_a_list_of_layers_attends_at_its_interval(
    said: dict[str, int], tmp_path: Path
) -> None:
    theirs = original(TinyHybrid("qwen3_next", {**SETTINGS, **EXPERTS, **said, "num_hidden_layers": 5}))
    folder = saved(tmp_path / "checkpoint", theirs)
    config = json.loads((folder / "config.json").read_text()) | said
    assert config.pop("layer_types").index("full_attention") == (2 if said else 3)
    (folder / "config.json").write_text(json.dumps(config))
    convert(folder, tmp_path / "m.gguf", FileType.F32)
    ours = load_model(tmp_path / "m.gguf")
    tokens = random_tokens(ours, 40, 3)
    check_close(ours, our_log_probabilities(ours, tokens, [40]), reference_log_probabilities(theirs, tokens))


def test_config_and_tokenizer_become_metadata(tmp_path: Path) -> None:
    folder = saved(tmp_path / "Tiny", original(TinyLlama()))
    save_tokenizer(folder, LLAMA3_CUT)
    seen: list[tuple[int, int]] = []
    convert(folder, tmp_path / "m.gguf", report=lambda *step: seen.append(step))
    assert seen[-1][0] == seen[-1][1] > 0
    fields = {key: field.contents() for key, field in GGUFReader(tmp_path / "m.gguf").fields.items()}
    config = original(TinyLlama()).config
    assert fields["general.architecture"] == "llama"
    assert fields["general.name"] == "Tiny"
    assert fields["general.file_type"] == FileType.F16
    assert fields["llama.block_count"] == config.num_hidden_layers
    assert fields["llama.attention.head_count_kv"] == config.num_key_value_heads
    assert fields["llama.rope.freq_base"] == config.rope_parameters["rope_theta"]
    assert fields["tokenizer.ggml.tokens"] == vocabulary()
    assert fields["tokenizer.ggml.token_type"][-4:] == [3, 3, 3, 3]
    assert fields["tokenizer.ggml.pre"] == "llama-bpe"
    assert fields["tokenizer.ggml.bos_token_id"] == vocabulary().index("<|begin|>")
    assert fields["tokenizer.ggml.add_bos_token"] is True
    assert fields["tokenizer.ggml.eos_token_ids"] == [
        vocabulary().index(text) for text in ("<|end|>", "<|im_end|>")
    ]
    assert fields["tokenizer.chat_template"] == CHATML


def test_tokenizer_encodes_as_the_published_one(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    folder = saved(tmp_path / "Tiny", original(TinyLlama()))
    convert(folder, tmp_path / "m.gguf")
    ours, theirs = (
        load_model(tmp_path / "m.gguf").tokenizer,
        Tokenizer.from_file(str(folder / "tokenizer.json")),
    )
    for text in ("hello world", "once upon a time, the story  ended.\n\n1234 Übung 🦙", "<|im_start|>user"):
        assert ours.encode(text) == theirs.encode(text).ids


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bit_weights_are_kept_exactly(dtype: str, tmp_path: Path) -> None:
    import torch

    model = TinyLlama().build().to(getattr(torch, dtype))
    convert(saved(tmp_path / "checkpoint", model), tmp_path / "m.gguf")
    with open_gguf(tmp_path / "m.gguf") as file:
        assert file.tensor("blk.0.attn_v.weight").type.name == {"bfloat16": "BF16", "float16": "F16"}[dtype]
        expected = model.model.layers[0].self_attn.v_proj.weight.detach().float().numpy()
        np.testing.assert_array_equal(file.array("blk.0.attn_v.weight"), expected.astype(np.float32))
        assert file.tensor("blk.0.attn_norm.weight").type is GGMLType.F32


def test_quantised_target_type_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "checkpoint", original(TinyLlama()))
    with pytest.raises(ConversionError, match="converted to F32, F16 or BF16, not Q4_K_M; quantize it later"):
        convert(folder, tmp_path / "m.gguf", FileType.Q4_K_M)


def test_prediction_head_becomes_another_layer(tmp_path: Path) -> None:
    """Nothing runs this head, GLM-OCR's. Heads that run are compared with torch in their own tests."""
    tiny = TinyHeads(MODELS["glm4"])
    theirs = original(tiny)
    convert(save_heads(tmp_path / "checkpoint", tiny, theirs), tmp_path / "ours.gguf", FileType.F32)
    count = theirs.config.num_hidden_layers
    head = {f"blk.{count - 1}.{name}.weight": values for name, values in tiny.parts(count - 1).items()}
    expected = converted(theirs).tensors | head
    with open_gguf(tmp_path / "ours.gguf") as file:
        assert file.tensors.keys() == expected.keys()
        for tensor, values in expected.items():
            np.testing.assert_array_equal(file.array(tensor), values, err_msg=tensor)
        assert file.metadata["glm4.nextn_predict_layers"] == 1
        assert file.metadata["glm4.block_count"] == count


def test_two_layers_of_a_nemotron_head_become_one(tmp_path: Path) -> None:
    """The model ignores the head when it computes logits."""
    theirs = original(NEMOTRON_H_LATENT)
    folder = save_nemotron_head(tmp_path / "checkpoint", theirs)
    convert(folder, tmp_path / "m.gguf", FileType.F32)
    head = load_file(folder / "model.safetensors")
    with open_gguf(tmp_path / "m.gguf") as file:
        count = theirs.config.num_hidden_layers
        keys = "block_count", "nextn_predict_layers", "attention.head_count_kv", "feed_forward_length"
        found = [file.metadata[f"nemotron_h_moe.{key}"] for key in keys]
        assert [each if isinstance(each, int) else list(each) for each in found] == [
            count + 1, 1, [0, 0, 2, 0, 2], [0, 32, 0, 32, 32],
        ]  # fmt: skip
        for name, published in {
            "nextn.eh_proj": "0.eh_proj", "nextn.enorm": "0.enorm", "nextn.hnorm": "0.hnorm",
            "attn_norm": "0.norm", "attn_v": "0.mixer.v_proj", "post_attention_norm": "1.norm",
            "ffn_latent_down": "1.mixer.fc1_latent_proj", "nextn.shared_head_norm": "1.final_layernorm",
        }.items():  # fmt: skip
            values = file.array(f"blk.{count}.{name}.weight")
            np.testing.assert_array_equal(values, head[f"mtp.layers.{published}.weight"], err_msg=name)
    ours = load_model(tmp_path / "m.gguf")
    tokens = random_tokens(ours, 24, 3)
    check_close(ours, our_log_probabilities(ours, tokens, [24]), reference_log_probabilities(theirs, tokens))
