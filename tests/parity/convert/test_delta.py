"""Qwen3-Next, Qwen 3.5 and 3.8, Kimi Linear and GLM 5.3 Flash, converted by us and by llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.model.models.test_decoders import MODELS
from tests.parity.convert.conversion import PEERS, UNKNOWN, Lineage, Published

pytestmark = PEERS


def _kimi(config: dict[str, Any]) -> dict[str, Any]:
    attends = [i for i, kind in enumerate(config["layer_types"], 1) if kind == "full_attention"]
    linear = {
        "full_attn_layers": attends, "head_dim": config["linear_head_dim"],
        "short_conv_kernel_size": config["linear_conv_kernel_dim"],
    }  # fmt: skip
    return {"linear_attn_config": linear}


def _glm(config: dict[str, Any]) -> dict[str, Any]:
    text = config["text_config"]
    linear = {
        "head_dim": text["linear_head_dim"], "num_heads": text["linear_num_heads"],
        "short_conv_kernel_size": text["linear_conv_kernel_dim"],
        "gate_lower_bound": text["linear_lower_bound"], "safe_gate": text["linear_lower_bound"] is not None,
    }  # fmt: skip
    dense = text["mlp_layer_types"].index("sparse")
    more = {"linear_attn_config": linear, "mla_use_nope": True, "first_k_dense_replace": dense}
    return {"text_config": text | more}


DELTA = Lineage(
    ("delta",),
    published={
        "KimiLinearForCausalLM": Published(
            _kimi, renamed={r"block_sparse_moe\.(gate|up|down)_proj": r"mlp.\1_proj"}
        ),
        "Glm5NextForConditionalGeneration": Published(_glm),
        "Qwen4ExpForCausalLM": Published(
            lambda config: {
                **UNKNOWN,
                "layer_types": [kind.replace("indexed", "full") for kind in config["layer_types"]],
            }
        ),
    },
    differing={
        "glm5-next": {"expert_gating_func", "expert_group_count", "expert_group_used_count"},
        "kimi-linear": {"expert_gating_func", "expert_weights_norm"},
        "qwen35": {"rope.dimension_sections"},
        "qwen35moe": {"rope.dimension_sections"},
        # Of several tokens that end a text, transformers begins n-grams anew after the first.
        "qwen4exp": {"rope.dimension_sections", "ple.eos_token_id"},
    },
    failing=dict.fromkeys(
        (name for name in MODELS if name.startswith("bailingmoe3")), "it does not know the class"
    ),
)


@pytest.mark.parametrize("name", DELTA.decoders)
def test_keys_and_tensors_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    DELTA.check_decoder(name, tmp_path, *(["--no-mtp"] if name.startswith("qwen3") else []))


@pytest.mark.parametrize("name", DELTA.heads)
def test_prediction_heads_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    DELTA.check_heads(name, tmp_path)


@pytest.mark.parametrize("name", ["qwen35"])
def test_vision_towers_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    DELTA.check_vision(name, tmp_path, text=False)
