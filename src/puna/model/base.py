"""Interface of models for the engine, and the base class of Puna's own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, runtime_checkable

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

#: Positions of a cache that only answers questions about size.
_SMALL: Final = 512


class RunnableModel(Protocol):
    """Interface between the engine and a model, whatever computes it.

    A model and its caches belong together: the contents of a cache are private to them.
    """

    @property
    def engine(self) -> str:
        """Engine that computes it, one of `puna.options.ENGINES`."""

    @property
    def ops(self) -> Backend:
        """Backend of its results, which also samples from them."""

    @property
    def generates(self) -> bool:
        """Whether it predicts tokens; if not, it embeds texts, each read whole in one pass."""

    @property
    def encodes_prompts(self) -> bool:
        """Whether an encoder reads the prompt, so that the decoder continues an answer instead."""

    @property
    def classifier(self) -> Classifier | None:
        """Classifier that scores documents, or None."""

    @property
    def grows(self) -> bool:
        """Whether caches take memory as they fill; if not, all of it at once."""

    @property
    def exact_context(self) -> bool:
        """Whether results depend on the context that the cache was made for."""

    @property
    def max_sequences(self) -> int | None:
        """Limit of sequences in a cache; None if only memory limits them."""

    def cache_room(self, reserved: int = 0) -> int:
        """Return how many bytes caches may take, where they are kept; at least 0.

        `reserved` bytes of the machine's own memory are for others.
        """

    def make_cache(self, *, sequences: int, context: int, capacity: int, types: KVTypes) -> Cache:
        """Make a cache for sequences of at most `context` positions.

        Together they hold at most `capacity` positions, counting shared ones once.
        """

    def sample_cache(self, types: KVTypes) -> Cache:
        """Make a tiny cache that only answers how large others of its kind would be."""

    def inputs(self, tokens: Sequence[int]) -> list[Input]:
        """Return the inputs that start a sequence with the prompt `tokens`."""

    def forward(self, batch: BatchArrays, cache: Cache) -> Array:
        """Return logits float32 [outputs, vocab] of the rows `batch.outputs`; the cache keeps all rows."""

    def hidden(self, batch: BatchArrays, cache: Cache) -> Array:
        """Return hidden states float32 [outputs, hidden] of the rows `batch.outputs`, after the last norm.

        The cache keeps all rows. Embeddings and logits are made from these.
        """

    def hidden_and_logits(self, batch: BatchArrays, cache: Cache, predicted: Array) -> tuple[Array, Array]:
        """Return the result of `hidden`, and logits [predicted, vocab] of its rows `predicted`."""


@dataclass(frozen=True)
class PassPart:
    """A part of a model's passes that one backend computes.

    `compute` takes what the part before it returned, float32 [rows, width] each, and the batch, all as arrays
    of `ops`. The first part takes nothing, and the last one returns logits.
    """

    ops: Backend
    compute: Callable[[list[Array], BatchArrays, Cache], list[Array]]


@runtime_checkable
class InParts(Protocol):
    """A model whose passes consist of several parts."""

    @property
    def parts(self) -> Sequence[PassPart]: ...


def parts_of(model: RunnableModel) -> Sequence[PassPart]:
    """Return the parts of a model's passes; usually there is one."""
    if isinstance(model, InParts):
        return model.parts

    def whole(_: list[Array], batch: BatchArrays, cache: Cache) -> list[Array]:
        return [model.forward(batch, cache)]

    return [PassPart(model.ops, whole)]


class TextModel(Module):
    """`RunnableModel` computed with a backend's operations. One subclass per architecture."""

    engine: ClassVar[str] = PUNA
    generates: ClassVar[bool] = True
    grows: ClassVar[bool] = True
    exact_context: bool = False
    max_sequences: ClassVar[int | None] = None

    encodes_prompts: ClassVar[bool] = False

    #: Why its layers cannot be divided among processes; empty if they can.
    undivided: ClassVar[str] = "its layers read a whole text together"

    #: Hidden state of a query and document that a reranker reads, unless its file states another.
    ranks_by: ClassVar[Pooling] = Pooling.LAST

    options: TextOptions
    classifier: Classifier | None = part(choose=classifier_of)

    def __init__(self, options: TextOptions, ops: Backend, index: int = 0) -> None:
        super().__init__(options, ops, index)
        self.row_scales = RowScales(ops)  # strength of adapters per row

    @classmethod
    @abstractmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        """Read the architecture's options from the metadata. Raises `ModelError` for invalid ones."""

    def make_cache(self, *, sequences: int, context: int, capacity: int, types: KVTypes) -> Cache:
        """Make a cache for the layers' memory; see `RunnableModel`."""
        sizes = CacheSizes(sequences, context, capacity, types, self.shift_within(context))
        layers = self.options.layers
        return build_cache(
            self.ops,
            [layer.remembers for layer in layers],
            [layer.kv_shape for layer in layers],
            sizes,
            self.options.has,
        )

    def cache_room(self, reserved: int = 0) -> int:
        return max(self.ops.available_memory(reserved), 0)

    def sample_cache(self, types: KVTypes) -> Cache:
        return self.make_cache(sequences=1, context=_SMALL, capacity=_SMALL, types=types)

    def shift_within(self, context: int) -> Shift | None:
        """Return what moves keys of a cache for `context` positions; None if they cannot be moved."""
        return None

    def forward(self, batch: BatchArrays, cache: Cache) -> Array:
        return self.logits(self.hidden(batch, cache))

    def inputs(self, tokens: Sequence[int]) -> list[Input]:
        return [Input(token) for token in tokens]

    def hidden_and_logits(self, batch: BatchArrays, cache: Cache, predicted: Array) -> tuple[Array, Array]:
        hidden = self.hidden(batch, cache)
        return hidden, self.logits_of(predicted, hidden, batch)

    def logits_of(self, predicted: Array, hidden: Array, batch: BatchArrays) -> Array:
        """Return logits [predicted, vocab] of rows `predicted` of a pass's results `hidden`."""
        if not self.row_scales.active:
            return self.logits(hidden[predicted])
        rows = self.ops.numpy(predicted)
        with self.row_scales.standing_for(
            rows if batch.outputs is None else self.ops.numpy(batch.outputs)[rows]
        ):
            return self.logits(hidden[predicted])

    def kv_shapes(self) -> dict[int, KVShape]:
        """Return the key/value shapes of the layers that attend to earlier tokens."""
        return {i: layer.kv_shape for i, layer in enumerate(self.options.layers) if layer.kv_heads}

    @abstractmethod
    def hidden(self, batch: BatchArrays, cache: Cache) -> Array:
        """See `RunnableModel.hidden`."""

    @abstractmethod
    def logits(self, hidden: Array) -> Array:
        """Return logits float32 [rows, vocab] of hidden states [rows, hidden]."""
