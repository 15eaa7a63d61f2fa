"""Gemma 4's assistant: a few layers that draft for a Gemma 4, from its hidden states and with its keys.

Reference: `Gemma4AssistantForCausalLM` in Hugging Face transformers, and for the order of passes its
`SinglePositionMultiTokenCandidateGenerator`. The layers have queries only, and attend to the keys and values
of the target's last layer of their kind. Published models may have clusters of the vocabulary, which limit
the logits that are computed; files leave them out, and all logits are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from puna.batch import BatchArrays
from puna.errors import RequestError
from puna.gguf.metadata import required
from puna.kvcache.cache import Cache
from puna.kvcache.types import KVTypes
from puna.kvcache.wrapper import WrapperCache
from puna.model.base import RunnableModel
from puna.model.decoder import Decoder
from puna.model.layer_cache import KeysOf, Window
from puna.model.models.gemma4 import Gemma4, Gemma4LayerOptions, Layer, read_windowed
from puna.model.options import LayerOptions, TextOptions
from puna.nn.attention import BorrowingAttention
from puna.nn.layers import Linear
from puna.nn.module import blocks, part, weight
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class Gemma4AssistantOptions(TextOptions):
    target_size: int  # hidden size of the target

    @property
    def joined_size(self) -> int:
        return 2 * self.target_size


class AssistantLayer(Layer):
    options: LayerOptions
    mixer: BorrowingAttention = part()


class Gemma4Assistant(Decoder):
    """Assistant, which can run once it is attached to its target."""

    #: The layer of the target whose keys and values each layer reads.
    lenders: Sequence[int] = ()

    undivided: ClassVar[str] = "it is a draft model"

    options: Gemma4AssistantOptions
    layers: Sequence[AssistantLayer] = blocks("blk")
    joint: Linear = weight("nextn.pre_projection", "hidden_size", "joined_size")
    next_state: Linear = weight("nextn.post_projection", "target_size", "hidden_size")

    def attach(self, target: RunnableModel) -> None:
        """Use the embeddings of `target`, and the keys and values of its layers.

        Raises `RequestError` unless it is a Gemma 4 in one piece whose sizes the assistant was made for.
        """
        if not isinstance(target, Gemma4) or target.options.stage is not None:
            raise RequestError("it is no Gemma 4 that one device computes as a whole")
        theirs, ours = target.options, self.options
        if theirs.hidden_size != ours.target_size:
            raise RequestError(
                f"its hidden size is {theirs.hidden_size}, and the assistant reads {ours.target_size} values"
            )
        self.lenders = [_last_like(layer.options, theirs.layers) for layer in self.layers]
        for layer, lender in zip(self.layers, self.lenders, strict=True):
            layer.mixer.options = replace(layer.options, remembers=KeysOf(lender))
        self.target_embedding, self.target_scale = target.token_embedding, theirs.embedding_scale

    @property
    def state_size(self) -> int:
        """Size of the target's hidden states."""
        return self.options.target_size

    def draft(self, hidden: Array, batch: BatchArrays, cache: Cache) -> tuple[Array, Array]:
        """Return the logits float32 [rows, vocab] after the tokens of `batch`, and states for another pass.

        Row t of `hidden`, float32 [rows, target_size], is the state that the row's token was drawn from: the
        target's, or that of the pass before. All passes of a draft have the position of its first token;
        `cache` is the target's, in a pass that reads `lenders`.
        """
        embedded = self.target_embedding(batch.tokens) * self.target_scale
        hidden = self.joint(self.ops.join([embedded, hidden]))
        for layer, rope in zip(self.layers, self.layer_ropes(cache.context), strict=True):
            hidden = layer.finish(layer.forward(hidden, batch, cache, rope, None), None)
        normed = self.output_norm(hidden)
        return self.output(normed), self.next_state(normed)

    def make_cache(self, *, sequences: int, context: int, capacity: int, types: KVTypes) -> Cache:
        """Return a cache of nothing, since the target has the keys."""
        return WrapperCache()

    @classmethod
    def read_options(cls, file: GGUFFile) -> Gemma4AssistantOptions:
        def own(_: int, layer: LayerOptions) -> LayerOptions:
            return Gemma4LayerOptions(**vars(layer), layer_input_size=0, keys_as_values=False)

        options = read_windowed(file, only_heads=True).each(own)
        return Gemma4AssistantOptions(**vars(options), target_size=required(file, "embedding_length_out"))


def _last_like(own: LayerOptions, layers: Sequence[LayerOptions]) -> int:
    """Return the last of `layers` with keys and values for the layer `own`. Raises `RequestError`."""
    windows = [layer.remembers.size if isinstance(layer.remembers, Window) else 0 for layer in (own, *layers)]
    alike = [
        index
        for index, layer in enumerate(layers)
        if not isinstance(layer.remembers, KeysOf) and windows[1 + index] == windows[0]
    ]
    kind = f"a window of {windows[0]}" if windows[0] else "full attention"
    if not alike:
        raise RequestError(f"it has no layer with {kind}, which the assistant reads")
    found = layers[alike[-1]]
    if (found.kv_heads, found.head_dim, found.value_dim) != (own.kv_heads, own.head_dim, own.value_dim):
        raise RequestError(
            f"its layers with {kind} have {found.kv_heads} heads of {found.head_dim} values, and the "
            f"assistant reads {own.kv_heads} of {own.head_dim}"
        )
    return alike[-1]
