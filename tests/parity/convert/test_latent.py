"""Models with latent attention, converted by us and by llama.cpp's converter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from puna.convert import convert, convert_tower
from puna.gguf import FileType
from tests.convert.checkpoints import saved
from tests.model.models.parity import original
from tests.parity.convert.conversion import PEERS, Lineage, Published, theirs
from tests.tiny.vision.models import VISION_MODELS

pytestmark = PEERS

LATENT = Lineage(
    ("latent",),
    published={
        "Mistral4ForCausalLM": Published(
            lambda config: {"architectures": ["Mistral3ForConditionalGeneration"]}
        ),
        "HYV4ForCausalLM": Published(
            renamed={
                r"\.hc_pre\.hc_(attn|mlp)_layer\.": r".hc_\1_layer.hc_pre.",
                r"\.hc_pre\.hc_head\.": ".hc_head.",
                r"mlp\.(shared_experts\.)?linear_gate": r"mlp.\1gate_proj",
                r"self_attn\.linear_gate": "self_attn.gate_proj",
            }
        ),
    },
    differing={
        **{name: {"expert_gating_func"} for name in ("deepseek2", "deepseek32", "glm-dsa")},
        "hy_v4": {"expert_group_count", "expert_group_used_count"},  # theirs leaves out groups
        "mistral4": {"attention.temperature_scale"},
    },
)
#: Keys of DeepSeek-OCR's tower that they get wrong: an invented width, and another model's epsilon.
OCR = {"vision.feed_forward_length", "vision.attention.layer_norm_epsilon"}
#: The key of their text model that says nothing is rotated.
OCR_TEXT = {"rope.dimension_count"}


@pytest.mark.parametrize("name", LATENT.decoders)
def test_keys_and_tensors_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    LATENT.check_decoder(name, tmp_path)


def test_deepseek_ocr_is_that_of_llama_cpp(tmp_path: Path) -> None:
    tiny = VISION_MODELS["deepseek-ocr"]()
    tiny.layers = 4  # theirs rejects numbers in names beyond the number of layers
    folder = saved(tmp_path / "checkpoint", tiny.published(original(tiny)))
    pictures = {**tiny.pictures, "image_seq_length": 4}
    (folder / "preprocessor_config.json").write_text(json.dumps(pictures))
    for kind, apart, options in ((convert_tower, OCR, ["--mmproj"]), (convert, OCR_TEXT, [])):
        mine, other = tmp_path / f"{kind.__name__}.gguf", tmp_path / f"their {kind.__name__}.gguf"
        kind(folder, mine, FileType.F32)
        LATENT.check_same(mine, theirs(folder, other, *options), apart=apart)
