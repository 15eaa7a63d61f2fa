"""llama.cpp's names of a SigLIP's tensors, which several vision models have."""

from __future__ import annotations

from tests.tiny.vision.common import Tensors, renamed

_LAYER = {
    "layer_norm1": "ln1", "layer_norm2": "ln2", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_out", "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}  # fmt: skip
_OUTER = {
    "embeddings.patch_embedding": "patch_embd", "embeddings.position_embedding": "position_embd",
    "post_layernorm": "post_ln",
}  # fmt: skip


def siglip_tensors(state: Tensors, prefix: str, layers: int) -> Tensors:
    """Return the tensors of `state` with prefix `prefix`, under their names beside a text model."""
    tensors = renamed(state, _OUTER, prefix, "v.")
    for i in range(layers):
        tensors |= renamed(state, _LAYER, f"{prefix}encoder.layers.{i}.", f"v.blk.{i}.")
    return tensors
