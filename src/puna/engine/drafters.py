"""Which of a model's possible sources of drafts an engine has: a draft model, its own heads, or neither."""

from __future__ import annotations

from puna.batch import KeptStates
from puna.engine.draft_model import DraftModel
from puna.engine.prediction_heads import PredictionHeads
from puna.engine.speculation import MAX_DRAFT_TOKENS
from puna.kvcache.cache import Cache
from puna.kvcache.types import KVTypes
from puna.model.decoder import Decoder
from puna.model.load import LoadedModel
from puna.options import drafts_itself


def drafter_for(
    loaded: LoadedModel,
    cache: Cache,
    *,
    context: int,
    capacity: int,
    parallel: int,
    remembered: int,
    batch_size: int,
    cache_types: KVTypes,
    speculate: str | None,
) -> tuple[DraftModel | PredictionHeads | None, KeptStates | None]:
    """The drafter, and the hidden states that a pass is to keep for it.

    `cache` is the model's own, in which its heads remember too; a draft model has one of its own, for which
    the other sizes are.
    """
    if loaded.draft is not None:
        return DraftModel(
            loaded.draft,
            loaded,
            context=context,
            capacity=capacity,
            parallel=parallel,
            remembered=remembered,
            batch=batch_size,
            cache_types=cache_types,
        ), None
    if (
        not drafts_itself(speculate)
        or not isinstance(loaded.model, Decoder)
        or not loaded.model.prediction_heads
    ):
        return None, None
    most = batch_size + parallel * (1 + MAX_DRAFT_TOKENS)
    kept = KeptStates(loaded.ops, most, loaded.model.options.hidden_size)
    vocab_size = loaded.tokenizer.vocab_size
    return PredictionHeads(loaded.model, cache, kept, context=context, vocab_size=vocab_size), kept
