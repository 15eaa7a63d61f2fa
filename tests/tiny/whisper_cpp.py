"""Tiny Whisper models in the files of whisper.cpp, laid out as by its `convert-h5-to-ggml.py`."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from puna.gguf import GGMLType, quantize
from puna.tokenizer.bpe import byte_characters
from tests.tiny.llama import vocabulary
from tests.tiny.whisper import TinyWhisper

#: Modules of transformers and their names there.
_MODULES = {
    "self_attn.k_proj": "attn.key", "self_attn.q_proj": "attn.query", "self_attn.v_proj": "attn.value",
    "self_attn.out_proj": "attn.out", "self_attn_layer_norm": "attn_ln",
    "encoder_attn.k_proj": "cross_attn.key", "encoder_attn.q_proj": "cross_attn.query",
    "encoder_attn.v_proj": "cross_attn.value", "encoder_attn.out_proj": "cross_attn.out",
    "encoder_attn_layer_norm": "cross_attn_ln", "fc1": "mlp.0", "fc2": "mlp.2", "final_layer_norm": "mlp_ln",
}  # fmt: skip
_OTHERS = {
    "encoder.layer_norm": "encoder.ln_post", "decoder.layer_norm": "decoder.ln",
    "encoder.embed_positions.weight": "encoder.positional_embedding",
    "decoder.embed_positions.weight": "decoder.positional_embedding",
    "decoder.embed_tokens": "decoder.token_embedding",
}  # fmt: skip
#: Numbers of a file's types, and the version of quantised layouts.
FILE_TYPES = {GGMLType.F32: 0, GGMLType.F16: 1, GGMLType.Q5_0: 2008, GGMLType.Q8_0: 2007, GGMLType.Q4_0: 2002}


def base_tokens() -> list[bytes]:
    """Return the texts of all tokens before the special ones."""
    bytes_of = {character: byte for byte, character in enumerate(byte_characters())}
    return [bytes(bytes_of[character] for character in text) for text in vocabulary()]


def tensors_of(model: Any) -> dict[str, np.ndarray]:
    """Return the weights of transformers' model by their names there."""
    found = {}
    for name, values in model.state_dict().items():
        if name == "proj_out.weight":
            continue
        plain = name.removeprefix("model.")
        parts = plain.split(".")
        if parts[1] == "layers":
            plain = ".".join([parts[0], "blocks", parts[2], _MODULES[".".join(parts[3:-1])], parts[-1]])
        for theirs, other in _OTHERS.items():
            plain = plain.replace(theirs, other, 1) if plain.startswith(theirs) else plain
        array = values.numpy()
        found[plain] = array[:, None] if plain in ("encoder.conv1.bias", "encoder.conv2.bias") else array
    return found


def header(
    config: TinyWhisper, kind: GGMLType = GGMLType.F32, *, changes: Mapping[int, int] | None = None
) -> bytes:
    """Return the first numbers; `changes` replaces some by their places."""
    sizes = [
        config.vocab_size, config.positions, config.hidden, config.heads, config.layers, config.context,
        config.hidden, config.decoder_heads, config.decoder_layers, config.bands, FILE_TYPES[kind],
    ]  # fmt: skip
    for place, value in (changes or {}).items():
        sizes[place] = value
    filters = np.zeros((config.bands, 201), np.float32)
    return struct.pack("<I11i", 0x67676D6C, *sizes) + struct.pack("<2i", *filters.shape) + filters.tobytes()


def token_part(texts: Sequence[bytes]) -> bytes:
    return struct.pack("<i", len(texts)) + b"".join(struct.pack("<i", len(text)) + text for text in texts)


def tensor_part(name: str, array: np.ndarray, kind: GGMLType = GGMLType.F32) -> bytes:
    """Return a tensor; a matrix of weights gets the type `kind`, as far as its rows are whole blocks."""
    exact = array.ndim != 2 or "positional" in name or array.shape[1] % kind.block_size
    chosen = GGMLType.F32 if exact or name.endswith("bias") else kind
    if array.ndim == 3 and kind is not GGMLType.F32:
        chosen = GGMLType.F16
    data = quantize(np.ascontiguousarray(array, np.float32), chosen).tobytes()
    text = name.encode()
    start = struct.pack("<3i", array.ndim, len(text), chosen)
    return start + struct.pack(f"<{array.ndim}i", *reversed(array.shape)) + text + data


def whisper_cpp_file(config: TinyWhisper, model: Any, kind: GGMLType = GGMLType.F32) -> bytes:
    """Return the whole file of a model."""
    tensors = b"".join(tensor_part(name, array, kind) for name, array in tensors_of(model).items())
    return header(config, kind) + token_part(base_tokens()) + tensors
