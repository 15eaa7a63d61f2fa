"""Results of models as torch tensors, for comparison with a reference."""

from __future__ import annotations

import torch

from puna.batch import Batch
from puna.kvcache.cache import Cache
from puna.model.base import TextModel


def logits_of(model: TextModel, batch: Batch, cache: Cache) -> torch.Tensor:
    """Return logits [outputs, vocab] of a batch that the cache has room for."""
    ops = model.ops
    return torch.from_numpy(ops.numpy(model.forward(batch.on(ops), cache)).copy())


def states_of(model: TextModel, batch: Batch, cache: Cache) -> torch.Tensor:
    """Return the last hidden states [outputs, hidden] of a batch that the cache has room for."""
    ops = model.ops
    return torch.from_numpy(ops.numpy(model.hidden(batch.on(ops), cache)).copy())
