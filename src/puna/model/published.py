"""What published models call the modules of a layer: of use to who converts them, or adapters of them."""

from __future__ import annotations

from typing import Final

#: Linears of a layer, and what they are called in files.
LINEARS: Final = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}  # fmt: skip

#: Architectures whose linears have these names, by whether their files have rows of queries and keys in
#: another order than transformers: the halves it rotates lie beside each other.
REORDERED: Final = frozenset({"llama", "granite", "granitemoe", "granitehybrid", "mistral3", "smollm3"})
AS_THEY_ARE: Final = frozenset({
    "cohere2", "command-r", "ernie4_5", "ernie4_5-moe", "exaone4", "gemma", "gemma2", "gemma3", "gemma3n",
    "gemma4", "glm4moe", "gpt-oss", "hunyuan-dense", "mimo2", "minimax-m2", "olmo2", "olmo3", "olmoe", "phi3",
    "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3next", "qwen3vl", "qwen3vlmoe", "seed_oss",
    "starcoder2",
})  # fmt: skip

#: What is in names of modules that see or hear, not of the text model.
_ELSEWHERE: Final = (
    "vision", "visual", "audio", "projector", "patch_embed", "image_newline", "merger", "embed_vision",
    "connector",
)  # fmt: skip


def is_of_another_sense(name: str) -> bool:
    """Whether a module is of what sees or hears."""
    return any(part in name for part in _ELSEWHERE)
