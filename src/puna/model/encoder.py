"""Base of encoders, which read a text whole: each token attends to all others, and nothing is kept.

Devlin et al., arXiv:1810.04805. As with decoders, architectures differ in their options, layer by layer, and
in the layers they declare. GELU is exact, as in the references.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from puna.batch import BatchArrays
from puna.errors import NotSupportedError, UnsupportedModelError
from puna.gguf.metadata import flag, table_rows
from puna.kvcache.cache import Cache
from puna.model.base import TextModel
from puna.model.layer_cache import WholeText
from puna.model.options import TextDefaults, TextOptions
from puna.model.pooling import Pooling
from puna.nn.layers import Embedding, LayerNorm, Values
from puna.nn.module import weight
from puna.nn.transformer_layer import TransformerLayer
from puna.ops import Array, Routing

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class EncoderOptions(TextOptions):
    token_types: int = 0  # only the first type is embedded

    @property
    def kinds(self) -> int:
        """Number of token types that the model distinguishes."""
        return 1

    @classmethod
    def read_encoder(
        cls,
        file: GGUFFile,
        *,
        norm_eps: float = 1e-12,
        rope_base: float | None = None,
        routing: Routing | None = None,
    ) -> Self:
        """Read the options from the metadata of `file`; without a `rope_base` nothing is rotated.

        Raises `ModelError` that names the key and its value, and `UnsupportedModelError`.
        """
        if flag(file, "attention.causal", False):
            raise UnsupportedModelError(
                f"{file.path}: '{file.architecture}.attention.causal' is true, which is not supported"
            )
        options = cls.read(
            file,
            TextDefaults(
                norm_eps=norm_eps,
                neox=True,
                rotates=rope_base is not None,
                rope_base=rope_base or 10000.0,
                routing=routing,
            ),
        )
        options = options.each(lambda _, layer: dataclasses.replace(layer, remembers=WholeText()))
        return dataclasses.replace(options, token_types=table_rows(file, "token_types.weight"))


class FirstRow(Values):
    """First row of a table: float32 [columns]."""

    @classmethod
    def arranged(cls, values: NDArray[np.float32], options: Any) -> NDArray[np.float32]:
        return values[:1].reshape(-1)


class Encoder(TextModel):
    """Encoder; an architecture declares its `layers` as `blocks("blk")`."""

    generates: ClassVar[bool] = False
    ranks_by: ClassVar[Pooling] = Pooling.CLS
    options: EncoderOptions
    token_embedding: Embedding = weight("token_embd", "vocab_size", "hidden_size")
    token_type: FirstRow | None = weight("token_types", "token_types", "hidden_size", optional=True)
    embedding_norm: LayerNorm = weight("token_embd_norm", "hidden_size")
    layers: Sequence[TransformerLayer]

    def loaded(self) -> None:
        used = {layer.rope for layer in self.options.layers if layer.rope}
        built = {rope: rope.build() for rope in used}
        self._ropes = [None if layer.rope is None else built[layer.rope] for layer in self.options.layers]

    def embedded(self, batch: BatchArrays) -> Array:
        """Return the token embeddings before any norm: float32 [rows, hidden]."""
        hidden = self.token_embedding(batch.tokens)
        return hidden if self.token_type is None else hidden + self.token_type.values

    def hidden(self, batch: BatchArrays, cache: Cache) -> Array:
        hidden = self.embedding_norm(self.embedded(batch))
        for i, (layer, rope) in enumerate(zip(self.layers, self._ropes, strict=True)):
            last = i == len(self.layers) - 1
            hidden = layer.forward(hidden, batch, cache, rope, batch.outputs if last else None)
        return hidden

    def logits(self, hidden: Array) -> Array:
        raise NotSupportedError(f"{type(self).__name__} embeds texts; it does not predict tokens")
