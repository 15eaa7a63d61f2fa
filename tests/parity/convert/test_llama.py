"""Llama 2 to 4, Mixtral and models built like them, converted by us and by llama.cpp's converter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.convert.conversion import PEERS, Lineage, Published, with_parts

pytestmark = PEERS

LLAMA = Lineage(
    ("llama", "llama4"),
    published={
        "Idefics3ForConditionalGeneration": Published(
            lambda config: with_parts(config, text="LlamaForCausalLM")
        ),
        "InternVLForConditionalGeneration": Published(
            lambda config: {
                **with_parts(config, text="LlamaForCausalLM", vision="InternVisionModel"),
                "min_dynamic_patch": 1,
                "max_dynamic_patch": 4,
            },
            renamed={r"^(?=vision_tower|multi_modal)": "model."},
        ),
    },
    # Our readers and theirs assume different values where a key is missing, so ours always writes it.
    differing={"llama4": {"attention.chunk_size", "attention.floor_scale", "attention.scale", "use_qk_norm"}},
)


@pytest.mark.parametrize("name", LLAMA.decoders)
def test_keys_and_tensors_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    LLAMA.check_decoder(name, tmp_path)


@pytest.mark.parametrize("name", ["idefics3", "internvl"])
def test_vision_models_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    LLAMA.check_vision(name, tmp_path)


@pytest.mark.parametrize("name", ["llama4"])
def test_vision_towers_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    """The text is left out: square experts, as in the tiny model, do not show whether they are transposed."""
    # Theirs gives the second norms the name of Gemma 4's.
    LLAMA.check_vision(name, tmp_path, text=False, called=(".ln2.", ".attn_post_norm."))
