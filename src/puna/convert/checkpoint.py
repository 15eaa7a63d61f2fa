"""A published model's folder: settings, tensors in any number of files, and the scales of small types."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from puna.errors import ConversionError, GGUFError, shown
from puna.gguf import GGMLType
from puna.gguf.values import FileSource

Values = NDArray[Any]  # numbers; a checkpoint's are converted to float32

_PLAIN: Final = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "u1",
}  # fmt: skip


def _small_floats(exponent_bits: int, mantissa_bits: int, bias: int, *, infinities: bool) -> Values:
    """Return the values of all 256 codes, with sign, exponent and mantissa as in IEEE 754.

    Without `infinities`, only the largest code of either sign is NaN.
    """
    codes = np.arange(128)
    exponent, mantissa = codes >> mantissa_bits, codes & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits) + (exponent > 0)
    values = fraction * 2.0 ** (np.maximum(exponent, 1) - bias)
    if infinities:
        top = exponent == (1 << exponent_bits) - 1
        values[top] = np.where(mantissa[top] == 0, np.inf, np.nan)
    else:
        values[-1] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)


_TABLES: Final = {
    "F8_E4M3": _small_floats(4, 3, 7, infinities=False),
    "F8_E5M2": _small_floats(5, 2, 15, infinities=True),
    "F8_E8M0": np.append(2.0 ** np.arange(-127, 128), np.nan).astype(np.float32),
}

EIGHT_BITS: Final = ("F8_E4M3", "F8_E5M2")


def decoded(data: bytes, dtype: str) -> Values:
    """Return the numbers in `data` as float32 [n]."""
    if dtype in _TABLES:
        found: Values = _TABLES[dtype][np.frombuffer(data, np.uint8)]
        return found
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.frombuffer(data, _PLAIN[dtype]).astype(np.float32)


def scaled_in_blocks(values: Values, scales: Values, block: tuple[int, int]) -> Values:
    """Multiply `values` [rows, columns] by the scale of each block, of each row, or of the whole tensor."""
    if scales.size == 1:
        return values * scales.reshape(())
    if scales.ndim < 2 or scales.shape == (len(values), 1):
        return values * scales.reshape(-1, *[1] * (values.ndim - 1))
    rows, columns = block
    each = np.repeat(np.repeat(scales, rows, axis=-2), columns, axis=-1)
    scaled: Values = values * each[..., : values.shape[-2], : values.shape[-1]]
    return scaled


def mxfp4_blocks(codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return GGUF blocks [..., groups * 17] for `codes` [..., groups, 16] and `scales` [..., groups].

    Both layouts hold two 4-bit codes in a byte: adjacent elements in `codes`, elements 16 apart in GGUF.
    """
    low, high = codes & np.uint8(15), codes >> np.uint8(4)
    each = np.stack([low, high], axis=-1).reshape(*codes.shape[:-1], 32)
    packed = each[..., :16] | each[..., 16:] << np.uint8(4)
    blocks = np.concatenate([scales[..., None], packed], axis=-1)
    return blocks.reshape(*scales.shape[:-1], scales.shape[-1] * GGMLType.MXFP4.type_size)


#: Bits per element of each dtype.
BITS: Final = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
}  # fmt: skip
#: Bytes; enough for 100,000 tensors, more than the largest models have across all their files.
LONGEST_HEADER: Final = 16_000_000
_MAX_DIMENSIONS: Final = 8
_LONGEST_NAME: Final = 512


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file: `dtype` is a key of `BITS`, and the bytes are `[begin, end)` of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: SafetensorsFile
    begin: int
    end: int

    def read(self, begin: int = 0, end: int | None = None) -> bytes:
        """Return a range of the tensor's bytes. Raises ConversionError if they cannot be read."""
        try:
            return self.file.source.read(self.begin + begin, self.end if end is None else self.begin + end)
        except GGUFError as error:
            raise ConversionError(str(error)) from error


class SafetensorsFile:
    """An open safetensors file, with its tensors by name."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raises ConversionError unless it is complete and consistent."""
        try:
            self.source = FileSource(path)
        except GGUFError as error:
            raise ConversionError(str(error)) from error
        try:
            self.tensors = self._directory(path.name)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.source.close()

    def _directory(self, name: str) -> Mapping[str, StoredTensor]:
        if self.source.size < 8:
            raise ConversionError(f"{name}: {self.source.size} bytes are not a safetensors file")
        length = int.from_bytes(self.source.read(0, 8), "little")
        if length > self.source.size - 8:
            raise ConversionError(
                f"{name}: the header would have {length} bytes, but the file has {self.source.size}: it is "
                "damaged, or not a safetensors file"
            )
        if length > LONGEST_HEADER:
            raise ConversionError(
                f"{name}: its header has {length:,} bytes, and the limit is {LONGEST_HEADER:,}: save the "
                "model in several files (in transformers: save_pretrained with max_shard_size)"
            )
        try:
            header = json.loads(self.source.read(8, 8 + length), object_pairs_hook=_without_repeats)
        except (ValueError, RecursionError) as error:
            raise ConversionError(f"{name}: the header cannot be read: {shown(str(error))}") from None
        if not isinstance(header, dict):
            raise ConversionError(f"{name}: the header is not a JSON object")
        start = 8 + length
        tensors = {
            key: self._entry(f"{name}: tensor {shown(key)}", key, entry, start)
            for key, entry in header.items()
            if key != "__metadata__"
        }
        _check_overlaps(name, tensors)
        return tensors

    def _entry(self, where: str, name: str, entry: Any, start: int) -> StoredTensor:
        if not isinstance(entry, dict) or not 0 < len(name) <= _LONGEST_NAME:
            raise ConversionError(f"{where}: this entry of the header is not a tensor's")
        dtype: Any = entry.get("dtype")
        shape: Any = entry.get("shape")
        offsets: Any = entry.get("data_offsets")
        if not isinstance(dtype, str) or dtype not in BITS:
            raise ConversionError(f"{where}: {shown(dtype)} is not a type that can be read")
        if not _are_counts(shape) or len(shape) > _MAX_DIMENSIONS:
            raise ConversionError(f"{where}: {shown(shape)} is not a shape")
        if not _are_counts(offsets) or len(offsets) != 2:
            raise ConversionError(f"{where}: {shown(offsets)} is not where its bytes begin and end")
        begin, end = offsets
        needed = math.prod(shape) * BITS[dtype] // 8
        if end - begin != needed:
            raise ConversionError(
                f"{where}: shape {'x'.join(map(str, shape))} of {dtype} takes {needed} bytes, but it has "
                f"{end - begin}"
            )
        if start + end > self.source.size:
            raise ConversionError(
                f"{where}: it ends at byte {start + end}, but the file has {self.source.size}; it is "
                "incomplete: download it again"
            )
        return StoredTensor(name, dtype, tuple(shape), self, start + begin, start + end)


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 48 for value in values)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice")
    return found


def _check_overlaps(name: str, tensors: Mapping[str, StoredTensor]) -> None:
    end, before = 0, ""
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.begin, tensor.end)):
        if tensor.begin < end:
            raise ConversionError(
                f"{name}: tensors {shown(before)} and {shown(tensor.name)} overlap at byte {tensor.begin}"
            )
        end, before = tensor.end, tensor.name


def added_tokens(checkpoint: PublishedFolder) -> dict[int, tuple[str, bool]]:
    """Return the text of each added token by id, and whether it is special."""
    found: dict[int, tuple[str, bool]] = {}
    for text, id in checkpoint.json("added_tokens.json").items():
        if type(id) is int:
            found[id] = text, False
    decoder = checkpoint.json("tokenizer_config.json").get("added_tokens_decoder")
    entries = list(decoder.items()) if isinstance(decoder, dict) else []
    entries += [
        (entry.get("id"), entry)
        for entry in checkpoint.json("tokenizer.json").get("added_tokens") or ()
        if isinstance(entry, dict)
    ]
    for id, entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("content"), str) and str(id).isdecimal():
            found[int(id)] = entry["content"], bool(entry.get("special"))
    return found


_INDEX: Final = "model.safetensors.index.json"
_WHOLE: Final = "model.safetensors"
_WEIGHTS: Final = ("model*.safetensors", "consolidated*.safetensors", "*.safetensors")
_LARGEST_TEXT: Final = 1 << 26  # bytes; a tokenizer.json has 10 to 30 million
_MAX_MARKS: Final = 8_000_000  # commas and opening brackets; a tokenizer.json has up to two million
_MAX_README_BYTES: Final = 1 << 20  # bytes
_MAX_FILES: Final = 2000
_PIECE: Final = 1 << 24  # bytes of each of two tensors that are compared at a time
_SCALES: Final = ("_scale_inv", "_scale")
_CODES, _EXPONENTS = "_blocks", "_scales"  # suffixes of an MXFP4 tensor's parts
_WEIGHT, _WEIGHT_SCALE = ".weight", ".scale"  # suffixes of small numbers and their scales (DeepSeek V4)
_PAIRS: Final = ("I8", "U8")  # types of two 4-bit codes
_UNUSED: Final = (".input_scale", ".activation_scale", "_activation_scale", ".k_scale", ".v_scale")
_BLOCK: Final = (128, 128)


#: Settings beside those of the parts of a model that also speaks, which are for each of them.
_OF_THE_WHOLE: Final = ("architectures", "quantization_config")


def _of_thinker(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the part that reads and answers, also if the model has parts that speak."""
    thinker = config.get("thinker_config")
    if not isinstance(thinker, dict):
        return config
    return {**thinker, **{name: config[name] for name in _OF_THE_WHOLE if name in config}}


def _of_speculator(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a head that drafts for another model, with those of its layer among them."""
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, dict):
        return config
    # Whether the other model's output is its input's table says nothing about the head.
    own = {name: value for name, value in layer.items() if name != "tie_word_embeddings"}
    whole = {name: value for name, value in config.items() if name != "transformer_layer_config"}
    return {**own, **whole}


class PublishedFolder:
    """The settings and texts of a published model's folder."""

    def __init__(self, folder: Path) -> None:
        """Read config.json. Raises ConversionError if it is missing or damaged."""
        self.folder = folder
        self.config = _of_speculator(_of_thinker(self.json("config.json")))
        if not self.config:
            raise ConversionError(f"{folder.name} has no config.json, which says what kind of model it is")
        self.tensors: dict[str, StoredTensor] = {}

    def json(self, name: str) -> dict[str, Any]:
        """Return a JSON object of the folder, empty if there is no such file. Raises ConversionError."""
        path = self.folder / name
        if not path.is_file():
            return {}
        try:
            self._check_size(path)
            text = path.read_bytes()
            if sum(map(text.count, (b",", b"[", b"{"))) > _MAX_MARKS:
                raise ConversionError(f"{name} has more than {_MAX_MARKS:,} commas and opening brackets")
            found = json.loads(text)
        except RecursionError:
            raise ConversionError(f"{name} is nested too deeply") from None
        except (OSError, ValueError) as error:
            raise ConversionError(f"{name} cannot be read: {shown(str(error))}") from None
        if not isinstance(found, dict):
            raise ConversionError(f"{name} is not a JSON object")
        return found

    def text(self, name: str) -> str | None:
        """Return a text file of the folder, or None if there is none. Raises ConversionError."""
        path = self.folder / name
        try:
            if not path.is_file():
                return None
            self._check_size(path)
            return path.read_text("utf-8")
        except (OSError, ValueError) as error:
            raise ConversionError(f"{name} cannot be read: {shown(str(error))}") from None

    def _check_size(self, path: Path) -> None:
        if path.stat().st_size > _LARGEST_TEXT:
            raise ConversionError(f"{path.name} has more than {_LARGEST_TEXT >> 20} MiB")

    def is_called(self, name: str) -> bool:
        """Whether the folder's name or a heading of its README.md begins with `name`, in any case."""
        path = self.folder / "README.md"
        about = path.read_bytes()[:_MAX_README_BYTES].decode(errors="replace") if path.is_file() else ""
        heading = re.search(rf"^#+ {re.escape(name)}", about, re.IGNORECASE | re.MULTILINE)
        return heading is not None or name.lower() in self.folder.resolve().name.lower()


class Checkpoint(PublishedFolder):
    """An open folder. Tensors are read when their values are requested."""

    def __init__(self, folder: Path) -> None:
        """Open the folder. Raises ConversionError if something is missing or damaged."""
        super().__init__(folder)
        self._files: list[SafetensorsFile] = []
        self._scales: dict[str, StoredTensor] = {}
        self.modules = self._modules()  # of sentence-transformers: the kind and folder of each module
        try:
            for name in self._weight_files():
                self._open(folder / name)
            for kind, path in self.modules:
                if kind == "Dense":
                    self._open(folder / path / "model.safetensors", f"{path}.")
        except BaseException:
            self.close()
            raise
        self._set_scales_aside()
        block = (self.config.get("quantization_config") or {}).get("weight_block_size")
        self._block = (
            (int(block[0]), int(block[1])) if isinstance(block, list) and len(block) == 2 else _BLOCK
        )

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the array that `values` returns."""
        if not self.is_mxfp4(name):
            return self.tensors[name].shape
        groups = self._scales[name].shape
        return *groups[:-1], groups[-1] * GGMLType.MXFP4.type_size

    def values(self, name: str) -> Values:
        """Return a tensor's numbers as float32 in its shape, with its scales applied.

        An MXFP4 tensor is returned as GGUF blocks, uint8 [..., bytes of a row].
        """
        stored = self.tensors[name]
        if self.is_mxfp4(name):
            exponents = self._scales[name]
            codes = np.frombuffer(stored.read(), np.uint8).reshape(*exponents.shape, 16)
            return mxfp4_blocks(codes, np.frombuffer(exponents.read(), np.uint8).reshape(exponents.shape))
        found = decoded(stored.read(), stored.dtype).reshape(stored.shape)
        if (scale := self._scales.get(name)) is None:
            return found
        scales = decoded(scale.read(), scale.dtype).reshape(scale.shape)
        return scaled_in_blocks(found, scales, self._block)

    def are_equal(self, name: str, other: str) -> bool:
        """Whether two tensors are stored as the same bytes, and so surely hold the same numbers."""
        first, second = self.tensors[name], self.tensors[other]
        size = first.end - first.begin
        return (
            (first.dtype, first.shape) == (second.dtype, second.shape)
            and not {name, other} & {*self._scales}
            and all(
                first.read(begin, begin + _PIECE) == second.read(begin, begin + _PIECE)
                for begin in range(0, size - size % _PIECE, _PIECE)
            )
            and first.read(size - size % _PIECE) == second.read(size - size % _PIECE)
        )

    def integers(self, name: str) -> list[int]:
        """Return a tensor's numbers exactly. Raises ConversionError unless they are 64-bit integers."""
        stored = self.tensors[name]
        if stored.dtype != "I64":
            raise ConversionError(f"tensor {shown(name)} should be 64-bit integers, but is {stored.dtype}")
        found: list[int] = np.frombuffer(stored.read(), "<i8").tolist()
        return found

    def is_mxfp4(self, name: str) -> bool:
        """Whether the tensor consists of 4-bit codes, 32 of which share a power of two."""
        return name in self._scales and (name.endswith(_CODES) or self.tensors[name].dtype in _PAIRS)

    def is_eight_bits(self, name: str) -> bool:
        """Whether the tensor is stored as 8-bit floats."""
        return self.tensors[name].dtype in EIGHT_BITS

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _modules(self) -> list[tuple[str, str]]:
        try:
            listed: Any = json.loads(self.text("modules.json") or "[]")
        except (ValueError, RecursionError) as error:
            raise ConversionError(f"modules.json cannot be read: {shown(str(error))}") from None
        found = []
        for module in listed if isinstance(listed, list) else ():
            match module:
                case {"type": str(kind), "path": str(path)} if path:
                    if path != Path(path).name or path == ".." or "\\" in path or "\0" in path:
                        raise ConversionError(f"modules.json: {shown(path)} is not a folder in this one")
                    found.append((kind.rpartition(".")[2], path))
        return found

    def _open(self, path: Path, prefix: str = "") -> None:
        """Add the tensors of a file, prefixing their names with `prefix`."""
        file = SafetensorsFile(path)
        self._files.append(file)
        for name, tensor in file.tensors.items():
            name = prefix + name
            if name in self.tensors:
                raise ConversionError(
                    f"tensor {shown(name)} is in {path.name} and in "
                    f"{self.tensors[name].file.source.path.name}"
                )
            self.tensors[name] = tensor

    def _weight_files(self) -> Iterator[str]:
        """Yield the names of the tensor files: those in the index, or else those found in the folder."""
        index = self.json(_INDEX).get("weight_map")
        if index is not None:
            if not isinstance(index, dict) or not index:
                raise ConversionError(f"{_INDEX}: 'weight_map' does not say where tensors are")
            names = sorted({str(name) for name in index.values()})
            for name in names:
                if "/" in name or "\\" in name or name in ("", ".", "..") or "\0" in name:
                    raise ConversionError(f"{_INDEX}: {shown(name)} is not the name of a file in this folder")
                if not (self.folder / name).is_file():
                    raise ConversionError(f"{name}, which {_INDEX} names, is missing; download it")
        elif (self.folder / _WHOLE).is_file():
            names = [_WHOLE]  # others may hold the same in another precision
        else:
            found = (sorted(self.folder.glob(pattern)) for pattern in _WEIGHTS)
            names = [path.name for path in next(filter(None, found), [])]
        if not names:
            raise ConversionError(f"{self.folder.name} has no safetensors files")
        if len(names) > _MAX_FILES:
            raise ConversionError(
                f"{self.folder.name} has {len(names)} tensor files; the maximum is {_MAX_FILES}"
            )
        yield from names

    def _set_scales_aside(self) -> None:
        for name in list(self.tensors):
            if name.endswith(_UNUSED):
                del self.tensors[name]
                continue
            if name.endswith(_CODES) and (scales := name.removesuffix(_CODES) + _EXPONENTS) in self.tensors:
                self._scales[name] = self.tensors.pop(scales)
                _check_mxfp4(self.tensors[name], self._scales[name])
            of = name.removesuffix(_WEIGHT_SCALE) + _WEIGHT
            if name.endswith(_WEIGHT_SCALE) and of in self.tensors:
                if (kind := self.tensors[of].dtype) in (*EIGHT_BITS, *_PAIRS):
                    self._scales[of] = self.tensors.pop(name)
                if kind in _PAIRS:
                    _check_mxfp4_pairs(self.tensors[of], self._scales[of])
                continue
            for ending in _SCALES:
                of = name.removesuffix(ending)
                if name in self.tensors and of != name and of in self.tensors:
                    self._scales[of] = self.tensors.pop(name)
                    break

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check_mxfp4(codes: StoredTensor, scales: StoredTensor) -> None:
    if {codes.dtype, scales.dtype} != {"U8"} or codes.shape != (*scales.shape, 16):
        raise ConversionError(
            f"tensor {shown(codes.name)}: codes of shape {list(codes.shape)} do not fit scales of "
            f"shape {list(scales.shape)}"
        )


def _check_mxfp4_pairs(codes: StoredTensor, scales: StoredTensor) -> None:
    groups = (*codes.shape[:-1], codes.shape[-1] // 16) if codes.shape else ()
    if scales.dtype not in ("U8", "F8_E8M0") or scales.shape != groups or codes.shape[-1] % 16:
        raise ConversionError(
            f"tensor {shown(codes.name)}: codes of shape {list(codes.shape)} do not fit scales of "
            f"shape {list(scales.shape)}"
        )
