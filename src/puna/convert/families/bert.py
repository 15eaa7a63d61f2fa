"""BERT and what is built like it: encoders."""

from __future__ import annotations

from typing import Final

from puna.convert.family import Family, Key, Place

_LAYER: Final = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
}  # fmt: skip
_NAMES: Final[dict[str, Place]] = {
    "bert.embeddings.word_embeddings": "token_embd",
    "bert.embeddings.position_embeddings": "position_embd",
    "bert.embeddings.token_type_embeddings": "token_types",
    "bert.embeddings.LayerNorm": "token_embd_norm",
    **{f"bert.encoder.layer.{{}}.{theirs}": f"blk.{{}}.{ours}" for theirs, ours in _LAYER.items()},
    "bert.embeddings.position_ids": None,
    "bert.pooler.dense": None,
    "cls.predictions": None,
}
_KEYS: Final[dict[str, Key]] = {"attention.causal": lambda config: False}

FAMILIES: Final = (
    Family(
        hf=("BertModel", "BertForMaskedLM"), architecture="bert", keys=_KEYS, names=_NAMES, prefix="bert.",
        pre="jina-v2-en",
    ),
)  # fmt: skip
