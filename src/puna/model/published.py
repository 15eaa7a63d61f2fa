"""What published models call the modules of a layer: of use to who converts them, or adapters of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Linears of a layer, and what they are called in files.
LINEARS: Final = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}  # fmt: skip
#: Those that each expert has, which are a stack in files.
EXPERT_LINEARS: Final = {
    "mlp.experts.{}.gate_proj": "ffn_gate_exps", "mlp.experts.{}.up_proj": "ffn_up_exps",
    "mlp.experts.{}.down_proj": "ffn_down_exps", "block_sparse_moe.experts.{}.w1": "ffn_gate_exps",
    "block_sparse_moe.experts.{}.w3": "ffn_up_exps", "block_sparse_moe.experts.{}.w2": "ffn_down_exps",
}  # fmt: skip
#: Those by which text looks at images (Llama 3.2 Vision).
CROSS_LINEARS: Final = {f"cross_attn.{part}_proj": f"cross_attn_{part}_proj" for part in "qkvo"}
#: Those of T5, of its encoder and its decoder.
T5_LINEARS: Final = {
    **{f"SelfAttention.{part}": f"attn_{part}" for part in "qkvo"},
    **{f"EncDecAttention.{part}": f"cross_attn_{part}" for part in "qkvo"},
    "DenseReluDense.wi": "ffn_up", "DenseReluDense.wi_0": "ffn_gate", "DenseReluDense.wi_1": "ffn_up",
    "DenseReluDense.wo": "ffn_down",
}  # fmt: skip

#: Architectures whose linears have these names, by whether their files have rows of queries and keys in
#: another order than transformers: the halves it rotates lie beside each other.
REORDERED: Final = frozenset(
    {"llama", "granite", "granitemoe", "granitehybrid", "mistral3", "mllama", "smollm3"}
)
AS_THEY_ARE: Final = frozenset({
    "cohere2", "command-r", "ernie4_5", "ernie4_5-moe", "exaone4", "gemma", "gemma2", "gemma3", "gemma3n",
    "gemma4", "glm4moe", "gpt-oss", "hunyuan-dense", "mimo2", "minimax-m2", "olmo2", "olmo3", "olmoe", "phi3",
    "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3next", "qwen3vl", "qwen3vlmoe", "seed_oss",
    "starcoder2", "t5", "t5encoder",
})  # fmt: skip

#: Those whose published experts have rows of the gate and of up in turn.
ALTERNATING: Final = frozenset({"gpt-oss"})

#: What is in names of modules that see or hear, not of the text model.
_ELSEWHERE: Final = (
    "vision", "visual", "audio", "projector", "patch_embed", "image_newline", "merger", "embed_vision",
    "connector",
)  # fmt: skip


def neighbours(values: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows of each of `heads` so that what is rotated together are neighbours, not halves apart."""
    halves = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def is_of_another_sense(name: str) -> bool:
    """Whether a module is of what sees or hears."""
    return any(part in name for part in _ELSEWHERE)
