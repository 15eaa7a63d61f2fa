"""Module names of published models, for converters and adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Linears of a layer, by their published names.
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
#: Linears of each expert, which are stacked in files.
EXPERT_LINEARS: Final = {
    "mlp.experts.{}.gate_proj": "ffn_gate_exps", "mlp.experts.{}.up_proj": "ffn_up_exps",
    "mlp.experts.{}.down_proj": "ffn_down_exps", "block_sparse_moe.experts.{}.w1": "ffn_gate_exps",
    "block_sparse_moe.experts.{}.w3": "ffn_up_exps", "block_sparse_moe.experts.{}.w2": "ffn_down_exps",
}  # fmt: skip
#: Linears of cross-attention to images (Llama 3.2 Vision).
CROSS_LINEARS: Final = {f"cross_attn.{part}_proj": f"cross_attn_{part}_proj" for part in "qkvo"}
#: Linears of T5's encoder and decoder.
T5_LINEARS: Final = {
    **{f"SelfAttention.{part}": f"attn_{part}" for part in "qkvo"},
    **{f"EncDecAttention.{part}": f"cross_attn_{part}" for part in "qkvo"},
    "DenseReluDense.wi": "ffn_up", "DenseReluDense.wi_0": "ffn_gate", "DenseReluDense.wi_1": "ffn_up",
    "DenseReluDense.wo": "ffn_down",
}  # fmt: skip

#: Name of the tanh approximation of GELU, in files too.
TANH_GELU: Final = "gelu_pytorch_tanh"

#: Parts of the names of modules outside the text model.
_ELSEWHERE: Final = (
    "vision", "visual", "audio", "projector", "patch_embed", "image_newline", "merger", "embed_vision",
    "connector",
)  # fmt: skip


def neighbours(values: NDArray[Any], heads: int) -> NDArray[Any]:
    """Reorder the rows of each of `heads` so that rotated pairs are neighbours, not half a head apart."""
    halves = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def is_of_another_sense(name: str) -> bool:
    """Whether a module belongs to a vision or audio tower."""
    return any(part in name for part in _ELSEWHERE)
