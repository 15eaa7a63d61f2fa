"""Adapters saved by Hugging Face's PEFT: a folder with settings and a safetensors file.

Tensors are named after modules of transformers, and queries and keys are ordered as in transformers.
"""

from __future__ import annotations

import re
import time
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
import numpy as np
import regex  # type: ignore[import-untyped]
from numpy.typing import NDArray

from puna.architectures import ARCHITECTURES, UNKNOWN
from puna.errors import ModelError, UnsupportedModelError, shown
from puna.gguf import GGUFFile, GGUFWriter, open_gguf
from puna.gguf.metadata import per_layer, required, scalar
from puna.model.adapters.pairs import (
    MAX_VALUES,
    TASK,
    A,
    B,
    Pair,
    Pairs,
    check_room,
    leaves_out,
    paired,
    spread,
)
from puna.model.published import (
    CROSS_LINEARS,
    EXPERT_LINEARS,
    LINEARS,
    T5_LINEARS,
    is_of_another_sense,
    neighbours,
)

CONFIG: Final = "adapter_config.json"

#: Limit of the settings file; a few thousand bytes if each module has its own settings.
_MAX_BYTES: Final = 1 << 20
#: Limit of a pattern, which holds names of modules and wildcards.
_LONGEST_PATTERN: Final = 1000
#: Time limit for compiling and matching all patterns. 500 patterns on 500 modules take half a second.
_MAX_SECONDS: Final = 3.0

#: Initialisations that leave the model's weights alone. Others subtract the adapter's initial value
#: from the weights, unless PEFT undid that on saving; then the settings say True.
_HARMLESS_BEGINNINGS: Final = (True, False, None, "gaussian", "eva", "orthogonal", "mica")

_Number = Annotated[float, msgspec.Meta(gt=0, lt=1e9)]


class _File(msgspec.Struct):
    """Settings that affect results.

    Settings that choose modules (`target_modules`, `exclude_modules`, `layers_to_transform`,
    `target_parameters`) or ranks (`rank_pattern`) are not needed: the tensors show the choice.
    `modules_to_save` and `trainable_token_indices` are refused.
    """

    r: Annotated[int, msgspec.Meta(gt=0, lt=1 << 20)] = 8
    lora_alpha: _Number = 8
    use_rslora: bool = False
    alpha_pattern: dict[str, _Number] | None = None
    peft_type: str = "LORA"
    bias: str = "none"
    init_lora_weights: bool | str | None = True
    # Not supported.
    use_dora: bool = False
    use_qalora: bool = False
    fan_in_fan_out: bool = False
    lora_bias: bool = False
    alora_invocation_tokens: Any = None
    layer_replication: Any = None
    use_bdlora: Any = None
    arrow_config: Any = None
    kasa_config: Any = None
    monteclora_config: Any = None


_REFUSED: Final = _File.__struct_fields__[_File.__struct_fields__.index("use_dora") :]


class PeftSettings:
    """Settings of one adapter."""

    def __init__(self, path: Path, fields: _File) -> None:
        self._path = path
        self._fields = fields
        self._left_s = _MAX_SECONDS

    @classmethod
    def read(cls, path: Path) -> PeftSettings:
        """Read the settings. Raises `ModelError` and `UnsupportedModelError`."""
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise ModelError(f"{path}: settings of {path.stat().st_size} bytes; at most {_MAX_BYTES}")
            fields = msgspec.json.decode(path.read_bytes(), type=_File)
        except OSError as error:
            raise ModelError(
                f"{path}: cannot be read ({error.strerror}); PEFT saves it beside the tensors"
            ) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ModelError(f"{path}: not an adapter's settings: {shown(str(error))}") from None
        _check(path, fields)
        return cls(path, fields)

    def factor(self, module: str, rank: int) -> float:
        """Return the scale of the matrices' product for a `module` of transformers.

        The first matching pattern sets alpha, like PEFT's `get_pattern_key`. Raises `ModelError` for an
        invalid regular expression, and `UnsupportedModelError` if the patterns take too long.
        """
        alpha = next((own for pattern, own in self._alphas if self._matches(pattern, module)), None)
        alpha = self._fields.lora_alpha if alpha is None else alpha
        return alpha / (rank**0.5 if self._fields.use_rslora else rank)

    @cached_property
    def _alphas(self) -> list[tuple[Any, float]]:
        return [(self._compiled(key), own) for key, own in (self._fields.alpha_pattern or {}).items()]

    def _compiled(self, key: str) -> Any:
        began = time.monotonic()
        try:
            if len(key) > _LONGEST_PATTERN or _FUZZY.search(key):
                raise ValueError("too long, or braces that are not a count")
            re.compile(f"(.*\\.)?({key})$")  # PEFT does not know the extensions of `regex`
            found = regex.compile(f"(.*\\.)?({key})$", cache_pattern=False)
        except (re.error, regex.error, ValueError, OverflowError, RecursionError) as error:
            raise ModelError(
                f"{self._path}: 'alpha_pattern' has {shown(key)}, not a regular expression of at most "
                f"{_LONGEST_PATTERN} characters: {error}"
            ) from None
        self._took(key, began)
        return found

    def _matches(self, pattern: Any, module: str) -> bool:
        """Whether `pattern` matches. Unlike `re`, `regex` has a timeout and releases the GIL."""
        began = time.monotonic()
        try:
            found = pattern.match(module, timeout=self._left_s, concurrent=True)
        except TimeoutError:
            raise self._too_long(pattern.pattern) from None
        self._took(pattern.pattern, began)
        return found is not None

    def _took(self, pattern: str, began: float) -> None:
        self._left_s -= time.monotonic() - began
        if self._left_s <= 0:
            raise self._too_long(pattern)

    def _too_long(self, pattern: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{self._path}: the patterns of 'alpha_pattern' take more than {_MAX_SECONDS:g} s to compare "
            f"with the modules, {shown(pattern)} among them; give plain names of modules, and fewer"
        )


#: Braces with a meaning only in `regex`.
_FUZZY: Final = re.compile(r"\{(?!\d*,?\d*\})", re.ASCII)


def _check(path: Path, fields: _File) -> None:
    if fields.peft_type.upper() != "LORA":
        raise UnsupportedModelError(
            f"{path}: an adapter of type {shown(fields.peft_type)}; only LORA is known"
        )
    for setting in _REFUSED:
        if getattr(fields, setting):
            raise UnsupportedModelError(f"{path}: '{setting}' is not supported")
    if fields.bias != "none":
        raise UnsupportedModelError(f"{path}: 'bias' is {shown(fields.bias)}; only 'none' is supported")
    if fields.init_lora_weights not in _HARMLESS_BEGINNINGS:
        raise UnsupportedModelError(
            f"{path}: 'init_lora_weights' is {shown(fields.init_lora_weights)}: its training changed "
            "the model's weights; save it with PEFT's path_initial_model_for_weight_conversion, which makes "
            "it fit the published weights"
        )


WEIGHTS: Final = "adapter_model.safetensors"

Key = TypeVar("Key")
Values = NDArray[np.float32]

_NAME = re.compile(
    r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<half>[AB])(?:\.default)?(?:\.weight)?", re.ASCII
)
_LAYER = re.compile(r"(?:.*\.)?layers\.(?P<layer>\d{1,9})\.(?P<module>.+)", re.ASCII)
_T5_LAYER = re.compile(
    r"(?:.*\.)?(?P<stack>enc|dec)oder\.block\.(?P<layer>\d{1,9})\.layer\.\d\.(?P<module>.+)", re.ASCII
)
_FUSED = re.compile(
    r"(?:base_model\.model\.)?(?P<module>(?:.*\.)?layers\.(?P<layer>\d{1,9})\.[^.]+\.experts(?:\.base_layer)?)"
    r"\.lora_(?P<half>[AB])(?:\.default)?(?:\.weight)?",
    re.ASCII,
)
_EXPERT = re.compile(r"(?<=\bexperts\.)(\d{1,6})(?=\.)", re.ASCII)
#: Limit of a tensor's name in characters.
_LONGEST_NAME: Final = 1000
_DTYPES = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}


def convert(config: Path, weights: Path, model: Path, target: Path, *, task: str = "") -> None:
    """Convert PEFT's files `config` and `weights`, for `model`, to a GGUF adapter at `target`.

    `task` is what it is for; see `pairs.TASK`. Raises the errors of `read_peft_adapter`, `GGUFError` and
    `OSError`.
    """
    with open_gguf(model) as file:
        pairs, architecture = read_peft_adapter(config, weights, file), file.architecture
    writer = GGUFWriter(target, architecture)
    writer.add("general.type", "adapter")
    writer.add("adapter.type", "lora")
    writer.add("adapter.lora.alpha", 0.0)  # folded into the matrices
    if task:
        writer.add(TASK, task)
    for tensor, pair in pairs.items():
        writer.add_tensor(tensor + A, pair.a)
        writer.add_tensor(tensor + B, pair.b)
    writer.write()


def read_peft_adapter(config_path: Path, weights: Path, model: GGUFFile) -> Pairs:
    """Read the adapter with settings at `config_path` and tensors in `weights`, for the model in `model`.

    Raises `ModelError` and `UnsupportedModelError`.
    """
    rows = ARCHITECTURES.get(model.architecture, UNKNOWN).rows
    if not rows:
        raise UnsupportedModelError(
            f"{weights}: the modules of {model.architecture} are not known; convert the adapter to GGUF "
            "with llama.cpp's convert_lora_to_gguf.py"
        )
    settings = PeftSettings.read(config_path)
    count = scalar(model, "expert_count", 0)
    halves: dict[str, Values] = {}
    stacks: dict[str, dict[int, Values]] = {}
    fused: dict[tuple[int, str], dict[str, Values]] = {}
    for name, values in _read_tensors(weights).items():
        if len(name) > _LONGEST_NAME:
            raise _unsupported(weights, name)
        if is_of_another_sense(name) and leaves_out(weights, name):
            continue
        if (found := _FUSED.fullmatch(name)) is not None:
            both = fused.setdefault((int(found["layer"]), found["module"]), {})
            _put(weights, name, both, found["half"], values)
            continue
        module, tensor, half, expert = _tensor(weights, name)
        if half == "B" and values.ndim == 2 and values.size:
            with np.errstate(over="ignore"):
                values = values * np.float32(settings.factor(module, values.shape[1]))
            if rows == "paired":
                values = _reordered(tensor, values, model)
        whole = tensor + (A if half == "A" else B)
        if expert is None:
            _put(weights, name, halves, whole, values)
        elif expert < count:
            _put(weights, name, stacks.setdefault(whole, {}), expert, values)
        else:
            raise _unsupported(weights, name)
    halves |= {whole: _stacked(weights, whole, found, count) for whole, found in stacks.items()}
    if fused:
        flat = {place: _flat(weights, place[1], both) for place, both in fused.items()}
        halves |= spread(weights, flat, model, settings.factor)
    return paired(weights, halves, lambda tensor, rank: 1.0)


def _put(path: Path, name: str, found: dict[Key, Values], key: Key, values: Values) -> None:
    if key in found:
        raise ModelError(f"{path}: {shown(name)} changes something that another tensor changes, too")
    found[key] = values


def _flat(path: Path, module: str, both: dict[str, Values]) -> Pair:
    if len(both) < 2:
        raise ModelError(f"{path}: {shown(module)} has only one of 'lora_A' and 'lora_B'")
    return Pair(both["A"], both["B"])


def _stacked(path: Path, name: str, found: dict[int, Values], count: int) -> Values:
    """Stack the matrices of `count` experts, padding missing experts and lower ranks with zeros."""
    shapes = [each.shape for each in found.values()]
    axis = 0 if name.endswith(A) else 1  # of the rank
    if any(len(shape) != 2 or shape[1 - axis] != shapes[0][1 - axis] for shape in shapes):
        raise ModelError(f"{path}: the experts of '{name}' have different shapes: {sorted(set(shapes))}")
    largest = np.max(shapes, axis=0)
    if count * int(largest[0]) * int(largest[1]) > MAX_VALUES:
        raise ModelError(f"{path}: '{name}' of {count} experts is too large; at most {MAX_VALUES} values")
    check_room(path, 8 * count * int(largest[0]) * int(largest[1]))  # also if few experts have matrices
    stack = np.zeros((count, *largest), np.float32)
    for expert, each in found.items():
        stack[expert, : each.shape[0], : each.shape[1]] = each
    return stack


def _read_tensors(path: Path) -> dict[str, Values]:
    from safetensors import SafetensorError, deserialize

    try:
        if path.stat().st_size > 4 * MAX_VALUES:
            raise ModelError(f"{path}: an adapter of {path.stat().st_size} bytes; at most {4 * MAX_VALUES}")
        check_room(path, 3 * path.stat().st_size)  # as stored, and in float32
        found: Any = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from None
    except (SafetensorError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not a safetensors file: {shown(str(error))}") from None
    return {name: _numbers(path, name, tensor) for name, tensor in found}


def _numbers(path: Path, name: str, tensor: dict[str, object]) -> Values:
    dtype, data, shape = str(tensor["dtype"]), tensor["data"], tensor["shape"]
    assert isinstance(data, bytes | bytearray)
    assert isinstance(shape, list)
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    if dtype not in _DTYPES:
        raise UnsupportedModelError(f"{path}: tensor {shown(name)} is {dtype}; F32, F16 and BF16 are read")
    with np.errstate(over="ignore"):  # checked later
        return np.frombuffer(data, _DTYPES[dtype]).astype(np.float32).reshape(shape)


def _tensor(path: Path, name: str) -> tuple[str, str, str, int | None]:
    """Return the module in transformers, the tensor's name in files, the half, and the expert of `name`."""
    if (parsed := _NAME.fullmatch(name)) is not None:
        module, half = parsed["module"], parsed["half"]
        if (placed := _T5_LAYER.fullmatch(module)) is not None and placed["module"] in T5_LINEARS:
            tensor = f"{placed['stack']}.blk.{int(placed['layer'])}.{T5_LINEARS[placed['module']]}.weight"
            return module, tensor, half, None
        if (placed := _LAYER.fullmatch(module)) is not None:
            number = _EXPERT.search(placed["module"])
            tables = LINEARS | CROSS_LINEARS if number is None else EXPERT_LINEARS
            if (kind := tables.get(_EXPERT.sub("{}", placed["module"]))) is not None:
                expert = None if number is None else int(number[0])
                return module, f"blk.{int(placed['layer'])}.{kind}.weight", half, expert
        if module.rpartition(".")[2] == "lm_head":
            return module, "output.weight", half, None
    raise _unsupported(path, name)


def _unsupported(path: Path, name: str) -> UnsupportedModelError:
    if len(name) <= _LONGEST_NAME and _NAME.fullmatch(name) is None:
        return UnsupportedModelError(
            f"{path}: tensor {shown(name)} is not a low-rank matrix of a linear, unlike "
            "those of 'modules_to_save', 'trainable_token_indices', 'lora_bias' or embeddings: merge the "
            "adapter into its model, and convert that"
        )
    return UnsupportedModelError(
        f"{path}: tensor {shown(name)} changes something that adapters cannot change here; those of "
        "attention, of feed-forward networks, of experts and of the output can be applied"
    )


def _reordered(tensor: str, values: Values, model: GGUFFile) -> Values:
    """Reorder the rows of `values` as the model's files order queries and keys."""
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
        return values  # fits no tensor, which applying it reports
    return np.ascontiguousarray(neighbours(values, heads[layer]))
