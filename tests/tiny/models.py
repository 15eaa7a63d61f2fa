"""Tiny random models of every architecture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.tiny.decoders import GEMMA2, OLMO2, PHI3, QWEN2, QWEN3_MOE, tiny_decoder_gguf
from tests.tiny.gemma3 import TinyGemma3, tiny_gemma3_gguf
from tests.tiny.latent import DEEPSEEK_V3
from tests.tiny.lfm2 import TinyLfm2, tiny_lfm2_gguf
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.tiny.llama4 import TinyLlama4, tiny_llama4_gguf
from tests.tiny.mllama import TinyMllama, tiny_mllama_gguf

#: Sizes of each architecture, and the function that writes the GGUF file of a model they `build`.
ARCHITECTURES: dict[str, tuple[Any, Callable[..., Path]]] = {
    "llama": (TinyLlama(), tiny_llama_gguf),
    "gemma3": (TinyGemma3(), tiny_gemma3_gguf),
    "lfm2": (TinyLfm2(), tiny_lfm2_gguf),
    "llama4": (TinyLlama4(), tiny_llama4_gguf),
    "mllama": (TinyMllama(), tiny_mllama_gguf),
    "gemma2": (GEMMA2, tiny_decoder_gguf),
    "olmo2": (OLMO2, tiny_decoder_gguf),
    "phi3": (PHI3, tiny_decoder_gguf),
    "qwen2": (QWEN2, tiny_decoder_gguf),
    "qwen3moe": (QWEN3_MOE, tiny_decoder_gguf),
    "deepseek2": (DEEPSEEK_V3, tiny_decoder_gguf),
}
