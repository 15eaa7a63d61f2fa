"""From a request of any kind to the sequences that the engine runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from puna.engine.embedding import prepare_embeddings, prepare_ranking
from puna.engine.requests import FittedPrompt, prepare
from puna.errors import RequestError
from puna.protocol import Embed, Generate

if TYPE_CHECKING:
    from collections.abc import Sequence as Items

    from puna.engine.sequence import Sequence, Sink
    from puna.grammar.compiler.client import Compiler
    from puna.model.adapters.adapters import Uses
    from puna.model.load import LoadedModel


def sequences_of(
    request: Generate | Embed,
    sink: Sink,
    loaded: LoadedModel,
    context: int,
    compiler: Compiler,
    prompt: FittedPrompt | None,
) -> Items[Sequence]:
    """The sequences of `request`; `prompt` is what its own came to, where that is a chat.

    Raises `RequestError`, `ContextLengthError`, `UnavailableError`.
    """
    uses = _adapters_of(request, loaded)
    sequences: Items[Sequence]
    if isinstance(request, Embed) and request.query is not None:
        sequences = prepare_ranking(request, sink, loaded, context)
    elif isinstance(request, Embed):
        sequences = prepare_embeddings(
            request, sink, loaded.tokenizer, context, loaded.pooling, whole=not loaded.generates
        )
    elif not loaded.generates:
        raise RequestError(f"{loaded.path.name} does not generate text; it embeds texts")
    else:
        sequences = prepare(request, sink, loaded, context, compiler, prompt)
    for sequence in sequences:
        sequence.adapters = uses
    return sequences


def _adapters_of(request: Generate | Embed, loaded: LoadedModel) -> Uses:
    """The adapters that `request` is computed with. Raises `RequestError` for one the model does not have."""
    if loaded.adapters is not None:
        return loaded.adapters.uses(request.lora)
    if request.lora:
        raise RequestError("lora: the model has no adapters; load it with some, or leave the field out")
    return ()
