"""What the engine sees of a model, and the registry of architectures."""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from puna.batch import Batch
from puna.errors import UnsupportedModelError
from puna.kvcache.cache import Cache
from puna.kvcache.causal import KVShape
from puna.kvcache.types import KVTypes
from puna.nn.module import Module
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class TextModel(Module):
    """A model that reads tokens and predicts the next one. One subclass per architecture."""

    architectures: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @abstractmethod
    def read_options(cls, file: GGUFFile) -> Any:
        """The architecture's options from the metadata. Raises `ModelError` when they make no sense."""

    @abstractmethod
    def kv_shapes(self) -> list[KVShape]:
        """The keys and values of each layer, if it attends."""

    @abstractmethod
    def make_cache(self, *, sequences: int, context: int, capacity: int, types: KVTypes) -> Cache:
        """A cache of the kind this model needs, for sequences of at most `context` positions.

        Together they hold at most `capacity` positions, counting once what they share.
        """

    def forward(self, batch: Batch, cache: Cache) -> Array:
        """Logits float32 [wanted, vocab] of the rows `batch.outputs`; the cache remembers all rows."""
        return self.logits(self.hidden(batch, cache))

    @abstractmethod
    def hidden(self, batch: Batch, cache: Cache) -> Array:
        """Hidden states float32 [wanted, hidden] of the rows `batch.outputs`, after the last norm.

        The cache remembers all rows. Embeddings are made of these, and logits.
        """

    @abstractmethod
    def logits(self, hidden: Array) -> Array:
        """Logits float32 [rows, vocab] after hidden states [rows, hidden]."""


M = TypeVar("M", bound=type[TextModel])
_registry: dict[str, type[TextModel]] = {}


def register(*architectures: str) -> Callable[[M], M]:
    """Class decorator: this model runs files whose `general.architecture` is one of `architectures`."""

    def add(model: M) -> M:
        model.architectures = architectures
        for architecture in architectures:
            _registry[architecture] = model
        return model

    return add


def model_for(architecture: str) -> type[TextModel]:
    """The model of `architecture`. Raises `UnsupportedModelError` that names it and lists the supported."""
    _register_all()
    try:
        return _registry[architecture]
    except KeyError:
        raise UnsupportedModelError(
            f"architecture '{architecture}' is not supported; supported: {', '.join(supported())}"
        ) from None


def supported() -> list[str]:
    """All architectures there is a model for, sorted."""
    _register_all()
    return sorted(_registry)


def _register_all() -> None:
    importlib.import_module("puna.model.models")  # here, not above: every model imports this file
