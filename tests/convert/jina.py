"""Tiny Jina models saved with the published module names and settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.tiny.words import save_words


def save_jina2(folder: Path, model: Any, architecture: str = "JinaBertForMaskedLM", prefix: str = "") -> Path:
    """Save `model` to `folder` with `prefix` before its tensor names; return the folder."""
    folder.mkdir()
    tensors = {prefix + name: values for name, values in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**vars(model.config), "architectures": [architecture]}))
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
    """Return A and B of all tasks; for embedding tables, A has the table's rows."""
    generator = torch.Generator().manual_seed(sum(name.encode()))
    rows, columns = shape
    table = name.endswith("embeddings.weight")
    a = torch.randn(len(TASKS), *((rows, RANK) if table else (RANK, columns)), generator=generator) / 4
    b = torch.randn(len(TASKS), *((RANK, columns) if table else (rows, RANK)), generator=generator) / 4
    return a, b


def save_jina3(folder: Path, model: Any, prefix: str = "roberta.") -> Path:
    """Save `model` as Jina Embeddings 3, with an adapter for each of TASKS; return the folder."""
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
    """Return `model` with the adapter of a task merged into its weights, using `folder` for files."""
    model.save_pretrained(folder)
    number, tensors = list(TASKS).index(task), load_file(folder / "model.safetensors")
    for name, values in tensors.items():
        if name.endswith(_ADAPTED):
            a, b = (half[number] for half in _halves(name, tuple(values.shape)))
            added = a @ b if name.endswith("embeddings.weight") else b @ a
            tensors[name] = values + ALPHA / RANK * added
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return type(model).from_pretrained(folder, add_pooling_layer=False).float().eval()
