"""EAGLE-3: a head in a file of its own, which drafts for another model from the states of its layers.

Li et al., arXiv:2503.01840; `norm_before_residual` and `norm_before_fc` are later additions of vLLM's
speculators. The inputs of three layers of the target are fused into one state of each position. From it and
the next token, the head's only layer predicts the token after that; its result is the next position's state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from puna.batch import BatchArrays
from puna.errors import ModelError, RequestError
from puna.gguf.metadata import flag, invalid, missing, required, table_rows
from puna.kvcache.cache import Cache
from puna.model.base import RunnableModel
from puna.model.decoder import Decoder
from puna.model.layer_cache import Everything
from puna.model.options import LayerOptions, TextOptions
from puna.nn.attention import SelfAttention
from puna.nn.feed_forward import FeedForward
from puna.nn.layers import Embedding, Linear, RMSNorm
from puna.nn.module import Module, blocks, part, weight
from puna.ops import Array, Rope

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: Layers of the target whose inputs are read.
_READ = 3


@dataclass(frozen=True, kw_only=True)
class Eagle3LayerOptions(LayerOptions):
    norm_before_residual: bool  # whether the state is normalised before it is added to
    features_size: int  # of what is read from the target for each position

    @property
    def joined_size(self) -> int:
        return 2 * self.hidden_size

    @property
    def mixing_values(self) -> int:
        return self.features_size


@dataclass(frozen=True, kw_only=True)
class Eagle3Options(TextOptions):
    target_size: int  # hidden size of the target
    target_layers: tuple[int, ...]  # whose inputs are read; the target's result counts as one more layer's
    draft_vocab_size: int  # 0: the target's output is used
    norm_before_fc: bool

    @property
    def features_size(self) -> int:
        return len(self.target_layers) * self.target_size


class JoinedAttention(SelfAttention):
    """Self-attention whose input is a token's embedding joined with the state before it."""

    query: Linear = weight("attn_q", "query_size", "joined_size")
    key: Linear = weight("attn_k", "key_size", "joined_size")
    value: Linear = weight("attn_v", "value_size", "joined_size")


class DraftLayer(Module):
    options: Eagle3LayerOptions
    embedding_norm: RMSNorm = weight("attn_norm", "hidden_size")
    state_norm: RMSNorm = weight("attn_norm_2", "hidden_size")
    mixer: JoinedAttention = part()
    feed_forward_norm: RMSNorm = weight("ffn_norm", "hidden_size")
    feed_forward: FeedForward = part()

    def forward(
        self, embedded: Array, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None
    ) -> Array:
        """Return the states [outputs, hidden] of the rows `batch.outputs`.

        Row t of the batch has an embedding and the state of the position before, [rows, hidden] both.
        """
        normed = self.state_norm(hidden)
        joined = self.ops.join([self.embedding_norm(embedded), normed])
        mixed = self.mixer.forward(joined, batch, cache, rope, batch.outputs)
        residual = normed if self.options.norm_before_residual else hidden
        residual = residual if batch.outputs is None else residual[batch.outputs]
        hidden, normed = self.feed_forward_norm.after_adding(mixed, residual)
        total: Array = hidden + self.feed_forward.forward(normed)
        return total


class Eagle3(Decoder):
    """Head, which can run once it is attached to its target."""

    undivided: ClassVar[str] = "it is a draft model"

    options: Eagle3Options
    token_embedding: Embedding | None = weight(  # type: ignore[assignment]
        "token_embd", "vocab_size", "hidden_size", optional=True
    )
    layers: Sequence[DraftLayer] = blocks("blk")  # type: ignore[assignment]
    output: Linear | None = weight(  # type: ignore[assignment]
        "output", "draft_vocab_size", "hidden_size", optional=True
    )
    fusion: Linear = weight("fc", "hidden_size", "features_size")
    fusion_norm: RMSNorm | None = weight("enc.output_norm", "features_size", optional=True)
    target_tokens: Array | None = weight("d2t", "draft_vocab_size", optional=True)

    #: The token of the target that each logit stands for; None if all do.
    tokens: NDArray[np.int64] | None = None

    def loaded(self) -> None:
        super().loaded()
        o = self.options
        if (self.fusion_norm is None) == o.norm_before_fc:
            state = "missing" if o.norm_before_fc else "not used, as 'norm_before_fc' is false"
            raise ModelError(f"tensor 'enc.output_norm.weight' is {state}")
        if self.target_tokens is not None:
            self.tokens = self.ops.numpy(self.target_tokens).astype(np.int64)
            if self.tokens.min() < 0 or self.tokens.max() >= o.vocab_size:
                raise ModelError(f"tensor 'd2t' has tokens outside the vocabulary of {o.vocab_size}")
        elif self.output is not None and o.draft_vocab_size != o.vocab_size:
            raise ModelError(
                f"tensor 'output.weight' has {o.draft_vocab_size} rows for a vocabulary of {o.vocab_size}, "
                "and there is no tensor 'd2t' to say which tokens they stand for"
            )

    def attach(self, target: RunnableModel) -> None:
        """Take what the file lacks from `target`, whose caches keep this head's keys and values from now on.

        Raises `RequestError` unless it is a model in one piece with the sizes that the head was made for.
        """
        if not isinstance(target, Decoder) or target.options.stage is not None or not target.gives_inputs():
            raise RequestError("its layers cannot be read: it is of another kind, or not on one device")
        theirs, ours = target.options, self.options
        if theirs.hidden_size != ours.target_size:
            raise RequestError(
                f"its hidden size is {theirs.hidden_size}, and the head reads states of {ours.target_size}"
            )
        if max(ours.target_layers) > theirs.block_count:
            raise RequestError(
                f"it has {theirs.block_count} layers, and the head reads layer {max(ours.target_layers)}"
            )
        if not (self.token_embedding and self.output) and theirs.hidden_size != ours.hidden_size:
            raise RequestError(
                f"its hidden size is {theirs.hidden_size}, and that of the head, which uses its embeddings "
                f"or output, is {ours.hidden_size}"
            )
        self.embedding = self.token_embedding or target.token_embedding
        self.head_output = self.output or target.output
        kinds = (layer.remembers for layer in theirs.layers)
        remembers = next((kind for kind in kinds if isinstance(kind, Everything)), Everything())
        [layer] = self.layers
        layer.mixer.index = target.host(replace(layer.options, remembers=remembers), self._ropes[0])

    @property
    def state_size(self) -> int:
        """Size of the target's hidden states."""
        return self.options.target_size

    @property
    def target_layers(self) -> Sequence[int]:
        """Layers of the target whose inputs are read."""
        return self.options.target_layers

    def fuse(self, features: Sequence[Array]) -> Array:
        """Make one state [rows, hidden] of those of `target_layers`, float32 [rows, target_size] each."""
        joined = self.ops.join(list(features))
        return self.fusion(joined if self.fusion_norm is None else self.fusion_norm(joined))

    def look_ahead(self, head: int, hidden: Array, batch: BatchArrays, cache: Cache) -> Array:
        """Return the states float32 [outputs, hidden] of the rows `batch.outputs`.

        Row t of `hidden` [rows, hidden] is the state of the position before row t of the batch: from `fuse`,
        or from here if that is a draft. `cache` is the target's, in a side pass.
        """
        [layer], [rope] = self.layers, self.layer_ropes(cache.context)
        return layer.forward(self.embedding(batch.tokens), hidden, batch, cache, rope)

    def head_logits(self, head: int, hidden: Array) -> Array:
        """Return logits float32 [rows, tokens] of states from `look_ahead`; see `tokens`."""
        return self.head_output(self.output_norm(hidden))

    @classmethod
    def read_options(cls, file: GGUFFile) -> Eagle3Options:
        options = TextOptions.read(file)
        if len(options.layers) != 1:
            raise invalid(file, "block_count", f"is {len(options.layers)}, and a head has one layer")
        layers, size = _target_layers(file), required(file, "target_hidden_size")
        norm_before_residual = flag(file, "norm_before_residual", False)

        def own(_: int, layer: LayerOptions) -> LayerOptions:
            return Eagle3LayerOptions(
                **vars(layer), norm_before_residual=norm_before_residual, features_size=len(layers) * size
            )

        tokens: Any = file.get("tokenizer.ggml.tokens")
        vocab_size = options.vocab_size or (0 if tokens is None else len(tokens))
        return Eagle3Options(
            **vars(options.each(own)) | {"vocab_size": vocab_size},
            target_size=size,
            target_layers=layers,
            draft_vocab_size=table_rows(file, "output.weight"),
            norm_before_fc=flag(file, "norm_before_fc", False),
        )


def _target_layers(file: GGUFFile) -> tuple[int, ...]:
    """Return the numbers of the target's layers. Raises `ModelError` that names the key."""
    key = "target_layers"
    found: Any = file.get(key)
    if found is None:
        raise missing(file, key)
    values = () if isinstance(found, str | int | float) else tuple(found)
    if len(values) != _READ or not all(type(each) is int and each >= 0 for each in values):
        raise invalid(file, key, f"should be {_READ} layers of the target, but is {values or found}")
    return values
