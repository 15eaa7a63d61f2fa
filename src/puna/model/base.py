"""What the engine sees of a model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from puna.batch import BatchArrays, Input
from puna.kvcache.cache import Cache, Shift
from puna.kvcache.storage import KVShape
from puna.kvcache.types import KVTypes
from puna.model.layer_cache import CacheSizes, build_cache
from puna.model.options import TextOptions
from puna.model.pooling import Pooling
from puna.nn.classifier import Classifier, classifier_of
from puna.nn.module import Module, part
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class TextModel(Module):
    """A model that reads tokens. One subclass per architecture."""

    #: Whether it predicts tokens; if not, it makes embeddings of texts, each read whole in one pass.
    generates: ClassVar[bool] = True

    #: Whether what it continues is not the prompt, but an answer to what its encoder makes of the prompt.
    encodes_prompts: ClassVar[bool] = False

    #: Which hidden state of a query with a document tells a reranker most, unless its file says another.
    ranks_by: ClassVar[Pooling] = Pooling.LAST

    options: TextOptions
    classifier: Classifier | None = part(choose=classifier_of)

    @classmethod
    @abstractmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        """The architecture's options from the metadata. Raises `ModelError` when they make no sense."""

    def make_cache(self, *, sequences: int, context: int, capacity: int, types: KVTypes) -> Cache:
        """A cache of what the layers remember, for sequences of at most `context` positions.

        Together they hold at most `capacity` positions, counting once what they share.
        """
        sizes = CacheSizes(sequences, context, capacity, types, self.shift_within(context))
        layers = self.options.layers
        return build_cache(
            self.ops, [layer.remembers for layer in layers], [layer.kv_shape for layer in layers], sizes
        )

    def shift_within(self, context: int) -> Shift | None:
        """What moves keys of a cache for `context` positions; None: nothing can."""
        return None

    def forward(self, batch: BatchArrays, cache: Cache) -> Array:
        """Logits float32 [wanted, vocab] of the rows `batch.outputs`; the cache remembers all rows."""
        return self.logits(self.hidden(batch, cache))

    def inputs(self, tokens: Sequence[int]) -> list[Input]:
        """What a sequence begins with whose prompt is `tokens`."""
        return [Input(token) for token in tokens]

    def kv_shapes(self) -> dict[int, KVShape]:
        """The keys and values of the layers that attend to earlier tokens."""
        return {i: layer.kv_shape for i, layer in enumerate(self.options.layers) if layer.kv_heads}

    @abstractmethod
    def hidden(self, batch: BatchArrays, cache: Cache) -> Array:
        """Hidden states float32 [wanted, hidden] of the rows `batch.outputs`, after the last norm.

        The cache remembers all rows. Embeddings are made of these, and logits.
        """

    @abstractmethod
    def logits(self, hidden: Array) -> Array:
        """Logits float32 [rows, vocab] after hidden states [rows, hidden]."""
