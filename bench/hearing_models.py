"""Models that hear, of real shapes with random weights, in the files of every engine that is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from models import MODELS
from numpy.typing import NDArray

from puna.audio.mel import mel_filters
from puna.gguf import GGMLType, GGUFWriter
from tests.tiny.audio.qwen3_asr import TinyQwen3Asr
from tests.tiny.audio.voxtral import TinyVoxtral
from tests.tiny.converted import Contents, contents_of, converted
from tests.tiny.llama import TinyLlama, vocabulary
from tests.tiny.whisper import TinyWhisper
from tests.tiny.whisper_cpp import whisper_cpp_file

VOCABULARY = 51865


@dataclass(frozen=True)
class SizedWhisper(TinyWhisper):
    """A Whisper with as many tokens as published ones."""

    positions: int = 1500
    context: int = 448

    @property
    def vocab_size(self) -> int:
        return VOCABULARY

    @property
    def tokens(self) -> list[str]:
        """All tokens; those beyond the tiny vocabulary are never written."""
        known = [*vocabulary(), *self.markers]
        return [*known, *(f"<|{i}|>" for i in range(VOCABULARY - len(known)))]

    @property
    def prompt(self) -> list[int]:
        """The tokens before a text without timestamps."""
        return [self.id_of(name) for name in ("startoftranscript", "en", "transcribe", "notimestamps")]


def _whisper(layers: int, hidden: int, heads: int) -> SizedWhisper:
    return SizedWhisper(
        layers=layers, decoder_layers=layers, hidden=hidden, heads=heads, decoder_heads=heads,
        feed_forward=4 * hidden, decoder_feed_forward=4 * hidden,
    )  # fmt: skip


WHISPERS = {
    "whisper-tiny": _whisper(4, 384, 6),
    "whisper-base": _whisper(6, 512, 8),
    "whisper-small": _whisper(12, 768, 12),
}
#: Models whose audio tower has its real shape; their text model is tiny.
HEARING: dict[str, Callable[[], Any]] = {
    "qwen3-asr-0.6b": lambda: TinyQwen3Asr(
        TinyLlama(rope_base=1e6, context=2048), hidden=896, feed_forward=3584, layers=18, heads=14,
        channels=480, bands=128,
    ),
    "voxtral-mini, 4 of 32 layers": lambda: TinyVoxtral(
        TinyLlama(context=2048), hidden=1280, layers=4, heads=20, bands=128, positions=1500
    ),
}  # fmt: skip


@lru_cache(maxsize=1)
def _original(name: str) -> Any:
    """Return transformers' model of one of `WHISPERS`."""
    return WHISPERS[name].build()


def whisper_gguf(name: str, kind: GGMLType) -> Path:
    """Return the GGUF file of a Whisper, created on first use, as the others are."""

    def make(path: Path) -> None:
        whisper = WHISPERS[name]
        _write(converted(_original(name), lambda folder, model: whisper.save(folder, model)), path, kind)

    return _made(f"random-{name}-{kind.name.lower()}.gguf", make)


def whisper_cpp(name: str, kind: GGMLType) -> Path:
    """Return the file of whisper.cpp, with the real filters."""

    def make(path: Path) -> None:
        data = bytearray(whisper_cpp_file(WHISPERS[name], _original(name), kind))
        filters = np.ascontiguousarray(mel_filters(WHISPERS[name].bands).T, np.float32).tobytes()
        begin = 4 + 11 * 4 + 2 * 4
        data[begin : begin + len(filters)] = filters
        path.write_bytes(data)

    return _made(f"random-{name}-{kind.name.lower()}.bin", make)


def ctranslate2_folder(name: str) -> Path:
    """Return the folder of CTranslate2's model in float32, which is converted when it is loaded."""
    from ctranslate2.converters.transformers import WhisperLoader

    def make(path: Path) -> None:
        loader = WhisperLoader()
        spec = loader.get_model_spec(_original(name))
        spec.register_vocabulary(WHISPERS[name].tokens)
        spec.config.suppress_ids, spec.config.suppress_ids_begin, spec.config.lang_ids = [], [], []
        spec.config.alignment_heads = [(0, 0)]
        spec.validate()
        spec.optimize()
        path.mkdir()
        spec.save(str(path))

    return _made(f"random-{name}-ctranslate2", make)


def hearing_files(name: str, kind: GGMLType) -> tuple[Path, Path]:
    """Return the text model, and the mmproj file of the audio tower with matrices of type `kind`."""
    text = MODELS / f"random-{name}-text" / "text.gguf"

    def make(path: Path) -> None:
        config = HEARING[name]()
        text.parent.mkdir(exist_ok=True)
        layout = config.write(text.parent, config.build())
        layout.model.rename(text)
        _write(contents_of(layout.projector), path, kind)
        layout.projector.unlink()

    return text, _made(f"random-{name}-tower-{kind.name.lower()}.gguf", make)


def _made(name: str, make: Callable[[Path], None]) -> Path:
    path = MODELS / name
    if not path.exists():
        MODELS.mkdir(parents=True, exist_ok=True)
        make(path)
    return path


def _write(contents: Contents, path: Path, kind: GGMLType) -> None:
    """Write a file whose matrices have the type `kind`, and whose kernels are F16, as by llama.cpp."""
    writer = GGUFWriter(path, contents.architecture)
    for key, value in contents.keys.items():
        writer.add(key, value)
    for name, array in contents.tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(array), _kind_of(name, array, kind))
    writer.write()


def _kind_of(name: str, array: NDArray[np.float32], kind: GGMLType) -> GGMLType:
    if array.ndim < 2 or name.endswith(".bias") or "position_embd" in name:
        return GGMLType.F32
    return kind if array.ndim == 2 and array.shape[-1] % kind.block_size == 0 else GGMLType.F16
