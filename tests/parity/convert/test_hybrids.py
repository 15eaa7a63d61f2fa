"""Models with state spaces or short convolutions, converted by us and by llama.cpp's converter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from puna.convert import convert, convert_tower
from puna.gguf import FileType
from tests.convert.checkpoints import save_nemotron_head
from tests.model.models.parity import original
from tests.parity.convert.conversion import (
    PEERS,
    UNKNOWN,
    WITHIN,
    Lineage,
    Published,
    check_ears,
    theirs,
    with_parts,
)
from tests.tiny.audio.lfm2_audio import TinyLfm2Audio
from tests.tiny.lfm2 import TinyLfm2
from tests.tiny.mamba import NEMOTRON_H_LATENT

pytestmark = PEERS


def _nemotron(config: dict[str, Any]) -> dict[str, Any]:
    kinds = config["layers_block_type"]
    if "moe" in kinds:
        return {}
    letters = {"linear_attention": "M", "mlp": "-", "full_attention": "*"}
    lacking = "layers_block_type", "num_experts_per_tok", "n_routed_experts", "n_group", "topk_group"
    return {
        **UNKNOWN, **dict.fromkeys(lacking), "num_hidden_layers": len(kinds),
        "hybrid_override_pattern": "".join(letters[kind] for kind in kinds),
    }  # fmt: skip


def _granite(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "layer_types": [{"full_attention": "attention"}.get(kind, "mamba") for kind in config["layer_types"]]
    }


HYBRIDS = Lineage(
    ("convolutional", "hybrids", "mamba"),
    published={
        "GraniteMoeHybridForCausalLM": Published(_granite),
        "Lfm2VlForConditionalGeneration": Published(
            lambda config: with_parts(config, text="Lfm2ForCausalLM"), renamed=WITHIN
        ),
        "NemotronHForCausalLM": Published(_nemotron),
    },
    differing={
        "falcon-h1": {"rope.dimension_count"},
        "granitehybrid": {"rope.scaling.finetuned", "context_length"},
        "granitemoe": {"expert_feed_forward_length"},
        "jamba": {"expert_count", "expert_used_count", "vocab_size"},
        "nemotron_h": {"attention.layer_norm_rms_epsilon"},
        "nemotron_h_moe": {"attention.layer_norm_rms_epsilon"},
    },
    failing={"mamba2": "assumes that the inner size is twice the hidden size"},
)


@pytest.mark.parametrize("name", HYBRIDS.decoders)
def test_keys_and_tensors_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    HYBRIDS.check_decoder(name, tmp_path)


def test_prediction_head_of_nemotron_is_that_of_llama_cpp(tmp_path: Path) -> None:
    folder = save_nemotron_head(tmp_path / "checkpoint", original(NEMOTRON_H_LATENT))
    convert(HYBRIDS.as_published(folder), tmp_path / "ours.gguf", FileType.F32)
    HYBRIDS.check_same(tmp_path / "ours.gguf", theirs(folder, tmp_path / "theirs.gguf"))


@pytest.mark.parametrize("name", ["lfm2"])
def test_vision_models_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    HYBRIDS.check_vision(name, tmp_path, sizes={"patch_size": 16})  # the only size theirs knows


def test_lfm2_audio_is_that_of_llama_cpp(tmp_path: Path) -> None:
    tiny = TinyLfm2Audio(TinyLfm2(), layers=7)  # theirs rejects numbers in names beyond that of layers
    checkpoint = tiny.save(tmp_path / "checkpoint", original(tiny))
    assert convert_tower(checkpoint, tmp_path / "ours.gguf", FileType.F32)
    convert(checkpoint, tmp_path / "text.gguf", FileType.F32)
    text = theirs(checkpoint, tmp_path / "their text.gguf")
    # It does not look for special tokens among the text's settings.
    HYBRIDS.check_same(tmp_path / "text.gguf", text, apart={"tokenizer.ggml.padding_token_id"})
    other = theirs(checkpoint, tmp_path / "theirs.gguf", "--mmproj")
    check_ears(tmp_path / "ours.gguf", other, {"feed_forward_length"})  # theirs is that of a state
