"""Language model of Qwen3-VL, dense or with experts: Qwen 3 with positions in time, height and width.

Qwen Team, arXiv:2511.21631. The first layers receive more features of an image besides its embeddings
(DeepStack: Meng et al., arXiv:2406.04334). Text without images is read as by Qwen 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from puna.batch import BatchArrays
from puna.model.models.qwen3 import Qwen3
from puna.model.options import TextOptions, with_axes
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Qwen3VL(Qwen3):
    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return with_axes(file, super().read_options(file), shares=(6, 5, 5), interleaved=True)

    def after_layer(self, index: int, hidden: Array, batch: BatchArrays) -> Array:
        told, end, size = [], 0, self.options.hidden_size
        for row, payload in batch.payloads:
            more = payload.states[:, (index + 1) * size : (index + 2) * size]
            if more.shape[1]:
                told += [self._nothing(row - end), more]
                end = row + len(payload)
        if not told:
            return hidden
        rows: Array = self.ops.concatenate([*told, self._nothing(len(batch.tokens) - end)])
        if len(hidden) < len(rows):  # only sampled rows leave the last layer
            rows = rows[batch.outputs]
        total: Array = hidden + rows
        return total

    def reads_images(self, begin: int) -> bool:
        return True  # how many layers do is known by the states' width alone

    def _nothing(self, rows: int) -> Array:
        """Return zeros for rows of text."""
        return self.ops.array(np.zeros((rows, self.options.hidden_size), np.float32))
