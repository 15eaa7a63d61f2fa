"""What the engine sees of a model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from puna.batch import BatchArrays, Input
from puna.kvcache.cache import Cache, Shift
from puna.kvcache.storage import KVShape
from puna.kvcache.types import KVTypes
from puna.model.layer_cache import CacheSizes, build_cache
from puna.model.options import TextOptions
from puna.model.pooling import Pooling
from puna.nn.heads import Classifier, classifier_of
from puna.nn.low_rank import RowScales
from puna.nn.module import Module, part
from puna.ops import Array, Backend
from puna.options import PUNA

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: Positions of a cache that is only asked how large others would be.
_SMALL: Final = 512


class RunnableModel(Protocol):
    """What the engine asks of a model, whatever computes it.

    A model and the caches it makes belong together: what a pass reads and leaves there is their affair.
    """

    @property
    def engine(self) -> str:
        """What computes it, of `puna.options.ENGINES`."""

    @property
    def ops(self) -> Backend:
        """Its results are arrays of this backend, which also samples from them."""

    @property
    def generates(self) -> bool:
        """Whether it predicts tokens; if not, it makes embeddings of texts, each read whole in one pass."""

    @property
    def encodes_prompts(self) -> bool:
        """Whether what it continues is not the prompt, but an answer to what its encoder makes of it."""

    @property
    def classifier(self) -> Classifier | None:
        """What scores documents; None: nothing."""

    @property
    def grows(self) -> bool:
        """Whether caches take memory as they are filled; if not, they take all of it at once."""

    @property
    def exact_context(self) -> bool:
        """Whether what it computes depends on how long a context its cache was made for."""

    @property
    def max_sequences(self) -> int | None:
        """Of a cache; None: as many as there is memory for."""

    def make_cache(self, *, sequences: int, context: int, capacity: int, types: KVTypes) -> Cache:
        """A cache for sequences of at most `context` positions.

        Together they hold at most `capacity` positions, counting once what they share.
        """

    def sample_cache(self, types: KVTypes) -> Cache:
        """A cache that takes next to nothing, to be asked how large others of its kind would be."""

    def inputs(self, tokens: Sequence[int]) -> list[Input]:
        """What a sequence begins with whose prompt is `tokens`."""

    def forward(self, batch: BatchArrays, cache: Cache) -> Array:
        """Logits float32 [wanted, vocab] of the rows `batch.outputs`; the cache remembers all rows."""

    def hidden(self, batch: BatchArrays, cache: Cache) -> Array:
        """Hidden states float32 [wanted, hidden] of the rows `batch.outputs`, after the last norm.

        The cache remembers all rows. Embeddings are made of these, and logits.
        """

    def hidden_and_logits(self, batch: BatchArrays, cache: Cache, predicted: Array) -> tuple[Array, Array]:
        """As `hidden`, and the logits [predicted, vocab] after those of them that `predicted` numbers."""


class TextModel(Module):
    """A `RunnableModel` that computes with a backend's operations. One subclass per architecture."""

    engine: ClassVar[str] = PUNA
    generates: ClassVar[bool] = True
    grows: ClassVar[bool] = True
    exact_context: bool = False
    max_sequences: ClassVar[int | None] = None

    encodes_prompts: ClassVar[bool] = False

    #: Which hidden state of a query with a document tells a reranker most, unless its file says another.
    ranks_by: ClassVar[Pooling] = Pooling.LAST

    options: TextOptions
    classifier: Classifier | None = part(choose=classifier_of)

    def __init__(self, options: TextOptions, ops: Backend, index: int = 0) -> None:
        super().__init__(options, ops, index)
        self.row_scales = RowScales(ops)  # by which adapters change what is computed

    @classmethod
    @abstractmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        """The architecture's options from the metadata. Raises `ModelError` when they make no sense."""

    def make_cache(self, *, sequences: int, context: int, capacity: int, types: KVTypes) -> Cache:
        """A cache of what the layers remember; see `RunnableModel`."""
        sizes = CacheSizes(sequences, context, capacity, types, self.shift_within(context))
        layers = self.options.layers
        return build_cache(
            self.ops, [layer.remembers for layer in layers], [layer.kv_shape for layer in layers], sizes
        )

    def sample_cache(self, types: KVTypes) -> Cache:
        return self.make_cache(sequences=1, context=_SMALL, capacity=_SMALL, types=types)

    def shift_within(self, context: int) -> Shift | None:
        """What moves keys of a cache for `context` positions; None: nothing can."""
        return None

    def forward(self, batch: BatchArrays, cache: Cache) -> Array:
        return self.logits(self.hidden(batch, cache))

    def inputs(self, tokens: Sequence[int]) -> list[Input]:
        return [Input(token) for token in tokens]

    def hidden_and_logits(self, batch: BatchArrays, cache: Cache, predicted: Array) -> tuple[Array, Array]:
        hidden = self.hidden(batch, cache)
        if not self.row_scales.active:
            return hidden, self.logits(hidden[predicted])
        rows = self.ops.numpy(predicted)
        with self.row_scales.standing_for(
            rows if batch.outputs is None else self.ops.numpy(batch.outputs)[rows]
        ):
            return hidden, self.logits(hidden[predicted])

    def kv_shapes(self) -> dict[int, KVShape]:
        """The keys and values of the layers that attend to earlier tokens."""
        return {i: layer.kv_shape for i, layer in enumerate(self.options.layers) if layer.kv_heads}

    @abstractmethod
    def hidden(self, batch: BatchArrays, cache: Cache) -> Array:
        """See `RunnableModel.hidden`."""

    @abstractmethod
    def logits(self, hidden: Array) -> Array:
        """Logits float32 [rows, vocab] after hidden states [rows, hidden]."""
