"""Adapters as Hugging Face's PEFT saves them: a folder with their settings and a safetensors file.

Their tensors are named after modules of transformers, and queries and keys have the order of transformers.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from puna.errors import ModelError, UnsupportedModelError, shown
from puna.gguf import GGUFFile, GGUFWriter, open_gguf
from puna.model.adapters.pairs import MOST_VALUES, A, B, Pairs, paired
from puna.model.metadata import per_layer, required
from puna.model.published import AS_THEY_ARE, LINEARS, REORDERED, is_of_another_sense

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"

_NAME = re.compile(
    r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<half>[AB])(?:\.default)?(?:\.weight)?", re.ASCII
)
_LAYER = re.compile(r"(?:.*\.)?layers\.(?P<layer>\d{1,9})\.(?P<module>.+)", re.ASCII)
_DTYPES = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}

#: Bytes of settings: a few thousand where each module has its own.
_MOST_CONFIG: Final = 1 << 20

_Number = Annotated[float, msgspec.Meta(gt=0, lt=1e9)]


class _Config(msgspec.Struct):
    """What of the settings changes results."""

    r: Annotated[int, msgspec.Meta(gt=0, lt=1 << 20)] = 8
    lora_alpha: _Number = 8
    use_rslora: bool = False
    use_dora: bool = False
    fan_in_fan_out: bool = False
    peft_type: str = "LORA"
    bias: str = "none"
    alpha_pattern: dict[str, _Number] | None = None


def convert(config: Path, weights: Path, model: Path, target: Path) -> None:
    """Write the adapter of PEFT's files `config` and `weights`, for `model`, to `target` as GGUF.

    Raises what `read_peft_adapter` does, and `GGUFError` and `OSError`.
    """
    with open_gguf(model) as file:
        pairs, architecture = read_peft_adapter(config, weights, file), file.architecture
    writer = GGUFWriter(target, architecture)
    writer.add("general.type", "adapter")
    writer.add("adapter.type", "lora")
    writer.add("adapter.lora.alpha", 0.0)  # it is part of the matrices
    for tensor, pair in pairs.items():
        writer.add_tensor(tensor + A, pair.a)
        writer.add_tensor(tensor + B, pair.b)
    writer.write()


def read_peft_adapter(config_path: Path, weights: Path, model: GGUFFile) -> Pairs:
    """The adapter with settings at `config_path` and tensors in `weights`, for the model in `model`.

    Raises `ModelError` and `UnsupportedModelError`.
    """
    architecture = model.architecture
    if architecture not in REORDERED | AS_THEY_ARE:
        raise UnsupportedModelError(
            f"{weights}: which tensors of {architecture} this adapter means is not known; convert it to GGUF "
            "with llama.cpp's convert_lora_to_gguf.py"
        )
    config = _read_config(config_path)
    halves: dict[str, NDArray[np.float32]] = {}
    modules: dict[str, str] = {}
    for name, values in _read_tensors(weights).items():
        module, tensor, half = _tensor(weights, name)
        modules[tensor] = module
        if half == "B" and architecture in REORDERED:
            values = _reordered(tensor, values, model)
        halves[tensor + (A if half == "A" else B)] = values

    def factor(tensor: str, rank: int) -> float:
        alpha = config.lora_alpha
        for pattern, own in (config.alpha_pattern or {}).items():
            if modules[tensor] == pattern or modules[tensor].endswith(f".{pattern}"):
                alpha = own
        return alpha / (rank**0.5 if config.use_rslora else rank)

    return paired(weights, halves, factor)


def _read_config(path: Path) -> _Config:
    try:
        if path.stat().st_size > _MOST_CONFIG:
            raise ModelError(f"{path}: settings of {path.stat().st_size} bytes; at most {_MOST_CONFIG}")
        config = msgspec.json.decode(path.read_bytes(), type=_Config)
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be read ({error.strerror}); PEFT saves it beside {WEIGHTS}"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{path}: these are no settings of an adapter: {shown(str(error))}") from None
    if config.peft_type.upper() != "LORA":
        raise UnsupportedModelError(
            f"{path}: an adapter of type {shown(config.peft_type)}; only LORA is known"
        )
    for setting, value in (("use_dora", config.use_dora), ("fan_in_fan_out", config.fan_in_fan_out)):
        if value:
            raise UnsupportedModelError(f"{path}: '{setting}' is not supported")
    if config.bias != "none":
        raise UnsupportedModelError(f"{path}: 'bias' is {shown(config.bias)}; only 'none' is supported")
    return config


def _read_tensors(path: Path) -> dict[str, NDArray[np.float32]]:
    from safetensors import SafetensorError, deserialize

    try:
        if path.stat().st_size > 4 * MOST_VALUES:
            raise ModelError(f"{path}: an adapter of {path.stat().st_size} bytes; at most {4 * MOST_VALUES}")
        found: Any = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from None
    except (SafetensorError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: this is no safetensors file: {shown(str(error))}") from None
    return {name: _numbers(path, name, tensor) for name, tensor in found}


def _numbers(path: Path, name: str, tensor: dict[str, object]) -> NDArray[np.float32]:
    dtype, data, shape = str(tensor["dtype"]), tensor["data"], tensor["shape"]
    assert isinstance(data, bytes | bytearray)
    assert isinstance(shape, list)
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    if dtype not in _DTYPES:
        raise UnsupportedModelError(f"{path}: tensor {shown(name)} is {dtype}; F32, F16 and BF16 are read")
    return np.frombuffer(data, _DTYPES[dtype]).astype(np.float32).reshape(shape)


def _tensor(path: Path, name: str) -> tuple[str, str, str]:
    """The module of transformers that `name` is of, its tensor in GGUF files, and which half."""
    if (parsed := _NAME.fullmatch(name)) is not None and not is_of_another_sense(name):
        module = parsed["module"]
        if (placed := _LAYER.fullmatch(module)) is not None and placed["module"] in LINEARS:
            return module, f"blk.{int(placed['layer'])}.{LINEARS[placed['module']]}.weight", parsed["half"]
        if module.rpartition(".")[2] == "lm_head":
            return module, "output.weight", parsed["half"]
    raise UnsupportedModelError(
        f"{path}: tensor {shown(name)} changes something that adapters cannot change here; those of "
        "attention, of feed-forward networks without experts and of the output can be applied"
    )


def _reordered(tensor: str, values: NDArray[np.float32], model: GGUFFile) -> NDArray[np.float32]:
    """The rows of `values` in the order that queries and keys have in files of the model."""
    kind = tensor.split(".")[2:3]
    if kind not in (["attn_q"], ["attn_k"]):
        return values
    layer, count = int(tensor.split(".")[1]), required(model, "block_count")
    heads = per_layer(model, "attention.head_count", count)
    if kind == ["attn_k"]:
        heads = per_layer(model, "attention.head_count_kv", count, heads)
    if not (
        layer < count and heads[layer] and values.ndim == 2 and values.shape[0] % (2 * heads[layer]) == 0
    ):
        return values  # which fits no tensor: that is said when it is applied
    rows, rank = values.shape
    halves = values.reshape(heads[layer], 2, rows // heads[layer] // 2, rank)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, rank))
