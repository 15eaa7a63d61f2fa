"""From a request to sequences: tokenised, checked, cut to the context."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from puna.batch import Input
from puna.engine.events import MOST_SAMPLES, Generate
from puna.engine.fitting import truncate
from puna.engine.sequence import Generation, Sink
from puna.engine.text import TextStream
from puna.errors import ContextLengthError, RequestError
from puna.model.tokenizer import Tokenizer
from puna.ops import Backend
from puna.prompt.thinking import Tags
from puna.sample import Sampler

#: A generation without a limit of its own ends after this many contexts.
_LIMIT_CONTEXTS = 10


@dataclass(frozen=True)
class FittedPrompt:
    """A prompt as tokens, and how to read what the model says to it."""

    tokens: list[int]
    text: str = ""
    stop: tuple[str, ...] = ()
    thinking: Tags | None = None  # between these it thinks
    dropped: int = 0  # tokens of messages that were left out to make the rest fit


def prepare(
    request: Generate,
    sink: Sink,
    tokenizer: Tokenizer,
    context: int,
    ops: Backend,
    prompt: FittedPrompt | None = None,
) -> list[Generation]:
    """The sequences of `request`, one for each of its samples; `prompt` is what its own came to.

    Raises `RequestError`, and `ContextLengthError` when the prompt is too long and must not be cut.
    """
    if not 1 <= request.samples <= MOST_SAMPLES:
        raise RequestError(f"{request.samples} samples of one prompt: it must be 1 to {MOST_SAMPLES}")
    options = request.options
    prompt = prompt or _plain(request, tokenizer)
    tokens = checked(prompt.tokens, tokenizer)
    inputs, truncated = [Input(token) for token in tokens], 0
    keep = len(tokens) if options.num_keep < 0 else options.num_keep + tokenizer.add_bos
    keep = min(keep, context - 1)
    if len(inputs) > context:
        if not request.truncate:
            raise too_long(len(inputs), context)
        inputs, truncated = truncate(inputs, context, keep)
    longest = _LIMIT_CONTEXTS * context
    predict = longest if options.num_predict < 0 else min(options.num_predict, longest)
    limit = predict if predict or request.prompt_logprobs else None
    sequences = []
    for sample in range(request.samples):
        seed = options.seed if options.seed < 0 else options.seed + sample
        sampler = Sampler(msgspec.structs.replace(options, seed=seed), tokenizer.vocab_size, ops)
        for item in inputs:
            sampler.accept(item.token)
        sequences.append(
            Generation(
                request=request,
                sink=sink,
                inputs=list(inputs),
                limit=limit,
                keep=keep,
                sampler=sampler,
                text=TextStream(prompt.stop, prompt.thinking, prompt.text),
                sample=sample,
                truncated=prompt.dropped + truncated,
            )
        )
    return sequences


def _plain(request: Generate, tokenizer: Tokenizer) -> FittedPrompt:
    """The prompt of a request that is text or tokens."""
    if not isinstance(request.prompt, str | list):
        raise RequestError("a chat becomes a prompt by a model's template: give the engine text or tokens")
    return FittedPrompt(tokenised(request.prompt, tokenizer), stop=request.options.stop or ())


def tokenised(prompt: str | list[int], tokenizer: Tokenizer) -> list[int]:
    """The tokens of `prompt`, at least one. Raises `RequestError`."""
    return checked(tokenizer.encode(prompt) if isinstance(prompt, str) else prompt, tokenizer)


def checked(tokens: list[int], tokenizer: Tokenizer) -> list[int]:
    """`tokens`, which are at least one, all of the vocabulary. Raises `RequestError`."""
    if not tokens:
        raise RequestError("the prompt is empty: it has no tokens, and the model has no begin token")
    if any(not 0 <= token < tokenizer.vocab_size for token in tokens):
        raise RequestError(f"the prompt has token ids outside the vocabulary of {tokenizer.vocab_size}")
    return tokens


def too_long(count: int, context: int) -> ContextLengthError:
    """The error about a prompt of `count` tokens that must not be cut."""
    return ContextLengthError(
        f"the input length exceeds the context length: {count} tokens, and num_ctx is {context}"
    )
