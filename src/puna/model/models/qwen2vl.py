"""Language model of Qwen2-VL and Qwen2.5-VL: Qwen 2 with positions in time, height and width.

Wang et al., arXiv:2409.12191, section 2.1. Text without images is read as by Qwen 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from puna.model.models.qwen2 import Qwen2
from puna.model.options import TextOptions, with_axes

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Qwen2VL(Qwen2):
    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return with_axes(file, super().read_options(file))
