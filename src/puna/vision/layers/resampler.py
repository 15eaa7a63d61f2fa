"""Resampler: learned queries that turn an image of any size into a fixed number of rows."""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from puna.nn.layers import LayerNorm, Linear, Unused
from puna.nn.module import Module, weight
from puna.ops import Array
from puna.vision.layers.attention import Groups, PatchKeys, Slices, pieces
from puna.vision.layers.layers import Table

#: Size of a head in every published model.
HEAD_DIM: Final = 128


class ResamplerOptions(Protocol):
    """Options of a tower that its resampler reads."""

    @property
    def hidden_size(self) -> int: ...

    @property
    def text_size(self) -> int: ...

    @property
    def queries(self) -> int:
        """Rows of an image."""

    @property
    def listed(self) -> int:
        """Patch positions listed in the file, which can also be computed."""

    @property
    def norm_eps(self) -> float: ...


class Resampler(Module):
    """Qwen-VL's adapter (Bai et al., arXiv:2308.12966, section 2.1) as used by MiniCPM-V."""

    options: ResamplerOptions
    query: Table = weight("query", "queries", "text_size")
    listed: Unused | None = weight("pos_embed_k", "listed", "text_size", optional=True)
    patches: Linear = weight("kv", "text_size", "hidden_size")
    query_norm: LayerNorm = weight("ln_q", "text_size")
    patch_norm: LayerNorm = weight("ln_kv", "text_size")
    attention_query: Linear = weight("attn.q", "text_size", "text_size")
    attention_key: Linear = weight("attn.k", "text_size", "text_size")
    attention_value: Linear = weight("attn.v", "text_size", "text_size")
    attention_output: Linear = weight("attn.out", "text_size", "text_size")
    norm: LayerNorm = weight("ln_post", "text_size")
    projection: Linear = weight("proj", "text_size", "text_size")

    def loaded(self) -> None:
        queries = self.attention_query(self.query_norm(self.query.values))
        self._queries = queries.reshape(self.options.queries, -1, HEAD_DIM)

    def forward(self, hidden: Array, height: int, width: int, slice_rows: int) -> Slices[Array]:
        """Map a grid of patches [height * width, hidden] to [queries, text_size]."""
        size = self.options.text_size
        places = grid_waves(height, width, size)
        keys = PatchKeys(self.ops, size // HEAD_DIM, HEAD_DIM)
        try:
            keys.reserve(len(hidden))
            for begin, end in pieces(len(hidden), slice_rows):
                shape = end - begin, size // HEAD_DIM, HEAD_DIM
                values = self.patch_norm(self.patches(hidden[begin:end]))
                placed = values + self.ops.array(places[begin:end])
                keys.put(
                    begin,
                    self.attention_key(placed).reshape(shape),
                    self.attention_value(values).reshape(shape),
                )
                yield
            found = keys.attend(self._queries, 0, self._all(len(hidden)), HEAD_DIM**-0.5)
        finally:
            keys.release()
        return self.projection(self.norm(self.attention_output(found)))

    def _all(self, patches: int) -> Groups:
        """Return groups that let every query attend to all patches."""
        starts = np.zeros(self.options.queries, np.int32)
        return Groups(self.ops.array(starts), self.ops.array(starts + np.int32(patches)))


def grid_waves(height: int, width: int, size: int) -> NDArray[np.float32]:
    """Return sines and cosines of each patch's column, then of its row: [height * width, size]."""
    frequencies = 10000.0 ** (-np.arange(size // 4) / (size // 4))
    row, column = (axis.reshape(-1, 1) * frequencies for axis in np.mgrid[:height, :width])
    waves = [np.sin(column), np.cos(column), np.sin(row), np.cos(row)]
    return np.concatenate(waves, axis=1).astype(np.float32)
