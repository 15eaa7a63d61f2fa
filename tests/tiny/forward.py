"""Results of models as torch tensors, for comparison with a reference."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from puna.batch import Batch
from puna.kvcache.cache import Cache
from puna.model.base import TextModel
from puna.model.load import LoadedModel


def logits_of(model: TextModel, batch: Batch, cache: Cache) -> torch.Tensor:
    """Return logits [outputs, vocab] of a batch that the cache has room for."""
    ops = model.ops
    return torch.from_numpy(ops.numpy(model.forward(batch.on(ops), cache)).copy())


def states_of(model: TextModel, batch: Batch, cache: Cache) -> torch.Tensor:
    """Return the last hidden states [outputs, hidden] of a batch that the cache has room for."""
    ops = model.ops
    return torch.from_numpy(ops.numpy(model.hidden(batch.on(ops), cache)).copy())


def encoded(ours: LoadedModel, features: NDArray[np.float32], slice_rows: int = 512) -> NDArray[np.float32]:
    """Return the states [positions, hidden] that a model's audio tower hears in a window's features."""
    assert ours.speech_encoder is not None
    slices = ours.speech_encoder.encode(features, slice_rows)
    try:
        while True:
            next(slices)
    except StopIteration as end:
        return np.array(ours.ops.numpy(end.value))
