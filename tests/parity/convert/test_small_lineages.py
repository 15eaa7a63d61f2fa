"""Decoders of lineages with one or two architectures, converted by us and by llama.cpp's converter."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from puna.convert import convert
from puna.gguf import FileType
from tests.model.models.parity import original
from tests.model.models.test_decoders import MODELS
from tests.parity.convert.conversion import PEERS, SMALL, UNKNOWN, Lineage, Published, theirs
from tests.tiny.heads import TinyHeads, save_heads
from tests.tiny.minimax import MINIMAX_M3, save_published

pytestmark = PEERS


def _glm_ocr(config: dict[str, Any]) -> dict[str, Any]:
    text = config["text_config"]
    return {
        "text_config": {**text, "rope_parameters": {**text["rope_parameters"], "partial_rotary_factor": 1.0}}
    }


SMALL_LINEAGES = Lineage(
    (SMALL,),
    published={
        "Cohere2ForCausalLM": Published(lambda config: {"rotary_pct": 1.0}),
        "Glm4MoeForCausalLM": Published(lambda config: {"num_nextn_predict_layers": 0}),
        "GlmOcrForConditionalGeneration": Published(_glm_ocr),
    },
    # Theirs ignores some settings of variations, or reads those of older folders, and leaves out what its
    # readers assume.
    differing={
        "bloom": {"context_length"},
        "chatglm": {
            "attention.key_length",
            "attention.value_length",
            "attention.layer_norm_rms_epsilon",
            "context_length",
            "rope.dimension_count",
            "rope.freq_base",
        },
        "codeshell": {
            "feed_forward_length",
            "rope.dimension_count",
            "rope.freq_base",
            "rope.scaling.factor",
            "rope.scaling.type",
        },
        "deepseek": {"expert_weights_scale", "rope.scaling.type"},
        "dots1": {"expert_gating_func", "vocab_size"},
        "exaone-moe": {"expert_gating_func", "leading_dense_block_count", "rope.scaling.type"},
        "falcon": {
            "context_length",
            "rope.freq_base",
            "rope.scaling.factor",
            "rope.scaling.type",
            "rope.scaling.original_context_length",
        },
        "granite_swa": {"attention.rope_pattern", "expert_feed_forward_length"},
        "hy_v3": {"leading_dense_block_count", "vocab_size"},
        "laguna": {
            "attention.sliding_window",
            "attention.sliding_window_pattern",
            "rope.dimension_count_swa",
        },
        "mellum": {"attention.sliding_window", "attention.sliding_window_pattern", "vocab_size"},
        "minicpm": {"rope.dimension_count", "vocab_size"},
        "minicpm3": {"attention.value_length", "rope.freq_base"},
        "nemotron": {
            "attention.layer_norm_rms_epsilon",
            "rope.dimension_count",
            "rope.scaling.type",
            "vocab_size",
        },
        "orion": {"rope.dimension_count", "rope.freq_base"},
        "phi2": {"attention.head_count_kv", "feed_forward_length", "rope.freq_base"},
        "stablelm": {"rope.freq_base"},
        "starcoder": {"feed_forward_length", "hidden_activation"},
        "xverse": {"vocab_size"},
        "ernie4_5-moe": {"expert_shared_feed_forward_length"},
        "hunyuan-dense": {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"},
        "minimax-m2": {"expert_gating_func"},
        # Our readers and theirs assume different values where it is missing, so ours always writes it.
        "mistral3": {"attention.temperature_scale"},
        "starcoder2": {"attention.sliding_window"},
    },
    failing={
        **dict.fromkeys(
            ("baichuan", "baichuan rotated", "baichuan alibi"),
            "one of its functions calls itself without end",
        ),
        **dict.fromkeys(("bitnet", "bitnet-b1.58"), "it maps other names of norms, and no output"),
        **dict.fromkeys(
            ("cohere2moe by softmax, RMS norms, untied", "hunyuan-moe tied, by layer"),
            "it takes a tensor without an axis for a list",
        ),
        "exaone": "it maps the names of the first folders",
        **dict.fromkeys(
            (
                "gpt2",
                "gpt2 untied, five heads",
                "gptneox",
                "gptneox one after the other, tied",
                "falcon",
                "falcon biased, keys for each head, untied",
                "hunyuan-moe",
            ),
            "it needs settings or shapes of older folders",
        ),
        "internlm2": "it splits biases like weights",
        "minicpm3 straight queries, small values, untied": "it needs short queries",
        **dict.fromkeys(
            (name for name in MODELS if name.startswith("minimax-m3")),
            "it converts whole models as published, which a test of its own does",
        ),
        **dict.fromkeys(("mpt", "mpt limited, five heads, untied"), "it knows another name of the class"),
        "stablelm in parallel, normed, biased": "it maps older names of norms",
        "starcoder, keys for each head, untied": "it leaves each head's queries, keys and values together",
    },
)


@pytest.mark.parametrize("name", SMALL_LINEAGES.decoders)
def test_keys_and_tensors_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    # Theirs reads the values of Jais's slopes.
    options = ("--no-lazy",) if re.match(r"jais\b", name) else ()
    SMALL_LINEAGES.check_decoder(name, tmp_path, *options)


@pytest.mark.parametrize("name", SMALL_LINEAGES.heads)
def test_prediction_heads_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    SMALL_LINEAGES.check_heads(name, tmp_path)


def test_prediction_head_of_glm_ocr_is_that_of_llama_cpp(tmp_path: Path) -> None:
    """Only the text model is converted."""
    tiny = TinyHeads(MODELS["glm4"])
    folder = save_heads(tmp_path / "checkpoint", tiny, original(tiny))
    path = folder / "config.json"
    config = json.loads(path.read_text()) | UNKNOWN | {"architectures": ["GlmOcrForConditionalGeneration"]}
    path.write_text(json.dumps(config))
    convert(folder, tmp_path / "ours.gguf", FileType.F32)
    SMALL_LINEAGES.check_same(tmp_path / "ours.gguf", theirs(folder, tmp_path / "theirs.gguf"))


def test_published_minimax_m3_is_that_of_llama_cpp(tmp_path: Path) -> None:
    folder = save_published(tmp_path / "published", original(MINIMAX_M3))
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | UNKNOWN))
    convert(folder, tmp_path / "ours.gguf", FileType.F32)
    SMALL_LINEAGES.check_same(tmp_path / "ours.gguf", theirs(folder, tmp_path / "theirs.gguf"))


@pytest.mark.parametrize("name", ["glm4v", "glm4v, experts", "glmocr", "mistral3"])
def test_vision_models_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    SMALL_LINEAGES.check_vision(name, tmp_path)
