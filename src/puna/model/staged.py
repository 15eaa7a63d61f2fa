"""Models that consist of several stages, wherever those are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from puna.batch import BatchArrays, Input
from puna.kvcache.cache import Cache

if TYPE_CHECKING:
    from puna.model.decoder import Decoder
    from puna.model.options import TextOptions
    from puna.nn.heads import Classifier, PredictionHead
    from puna.ops import Array, Backend


class StagedModel(ABC):
    """A part of `puna.model.base.RunnableModel`: all that the first stage has.

    That is everything that is no layer (see `puna.model.stages.ModelStage`), so passes end there.
    """

    grows: ClassVar[bool] = True
    encodes_prompts: ClassVar[bool] = False
    max_sequences: ClassVar[int | None] = None

    def __init__(self, first: Decoder) -> None:
        self.first = first
        self.engine: str = first.engine
        self.ops: Backend = first.ops
        self.generates: bool = first.generates
        self.classifier: Classifier | None = first.classifier
        self.exact_context: bool = first.exact_context

    @abstractmethod
    def hidden(self, batch: BatchArrays, cache: Cache) -> Array:
        """See `RunnableModel.hidden`."""

    def inputs(self, tokens: Sequence[int]) -> list[Input]:
        return self.first.inputs(tokens)

    def forward(self, batch: BatchArrays, cache: Cache) -> Array:
        return self.first.logits(self.hidden(batch, cache))

    def hidden_and_logits(self, batch: BatchArrays, cache: Cache, predicted: Array) -> tuple[Array, Array]:
        hidden = self.hidden(batch, cache)
        return hidden, self.first.logits_of(predicted, hidden, batch)

    @property
    def options(self) -> TextOptions:
        return self.first.options

    @property
    def prediction_heads(self) -> Sequence[PredictionHead]:
        return self.first.prediction_heads

    def look_ahead(self, head: int, hidden: Array, batch: BatchArrays, cache: Cache) -> Array:
        """See `Decoder.look_ahead`."""
        return self.first.look_ahead(head, hidden, batch, cache)

    def head_logits(self, head: int, hidden: Array) -> Array:
        """See `Decoder.head_logits`."""
        return self.first.head_logits(head, hidden)
