"""Tiny random models that hear, of every architecture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.tiny.audio.gemma3n import TinyGemma3nAudio
from tests.tiny.audio.gemma4 import TinyGemma4Audio
from tests.tiny.audio.gemma4_unified import TinyGemma4UnifiedAudio
from tests.tiny.audio.granite_speech import TinyGraniteSpeech
from tests.tiny.audio.lfm2_audio import TinyLfm2Audio
from tests.tiny.audio.omni import TinyQwen3Omni, TinyQwen25Omni
from tests.tiny.audio.qwen2_audio import TinyQwen2Audio
from tests.tiny.audio.qwen3_asr import TinyQwen3Asr
from tests.tiny.audio.ultravox import TinyUltravox
from tests.tiny.audio.voxtral import TinyVoxtral
from tests.tiny.lfm2 import TinyLfm2
from tests.tiny.llama import TinyLlama

#: Configs of tiny models that hear, by name.
HEARING_MODELS: dict[str, Callable[[], Any]] = {
    "gemma3n": lambda: TinyGemma3nAudio(TinyLlama()),
    "gemma4": lambda: TinyGemma4Audio(TinyLlama()),
    "gemma4 12b": lambda: TinyGemma4UnifiedAudio(TinyLlama()),
    "granite-speech": lambda: TinyGraniteSpeech(TinyLlama()),
    "lfm2-audio": lambda: TinyLfm2Audio(TinyLfm2(context=1024)),
    "qwen2-audio": lambda: TinyQwen2Audio(TinyLlama(rope_base=1e6)),
    "qwen2.5-omni": lambda: TinyQwen25Omni(TinyLlama(rope_base=1e6)),
    "qwen3-asr": lambda: TinyQwen3Asr(TinyLlama(rope_base=1e6)),
    "qwen3-omni": lambda: TinyQwen3Omni(TinyLlama(rope_base=1e6)),
    "ultravox": lambda: TinyUltravox(TinyLlama()),
    "voxtral": lambda: TinyVoxtral(TinyLlama()),
}
