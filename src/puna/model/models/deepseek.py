"""DeepSeek LLM and DeepSeekMoE: Llama with small experts in most layers, some of them shared by all tokens.

Dai et al., arXiv:2401.06066. DeepSeek-OCR has the same network with pairs half a head apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from puna.model.models.deepseekocr import DeepSeekOcr, defaults
from puna.model.options import TextOptions

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class DeepSeek(DeepSeekOcr):
    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return TextOptions.read(file, defaults(file, neox=False))
