"""Tiny models of Jina as they are published: names of modules, settings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.convert.checkpoints import save_words
from tests.tiny_encoders import SIZES
from tests.tiny_jina import HEADS, HIDDEN, TinyJinaBertV2

_MODULES = {
    "token_embd_norm": "embeddings.LayerNorm", "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings", "attn_q_norm": "attention.self.layer_norm_q",
    "attn_k_norm": "attention.self.layer_norm_k", "attn_q": "attention.self.query",
    "attn_k": "attention.self.key", "attn_v": "attention.self.value",
    "attn_output_norm": "attention.output.LayerNorm", "attn_output": "attention.output.dense",
    "attn_norm_2": "layer_norm_1",
}  # fmt: skip
#: Of the feed-forward half, by its kind.
_KINDS = {
    "gated": {"layer_output_norm": "mlp.layernorm", "ffn_down": "mlp.wo"},
    "code": {
        "layer_output_norm": "layer_norm_2", "ffn_down": "mlp.down_layer", "ffn_up": "mlp.up_gated_layer",
    },
    "plain": {
        "layer_output_norm": "output.LayerNorm", "ffn_down": "output.dense", "ffn_up": "intermediate.dense",
    },
}  # fmt: skip


def save_jina2(folder: Path, tiny: TinyJinaBertV2, model: Any, prefix: str = "") -> Path:
    """`model` in `folder`, `prefix` before its names; returns the folder."""
    folder.mkdir()
    modules = _MODULES | _KINDS[tiny.kind]
    tensors: dict[str, torch.Tensor] = {}
    state = dict(model.state_dict())
    for layer in range(SIZES["num_hidden_layers"] if tiny.kind == "gated" else 0):
        halves = [state.pop(f"blk.{layer}.ffn_{half}.weight") for half in ("gate", "up")]
        tensors[f"{prefix}encoder.layer.{layer}.mlp.gated_layers.weight"] = torch.cat(halves)
    for name, values in state.items():
        module, kind = name.rsplit(".", 1)
        placed = re.fullmatch(r"blk\.(\d+)\.(.*)", module)
        within = f"encoder.layer.{placed[1]}." if placed else ""
        tensors[f"{prefix}{within}{modules[placed[2] if placed else module]}.{kind}"] = values
    for kind, size in (("weight", (HIDDEN, HIDDEN)), ("bias", (HIDDEN,))):  # of no use for vectors
        tensors[f"{prefix}pooler.dense.{kind}"] = torch.ones(size)
    save_file(tensors, folder / "model.safetensors")
    settings = {
        **SIZES, "architectures": ["JinaBertForMaskedLM"], "hidden_size": HIDDEN, "layer_norm_eps": 1e-12,
        "num_attention_heads": HEADS, "position_embedding_type": "alibi", "type_vocab_size": 2,
        "feed_forward_type": "original" if tiny.kind == "plain" else "geglu",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings))
    save_words(folder)
    return folder


TASKS = {"retrieval.query": "Represent the query: ", "text-matching": ""}
ALPHA, RANK = 3.0, 4
_ADAPTED = ("Wqkv.weight", "out_proj.weight", "fc1.weight", "fc2.weight", "embeddings.weight")
_SETTINGS_3 = {
    "architectures": ["XLMRobertaModel"], "model_type": "as published", "lora_adaptations": list(TASKS),
    "lora_alpha": ALPHA, "lora_rank": RANK, "task_instructions": TASKS, "rotary_emb_base": 20000.0,
    "position_embedding_type": "rotary", "rope_parameters": None,
}  # fmt: skip


def _halves(name: str, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B of all tasks; of a table A has as many rows as the table."""
    generator = torch.Generator().manual_seed(sum(name.encode()))
    rows, columns = shape
    table = name.endswith("embeddings.weight")
    a = torch.randn(len(TASKS), *((rows, RANK) if table else (RANK, columns)), generator=generator) / 4
    b = torch.randn(len(TASKS), *((RANK, columns) if table else (rows, RANK)), generator=generator) / 4
    return a, b


def save_jina3(folder: Path, model: Any, prefix: str = "roberta.") -> Path:
    """The third embeddings, `model`, with an adapter for each of TASKS; returns the folder."""
    model.save_pretrained(folder)
    tensors: dict[str, torch.Tensor] = {}
    for name, values in load_file(folder / "model.safetensors").items():
        if name.endswith(_ADAPTED):
            within = f"{prefix}{name.removesuffix('weight')}parametrizations.weight."
            a, b = _halves(name, tuple(values.shape))
            tensors |= {f"{within}original": values, f"{within}0.lora_A": a, f"{within}0.lora_B": b}
        else:
            tensors[prefix + name] = values
    pooler = f"{prefix}pooler.dense.parametrizations.weight."
    a, b = _halves("pooler", (64, 64))
    tensors |= {f"{pooler}original": torch.ones(64, 64), f"{pooler}0.lora_A": a, f"{pooler}0.lora_B": b}
    save_file(tensors, folder / "model.safetensors")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | _SETTINGS_3))
    return folder


def merged_jina3(folder: Path, model: Any, task: str) -> Any:
    """`model` with the adapter of a task in its weights, by way of `folder`."""
    model.save_pretrained(folder)
    number, tensors = list(TASKS).index(task), load_file(folder / "model.safetensors")
    for name, values in tensors.items():
        if name.endswith(_ADAPTED):
            a, b = (half[number] for half in _halves(name, tuple(values.shape)))
            added = a @ b if name.endswith("embeddings.weight") else b @ a
            tensors[name] = values + ALPHA / RANK * added
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return type(model).from_pretrained(folder, add_pooling_layer=False).float().eval()
