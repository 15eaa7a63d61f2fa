"""Qwen 2 and 3 and MiMo-V2, converted by us and by llama.cpp's converter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from puna.convert import convert
from puna.gguf import FileType
from tests.model.models.parity import original
from tests.parity.convert.conversion import PEERS, UNKNOWN, Lineage, Published, theirs
from tests.tiny.decoders import TinyDecoder
from tests.tiny.rerankers import QWEN3, QWEN3_TIED, save_qwen3_reranker

pytestmark = PEERS


def _mimo(config: dict[str, Any]) -> dict[str, Any]:
    same = "head_dim", "num_attention_heads", "v_head_dim"
    kinds = config["layer_types"]
    return {
        **UNKNOWN, **{f"swa_{name}": config[name] for name in same}, "topk_method": "noaux_tc",
        "swa_num_key_value_heads": 2 * config["num_key_value_heads"],
        "hybrid_layer_pattern": [int(kind == "sliding_attention") for kind in kinds],
        "layer_types": None, "rope_parameters": None, "rope_theta": 5e6, "swa_rope_theta": 1e4,
        "partial_rotary_factor": 0.5,
        "sliding_window": config["sliding_window"] - 1,
    }  # fmt: skip


QWEN = Lineage(
    ("qwen",),
    published={
        "MiMoV2FlashForCausalLM": Published(_mimo),
        "Qwen2ForCausalLM": Published(lambda config: UNKNOWN),
        "Qwen3VLMoeForConditionalGeneration": Published(
            transposed=("experts.gate_up_proj", "experts.down_proj")
        ),
    },
    differing={
        "mimo2": {  # theirs always counts three heads
            "expert_gating_func", "attention.head_count_kv", "attention.sliding_window_pattern",
            "block_count", "nextn_predict_layers", "expert_weights_scale",
        },
    },
)  # fmt: skip
#: Keys that theirs omits; ours writes them because the tiny models differ from what readers assume.
ALSO_SAID = {"qwen25vl": {"vision.window_size"}}


@pytest.mark.parametrize("name", QWEN.decoders)
def test_keys_and_tensors_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    QWEN.check_decoder(name, tmp_path)


@pytest.mark.parametrize("tiny", [QWEN3, QWEN3_TIED], ids=["apart", "tied"])
def test_qwens_reranker_is_that_of_llama_cpp(tiny: TinyDecoder, tmp_path: Path) -> None:
    """Theirs also lists the chat templates, which no reader needs."""
    folder = save_qwen3_reranker(tmp_path / "checkpoint", original(tiny))
    convert(folder, tmp_path / "ours.gguf", FileType.F32)
    out = theirs(folder, tmp_path / "theirs.gguf")
    QWEN.check_same(tmp_path / "ours.gguf", out, apart=("tokenizer.chat_templates",))


@pytest.mark.parametrize("name", ["qwen25vl", "qwen2vl", "qwen3vl"])
def test_vision_models_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    QWEN.check_vision(name, tmp_path, apart=ALSO_SAID.get(name, ()))


@pytest.mark.parametrize("name", ["qwen3vlmoe"])
def test_vision_towers_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    """The text is left out: square experts, as in the tiny model, do not show whether they are transposed."""
    QWEN.check_vision(name, tmp_path, text=False)
