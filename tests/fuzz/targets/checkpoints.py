"""Published model folders and importance matrices with tampered files: converted and read."""

from __future__ import annotations

import json
import random
import struct
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np

from puna.convert import convert
from puna.errors import PunaError
from puna.quantize import read_importance
from tests.convert.checkpoints import save_tokenizer
from tests.fuzz.case import Bounds
from tests.fuzz.hostile_bytes import damaged
from tests.tiny.llama import vocabulary

BOUNDS = Bounds(seconds=4.0, memory=64 << 20)

_SIZES = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
_LAYER = {
    "self_attn.q_proj": (8, 8), "self_attn.k_proj": (8, 8), "self_attn.v_proj": (8, 8),
    "self_attn.o_proj": (8, 8), "mlp.gate_proj": (12, 8), "mlp.up_proj": (12, 8), "mlp.down_proj": (8, 12),
    "input_layernorm": (8,), "post_attention_layernorm": (8,),
}  # fmt: skip


def fuzz(dice: random.Random, folder: Path) -> None:
    source = folder / "checkpoint"
    source.mkdir()
    save_tokenizer(source)
    settings = {"architectures": ["LlamaForCausalLM"], **_SIZES, "vocab_size": len(vocabulary())}
    (source / "config.json").write_text(json.dumps({**settings, "rms_norm_eps": 1e-5}))
    (source / "model.safetensors").write_bytes(_weights())
    for _ in range(dice.randint(1, 2)):
        file = dice.choice(sorted(source.iterdir()))
        file.write_bytes(damaged(dice, file.read_bytes()))
    with suppress(PunaError):
        convert(source, folder / "m.gguf")
    old = struct.pack("<ii", 1, 1) + b"w" + struct.pack("<ii3f", 1, 3, 1.0, 2.0, 3.0)
    (folder / "imatrix.dat").write_bytes(damaged(dice, old))
    with suppress(PunaError):
        read_importance(folder / "imatrix.dat")


@cache
def _weights() -> bytes:
    shapes = {f"model.layers.0.{name}.weight": shape for name, shape in _LAYER.items()}
    shapes |= {"model.embed_tokens.weight": (len(vocabulary()), 8), "model.norm.weight": (8,)}
    header, data = {}, b""
    for name, shape in shapes.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += np.ones(shape, "<f4").tobytes()
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data
