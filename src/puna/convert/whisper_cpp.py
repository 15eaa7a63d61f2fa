"""Conversion of whisper.cpp's files of Whisper models, such as `ggml-base-q5_1.bin`, to GGUF files.

Layout: `models/convert-pt-to-ggml.py` and `whisper_model_load` in whisper.cpp. Weights stay as they are. A
file has texts of tokens, but neither special tokens nor merges: the former follow from their number, the
latter from the order of the tokens, in which byte-pair encoding has made them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from puna.audio.languages import LANGUAGES
from puna.convert.families.whisper import MULTILINGUAL_SIZE
from puna.convert.vocabulary import TokenTable
from puna.errors import ConversionError, shown
from puna.gguf import FileType, GGMLType, GGUFWriter, ValueType
from puna.tokenizer.bpe import byte_characters
from puna.tokenizer.vocabulary import TokenType

#: The first bytes of a file.
MAGIC: Final = struct.pack("<I", 0x67676D6C)

#: Numbers at the beginning of a file, with the largest that make sense.
_SIZES: Final = {
    "n_vocab": 1 << 18, "n_audio_ctx": 1 << 14, "n_audio_state": 1 << 14, "n_audio_head": 1 << 10,
    "n_audio_layer": 1 << 8, "n_text_ctx": 1 << 14, "n_text_state": 1 << 14, "n_text_head": 1 << 10,
    "n_text_layer": 1 << 8, "n_mels": 1 << 10,
}  # fmt: skip
_FREQUENCIES: Final = 1 << 12  # of a mel filter, at most
_TOKEN_BYTES: Final = 1 << 8
_VOCABULARY_BYTES: Final = 1 << 22  # of all tokens; those of published models have 400 kB
_NAME_BYTES: Final = 1 << 7
_DIMENSIONS: Final = 4
_TENSORS: Final = 1 << 13
_PIECE: Final = 1 << 20

#: Types of files by their numbers there. Their layouts have a version, which is the thousands of the number.
_TYPES: Final = {
    0: FileType.F32, 1: FileType.F16, 2: FileType.Q4_0, 3: FileType.Q4_1, 7: FileType.Q8_0, 8: FileType.Q5_0,
    9: FileType.Q5_1, 10: FileType.Q2_K, 11: FileType.Q3_K_S, 12: FileType.Q4_K_S, 13: FileType.Q5_K_S,
    14: FileType.Q6_K,
}  # fmt: skip
_VERSION: Final = 2
_VERSION_FACTOR: Final = 1000
_WEIGHTS: Final = frozenset(
    {GGMLType.F32, GGMLType.F16, GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.Q5_0, GGMLType.Q5_1, GGMLType.Q8_0,
     GGMLType.Q2_K, GGMLType.Q3_K, GGMLType.Q4_K, GGMLType.Q5_K, GGMLType.Q6_K}
)  # fmt: skip

#: Special tokens after the text's, with the languages after the second, and before the timestamps.
_FIRST: Final = ("endoftext", "startoftranscript")
_LAST: Final = ("translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps")
#: A longer token is never the result of merges here: there are few, all of them junk.
_MERGED_BYTES: Final = 64

_ENCODER: Final = {
    "attn.query": "attn_q", "attn.key": "attn_k", "attn.value": "attn_v", "attn.out": "attn_out",
    "attn_ln": "ln1", "mlp_ln": "ln2", "mlp.0": "ffn_up", "mlp.2": "ffn_down",
}  # fmt: skip
_DECODER: Final = {
    "attn.query": "attn_q", "attn.key": "attn_k", "attn.value": "attn_v", "attn.out": "attn_output",
    "attn_ln": "attn_norm", "cross_attn.query": "cross_attn_q", "cross_attn.key": "cross_attn_k",
    "cross_attn.value": "cross_attn_v", "cross_attn.out": "cross_attn_o", "cross_attn_ln": "cross_attn_norm",
    "mlp_ln": "ffn_norm", "mlp.0": "ffn_up", "mlp.2": "ffn_down",
}  # fmt: skip
_OUTSIDE: Final = {
    "encoder.positional_embedding": "a.position_embd.weight", "encoder.conv1.weight": "a.conv1d.1.weight",
    "encoder.conv1.bias": "a.conv1d.1.bias", "encoder.conv2.weight": "a.conv1d.2.weight",
    "encoder.conv2.bias": "a.conv1d.2.bias", "encoder.ln_post.weight": "a.post_ln.weight",
    "encoder.ln_post.bias": "a.post_ln.bias", "decoder.positional_embedding": "position_embd.weight",
    "decoder.token_embedding.weight": "token_embd.weight", "decoder.ln.weight": "output_norm.weight",
    "decoder.ln.bias": "output_norm.bias",
}  # fmt: skip
_BLOCK: Final = re.compile(r"(encoder|decoder)\.blocks\.(\d{1,3})\.([a-z_.\d]+)\.(weight|bias)")


@dataclass(frozen=True)
class _Tensor:
    shape: tuple[int, ...]  # row-major
    type: GGMLType
    begin: int  # in the file

    @property
    def nbytes(self) -> int:
        return self.type.nbytes(int(np.prod(self.shape, dtype=np.int64)))


def is_whisper_cpp(path: Path) -> bool:
    """Whether a file begins as those of whisper.cpp do. Raises OSError."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def convert_whisper_cpp(
    source: Path,
    target: Path,
    *,
    name: str = "",
    report: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write the model in whisper.cpp's file `source` to `target`.

    Raises ConversionError for a file that is damaged, of another layout or beyond the limits, and GGUFError
    if the file cannot be written.
    """
    with source.open("rb") as file:
        kind, keys, tokens, tensors = _read(file, name or source.name)
        writer = GGUFWriter(target, "whisper")
        writer.add("general.type", "model")
        writer.add("general.name", name or source.stem)
        writer.add("general.file_type", int(kind), ValueType.UINT32)
        writer.add("general.quantization_version", _VERSION, ValueType.UINT32)
        for key, value in keys.items():
            writer.add(key, value)
        for key, value in tokens.items():
            writer.add(f"tokenizer.ggml.{key}", value, ValueType.INT32 if key == "token_type" else None)
        total, done = sum(tensor.nbytes for tensor in tensors.values()), 0

        def stream(tensor: _Tensor) -> Iterator[NDArray[np.uint8]]:
            nonlocal done
            file.seek(tensor.begin)
            for begin in range(0, tensor.nbytes, _PIECE):
                piece = file.read(min(_PIECE, tensor.nbytes - begin))
                yield np.frombuffer(piece, np.uint8)
                done += len(piece)
                report(done, total)

        for target_name, tensor in tensors.items():
            writer.add_stream(target_name, tensor.shape, tensor.type, partial(stream, tensor))
        writer.write()


def check_whisper_cpp(path: Path) -> None:
    """Raise the errors of `convert_whisper_cpp` without reading weights."""
    with path.open("rb") as file:
        _read(file, path.name)


def _read(file: BinaryIO, name: str) -> tuple[FileType, dict[str, Any], dict[str, Any], dict[str, _Tensor]]:
    """Return the type of a file's weights, keys of the architecture and of the vocabulary, and tensors."""
    reader = _Reader(file, name)
    sizes, kind = reader.header()
    tokens = _token_table(reader.texts(sizes["n_vocab"]), sizes, name)
    tensors = reader.tensors()
    return kind, _keys(sizes, tensors, name), tokens, tensors


class _Reader:
    """Reads a file's parts, one after another. Its errors begin with the file's name."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.name = name
        self._file = file
        self._size = file.seek(0, 2)
        file.seek(0)

    def header(self) -> tuple[dict[str, int], FileType]:
        """Return the sizes of the model, and the type of its weights."""
        if self._bytes(len(MAGIC), "its first number") != MAGIC:
            raise self._error("is not a model of whisper.cpp")
        sizes = dict(zip(_SIZES, self._numbers(len(_SIZES), "its sizes"), strict=True))
        for size, most in _SIZES.items():
            self._check(size, sizes[size], most, least=1)
        [number] = self._numbers(1, "its type")
        version, kind = divmod(number, _VERSION_FACTOR)
        if kind not in _TYPES:
            raise self._error(f"has weights of type {kind}, which is unknown")
        if kind > 1 and version != _VERSION:
            raise self._error(
                f"has quantised weights of layout {version}, and only {_VERSION} is read: quantise it again"
            )
        # Our own filters are the same.
        bands, frequencies = self._numbers(2, "its mel filters")
        self._check("n_mel", bands, _SIZES["n_mels"], least=0)
        self._check("n_fft", frequencies, _FREQUENCIES, least=0)
        self._skip(4 * bands * frequencies, "its mel filters")
        return sizes, _TYPES[kind]

    def texts(self, vocabulary: int) -> list[bytes]:
        """Return the texts of tokens, of which there are at most `vocabulary`."""
        [count] = self._numbers(1, "its number of tokens")
        self._check("the number of tokens with text", count, vocabulary, least=1)
        found, total = [], 0
        for id in range(count):
            [length] = self._numbers(1, f"token {id}")
            self._check(f"the length of token {id}", length, _TOKEN_BYTES, least=0)
            total += length
            if total > _VOCABULARY_BYTES:
                raise self._error(f"has tokens of more than {_VOCABULARY_BYTES} bytes")
            found.append(self._bytes(length, f"token {id}"))
        return found

    def tensors(self) -> dict[str, _Tensor]:
        """Return the places of all tensors by our names."""
        found: dict[str, _Tensor] = {}
        while self._file.tell() < self._size:
            dimensions, length, kind = self._numbers(3, f"tensor {len(found)}")
            self._check(f"the dimensions of tensor {len(found)}", dimensions, _DIMENSIONS, least=1)
            self._check(f"the length of the name of tensor {len(found)}", length, _NAME_BYTES, least=1)
            extents = self._numbers(dimensions, f"tensor {len(found)}")
            theirs = self._bytes(length, f"tensor {len(found)}").decode(errors="replace")
            name = self._renamed(theirs)
            if name in found or len(found) == _TENSORS:
                raise self._error(f"has tensor {shown(theirs)} twice")
            for extent in extents:
                self._check(f"an extent of tensor {shown(theirs)}", extent, _SIZES["n_vocab"], least=1)
            if kind not in _WEIGHTS:
                raise self._error(f"has tensor {shown(theirs)} of type {kind}, which is not supported")
            shape = tuple(reversed(extents))
            if name.endswith(".bias"):
                shape = (int(np.prod(shape, dtype=np.int64)),)
            tensor = _Tensor(shape, GGMLType(kind), self._file.tell())
            if shape[-1] % tensor.type.block_size:
                raise self._error(f"has tensor {shown(theirs)} with rows of {shape[-1]}, no whole blocks")
            self._skip(tensor.nbytes, f"tensor {shown(theirs)}")
            found[name] = tensor
        return found

    def _renamed(self, name: str) -> str:
        if name in _OUTSIDE:
            return _OUTSIDE[name]
        if (block := _BLOCK.fullmatch(name)) is not None:
            coder, number, module, ending = block.groups()
            known, prefix = (_ENCODER, "a.blk") if coder == "encoder" else (_DECODER, "blk")
            if module in known:
                return f"{prefix}.{int(number)}.{known[module]}.{ending}"
        raise self._error(f"has tensor {shown(name)}, which is unknown")

    def _numbers(self, count: int, part: str) -> tuple[int, ...]:
        return struct.unpack(f"<{count}i", self._bytes(4 * count, part))

    def _bytes(self, count: int, part: str) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise self._error(f"ends within {part}: it is damaged or incomplete")
        return data

    def _skip(self, count: int, part: str) -> None:
        if count > self._size - self._file.tell():
            raise self._error(f"ends within {part}: it is damaged or incomplete")
        self._file.seek(count, 1)

    def _check(self, what: str, value: int, most: int, *, least: int) -> None:
        if not least <= value <= most:
            raise self._error(f"is damaged: {what} is {value}, and must be {least} to {most}")

    def _error(self, complaint: str) -> ConversionError:
        return ConversionError(f"{self.name} {complaint}")


def _keys(sizes: dict[str, int], tensors: dict[str, _Tensor], name: str) -> dict[str, Any]:
    """Return the architecture's keys."""
    wide = {}
    for prefix in ("a.blk", "blk"):
        if (first := tensors.get(f"{prefix}.0.ffn_up.weight")) is None:
            raise ConversionError(f"{name} has no feed-forward network in the first layer of '{prefix}'")
        wide[prefix] = first.shape[0]
    return {
        "block_count": sizes["n_text_layer"], "context_length": sizes["n_text_ctx"],
        "embedding_length": sizes["n_text_state"], "feed_forward_length": wide["blk"],
        "attention.head_count": sizes["n_text_head"], "attention.layer_norm_epsilon": 1e-5,
        "multilingual": sizes["n_vocab"] >= MULTILINGUAL_SIZE, "vocab_size": sizes["n_vocab"],
        "audio.block_count": sizes["n_audio_layer"], "audio.embedding_length": sizes["n_audio_state"],
        "audio.feed_forward_length": wide["a.blk"], "audio.attention.head_count": sizes["n_audio_head"],
        "audio.attention.layer_norm_epsilon": 1e-5, "audio.num_mel_bins": sizes["n_mels"],
    }  # fmt: skip


def _token_table(texts: Sequence[bytes], sizes: dict[str, int], name: str) -> dict[str, Any]:
    """Return the keys of the vocabulary. Special tokens follow the texts, and timestamps end it."""
    if texts[-1] == f"<|{_FIRST[0]}|>".encode():
        texts = texts[:-1]
    end, times = len(texts), sizes["n_audio_ctx"] + 1
    languages = sizes["n_vocab"] - end - len(_FIRST) - len(_LAST) - times
    if not 0 <= languages <= len(LANGUAGES):
        raise ConversionError(
            f"{name} has {sizes['n_vocab']} tokens, {end} of them with text, which leaves room for "
            f"{languages} languages: 0 to {len(LANGUAGES)} are known"
        )
    table = TokenTable.empty("gpt2", sizes["n_vocab"])
    characters = byte_characters()
    for id, text in enumerate(texts):
        if text:
            table.put(id, "".join(characters[byte] for byte in text), TokenType.NORMAL)
    for id, special in enumerate((*_FIRST, *[*LANGUAGES][:languages], *_LAST), end):
        table.put(id, f"<|{special}|>", TokenType.CONTROL)
    for place in range(times):
        table.put(sizes["n_vocab"] - times + place, f"<|{place / 50:.2f}|>", TokenType.CONTROL)
    merges = [
        " ".join("".join(characters[byte] for byte in part) for part in pair) for pair in _merges(texts)
    ]
    return {
        "model": table.model, "pre": "gpt-2", "tokens": table.texts, "token_type": table.types,
        "merges": merges, "eos_token_id": end, "bos_token_id": end, "add_bos_token": False,
    }  # fmt: skip


def _merges(texts: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the merges that make tokens, which are in the order of their ids.

    A token is made of the two parts that the merges before it leave of its bytes.
    """
    ranks = {text: id for id, text in reversed([*enumerate(texts)])}
    for text, rank in sorted(ranks.items(), key=lambda pair: pair[1]):
        if not 1 < len(text) <= _MERGED_BYTES:
            continue
        parts = [text[place : place + 1] for place in range(len(text))]
        while len(parts) > 2:
            pairs = [ranks.get(left + right, rank) for left, right in pairwise(parts)]
            if (best := min(pairs)) >= rank:
                break
            place = pairs.index(best)
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        if len(parts) == 2 and all(part in ranks for part in parts):
            yield parts[0], parts[1]
