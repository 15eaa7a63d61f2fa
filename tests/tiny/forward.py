"""What models compute, as torch's tensors, to be compared with a reference."""

from __future__ import annotations

import torch

from puna.batch import Batch
from puna.kvcache.cache import Cache
from puna.model.base import TextModel


def logits_of(model: TextModel, batch: Batch, cache: Cache) -> torch.Tensor:
    """Logits [wanted, vocab] of a batch for which the cache has made room."""
    ops = model.ops
    return torch.from_numpy(ops.numpy(model.forward(batch.on(ops), cache)).copy())


def states_of(model: TextModel, batch: Batch, cache: Cache) -> torch.Tensor:
    """The last hidden states [wanted, hidden] of a batch for which the cache has made room."""
    ops = model.ops
    return torch.from_numpy(ops.numpy(model.hidden(batch.on(ops), cache)).copy())
