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
from tests.tiny.heads import MODELS as HEADS
from tests.tiny.heads import TinyHeads, save_heads
from tests.tiny.minimax import MINIMAX_M3, save_published

pytestmark = PEERS


def _glm_ocr(config: dict[str, Any]) -> dict[str, Any]:
    text = config["text_config"]
    return {
        "text_config": {**text, "rope_parameters": {**text["rope_parameters"], "partial_rotary_factor": 1.0}}
    }


def _step(config: dict[str, Any]) -> dict[str, Any]:
    text = dict(config["text_config"])
    text["layer_types"] += text.pop("mtp_layer_types", None) or []
    kinds, ropes = text["layer_types"], text.pop("rope_parameters")
    heads = text.pop("num_sliding_attention_heads")
    del text["per_layer_config"]
    full = ropes.get("full_attention", {})
    own = ("rope_theta", "partial_rotary_factor")
    text["mlp_layer_types"] += text.pop("mtp_mlp_layer_types", None) or []
    sparse = [i for i, kind in enumerate(text.pop("mlp_layer_types")) if kind == "sparse"]
    text |= {
        "num_attention_groups": text.pop("num_key_value_heads"),
        "moe_num_experts": text.pop("n_routed_experts"),
        "moe_top_k": text.pop("num_experts_per_tok"), "moe_layers_enum": ",".join(map(str, sparse)),
        "rope_theta": [ropes[kind]["rope_theta"] for kind in kinds],
        "partial_rotary_factors": [ropes[kind].get("partial_rotary_factor", 1.0) for kind in kinds],
        "rope_scaling": {name: value for name, value in full.items() if name not in own},
        "attention_other_setting": {
            "attention_type": "sliding_attention", "num_attention_heads": heads,
            "num_attention_groups": config["text_config"]["num_key_value_heads"],
            "head_dim": text["head_dim"], "true_head_dim": text["head_dim"],
        },
        "norm_expert_weight": True, "moe_router_activation": "sigmoid", "use_moe_router_bias": True,
        "use_head_wise_attn_gate": True, "need_fp32_gate": True, "use_moe": True, "moe_every_n_layer": 1,
        "yarn_only_types": ["full_attention"], "zero_centered": True, "use_qk_norm": True,
    }  # fmt: skip
    return {"text_config": text | UNKNOWN, **UNKNOWN}


SMALL_LINEAGES = Lineage(
    (SMALL,),
    published={
        "Cohere2ForCausalLM": Published(lambda config: {"rotary_pct": 1.0}),
        "Glm4MoeForCausalLM": Published(lambda config: {"num_nextn_predict_layers": 0}),
        "GlmOcrForConditionalGeneration": Published(_glm_ocr),
        "Step3p7ForConditionalGeneration": Published(_step),
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
        "step35": {"moe_every_n_layers"},
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
        **dict.fromkeys(
            ("step35 biased, tied, windows everywhere", "step35 in part, full attention, one limit"),
            "it knows one share of rotation for each type of layer",
        ),
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


def test_prediction_heads_of_step_are_those_of_llama_cpp(tmp_path: Path) -> None:
    tiny = HEADS["step35"]
    checkpoint = SMALL_LINEAGES.as_published(save_heads(tmp_path / "checkpoint", tiny, original(tiny)))
    convert(checkpoint, tmp_path / "ours.gguf", FileType.F32)
    SMALL_LINEAGES.check_same(tmp_path / "ours.gguf", theirs(checkpoint, tmp_path / "theirs.gguf"))


@pytest.mark.parametrize("name", ["glm4v", "glm4v, experts", "glmocr", "mistral3"])
def test_vision_models_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    SMALL_LINEAGES.check_vision(name, tmp_path)


def test_the_tower_of_minimax_m3_is_that_of_llama_cpp(tmp_path: Path) -> None:
    sizes = {"hidden": 160, "heads": 2}  # theirs knows only heads of 80 values
    SMALL_LINEAGES.check_vision("minimax m3", tmp_path, text=False, sizes=sizes)
