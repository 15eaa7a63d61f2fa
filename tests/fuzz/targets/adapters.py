"""Hostile adapters, as GGUF and PEFT files: read for a model, and loaded beside its weights."""

from __future__ import annotations

import json
import random
from pathlib import Path

from puna.errors import PunaError
from puna.gguf import open_gguf
from puna.model.adapters.adapters import read_adapter
from puna.model.load import load_model
from puna.options import AdapterFile
from tests.fuzz.case import Bounds
from tests.fuzz.hostile_bytes import damaged
from tests.tiny.adapters import TinyAdapter
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

BOUNDS = Bounds(seconds=5.0, memory=256 << 20)

_NAMES = {"q_proj": "attn_q", "down_proj": "ffn_down"}
_SETTINGS = (
    {"r": 0}, {"r": -1}, {"r": 1e300}, {"lora_alpha": 0}, {"lora_alpha": "x"}, {"lora_alpha": None},
    {"alpha_pattern": {"q_proj": 1}}, {"alpha_pattern": {"q_proj": -1}}, {"alpha_pattern": [[]]},
    {"alpha_pattern": {"(": 1}}, {"alpha_pattern": {"(?:(?:.|.)*)*_": 1}}, {"alpha_pattern": {r"(?R)": 1}},
    {"alpha_pattern": {f"(a|{i}|.*)*": 1 for i in range(9000)}}, {"init_lora_weights": "pissa"},
    {"use_dora": 1}, {"use_rslora": True}, {"peft_type": {}}, {"bias": "all"}, {"x": "y" * 300_000},
)  # fmt: skip


_ADAPTER, _CONFIG = TinyAdapter(tuple(_NAMES), rank=2), TinyLlama()
#: Built before a case's time begins, since importing transformers takes seconds on a slow machine.
_MODEL = _CONFIG.build()


def fuzz(dice: random.Random, folder: Path) -> None:
    model = tiny_llama_gguf(folder / "model.gguf", _CONFIG)
    if dice.random() < 0.5:
        path = _ADAPTER.write_gguf(folder / "a.gguf", "llama", _MODEL, _NAMES)
        path.write_bytes(damaged(dice, path.read_bytes()))
    else:
        path = _ADAPTER.write_peft(folder / "a", _MODEL, **dice.choice(({}, *_SETTINGS)))
        file = path / dice.choice(("adapter_config.json", "adapter_model.safetensors"))
        if dice.random() < 0.2:
            file.write_text(json.dumps(dice.choice((None, [], {}, 7, [{}] * 1000))))
        elif dice.random() < 0.8:
            file.write_bytes(damaged(dice, file.read_bytes()))
    try:
        with open_gguf(model) as opened:
            read_adapter(path, opened)
    except PunaError:
        return
    load_model(model, adapters=[AdapterFile(str(path))])
