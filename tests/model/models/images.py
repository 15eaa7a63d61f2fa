"""Texts with images, run by our model and by transformers'."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from puna.batch import Batch, ImageStates
from puna.kvcache.cache import Cache
from puna.model.load import LoadedModel
from puna.ops import Backend, default_backend
from tests.tiny.forward import logits_of
from tests.tiny.mllama import IMAGE


@dataclass
class Text:
    """Tokens, and the vision states [entries, hidden] of the images among them by position."""

    tokens: list[int]
    images: dict[int, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def random(cls, length: int, images: dict[int, int], *, hidden: int, seed: int) -> Text:
        """Make a text with images of `images[position]` entries."""
        source = torch.Generator().manual_seed(seed)
        tokens = torch.randint(0, IMAGE, (length,), generator=source).tolist()
        for position in images:
            tokens[position] = IMAGE
        states = {p: torch.randn(count, hidden, generator=source) for p, count in images.items()}
        return cls(tokens, states)

    def __len__(self) -> int:
        return len(self.tokens)

    def to(self, end: int) -> Text:
        return Text(self.tokens[:end], {p: states for p, states in self.images.items() if p < end})

    def without(self, begin: int, end: int) -> Text:
        """Return the text without positions [begin, end) and their images."""
        after = {p - end: states for p, states in self.images.items() if p >= end}
        return self.to(begin) + Text(self.tokens[end:], after)

    def __add__(self, other: Text) -> Text:
        moved = {len(self) + position: states for position, states in other.images.items()}
        return Text(self.tokens + other.tokens, self.images | moved)


def reference_log_probabilities(theirs: Any, text: Text) -> torch.Tensor:
    """Return log-probabilities [positions, vocab] computed by transformers.

    The text before the first image is read in a pass of its own: in one pass transformers would let it attend
    to all images, unlike the authors' code and unlike reading in parts. Images are padded to the size of the
    largest with values that must be masked.
    """
    from transformers import DynamicCache
    from transformers.models.mllama.modeling_mllama import _prepare_cross_attention_mask
    from transformers.models.mllama.processing_mllama import (
        convert_sparse_cross_attention_mask_to_dense,
        get_cross_attention_token_mask,
    )

    places = sorted(text.images)
    first = places[0] if places else len(text)
    cache = DynamicCache(config=theirs.config)
    found = []
    with torch.inference_mode():
        if first:
            ids = torch.tensor([text.tokens[:first]])
            found.append(theirs(ids, past_key_values=cache).logits[0])
        if places:
            sizes = [len(text.images[place]) for place in places]
            padded = torch.full((len(places), max(sizes), theirs.config.hidden_size), 7.0)
            for image, place in zip(padded, places, strict=True):
                image[: len(text.images[place])] = text.images[place]
            sparse = get_cross_attention_token_mask(text.tokens, IMAGE)
            dense = convert_sparse_cross_attention_mask_to_dense([sparse], [sizes], max(sizes), len(text))
            seen = torch.from_numpy(dense[:, first:])
            mask, seeing = _prepare_cross_attention_mask(seen, 1, torch.float32)
            answer = theirs(
                torch.tensor([text.tokens[first:]]),
                position_ids=torch.arange(first, len(text))[None],
                past_key_values=cache,
                cross_attention_states=padded.reshape(1, -1, theirs.config.hidden_size),
                cross_attention_mask=mask,
                full_text_row_masked_out_mask=seeing,
            )
            found.append(answer.logits[0])
    return torch.log_softmax(torch.cat(found), dim=-1)


@dataclass
class Part:
    """Positions [begin, end) of `text`, which continue `sequence`."""

    sequence: int
    text: Text
    begin: int
    end: int


def batch_of(parts: list[Part], ops: Backend | None = None) -> Batch:
    """Return one batch of all parts with all rows wanted; images are arrays of `ops`."""
    ops = ops or default_backend()
    positions = [position for part in parts for position in range(part.begin, part.end)]
    tokens = [token for part in parts for token in part.text.tokens[part.begin : part.end]]
    sequences = [part.sequence for part in parts for _ in range(part.begin, part.end)]
    batch = Batch.of(tokens, positions, sequences, list(range(len(tokens))))
    row = 0
    for part in parts:
        for position in range(part.begin, part.end):
            if position in part.text.images:
                batch.payloads.append((row, ImageStates(ops.array(part.text.images[position].numpy()))))
            row += 1
    return batch


def log_probabilities(ours: LoadedModel, cache: Cache, batch: Batch) -> torch.Tensor:
    """Return log-probabilities [outputs, vocab] of the tokens that have logits."""
    with torch.inference_mode():
        cache.start_forward(batch)
        return torch.log_softmax(logits_of(ours.model, batch, cache)[:, :IMAGE], dim=-1)


def read(ours: LoadedModel, cache: Cache, parts: list[Part]) -> list[torch.Tensor]:
    """Return log-probabilities of each part's positions, read in one batch."""
    found = log_probabilities(ours, cache, batch_of(parts, ours.ops))
    return list(found.split([part.end - part.begin for part in parts]))
