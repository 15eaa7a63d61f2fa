"""Sequences made of requests: tokenised, checked, cut to the context, with images in their places."""

from __future__ import annotations

import re
from collections.abc import Sequence as Items
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol, TypeVar

import msgspec

from puna.batch import ImagePart, Input
from puna.chat.answers.family import Reading
from puna.engine.batching import truncate
from puna.engine.sequence import EmbeddingInput, Generation, Sequence, Sink, key_of, marked
from puna.engine.text import TextStream
from puna.engine.thinking import ThoughtLimit
from puna.errors import ContextLengthError, RequestError, UnavailableError
from puna.grammar.compiler.client import Compiler
from puna.grammar.compiler.protocol import FormatTask
from puna.grammar.format import Format
from puna.model.adapters.adapters import Uses
from puna.model.load import LoadedModel
from puna.model.pooling import Pooling
from puna.nn.observation import AttentionObservation
from puna.prefix_blocks import block_digests
from puna.protocol import MAX_SAMPLES, Embed, Generate
from puna.sample import Sampler
from puna.sample.transcript import TokenRules
from puna.tokenizer import Tokenizer

#: A generation ends after this many contexts, even if the request sets no limit or a higher one.
_LIMIT_CONTEXTS: Final = 10

#: Text of this size is always read, however short the context, and cut if it does not fit.
_ALWAYS_BYTES: Final = 1 << 20

_TAG: Final = re.compile(r"\[img-(\d{1,9})\]")

#: An image or a recording.
_Shown = TypeVar("_Shown")
_Shown_contra = TypeVar("_Shown_contra", contravariant=True)

#: The tokens of a query and of a document, with the special tokens around and between them.
Pair = tuple[list[int], list[int]]


@dataclass(frozen=True)
class FittedPrompt:
    """A prompt as tokens, and how to read the answer to it."""

    tokens: list[int]  # placeholders where the parts of images stand
    text: str = ""
    stop: tuple[str, ...] = ()
    reading: Reading | None = None  # how thinking and calls are separated from text
    format: Format | None = None  # of the answer
    budget: int | None = None  # maximum tokens of thinking
    dropped: int = 0  # tokens of messages left out to make the rest fit
    inputs: list[Input] | None = None  # set if there are images, or a recording
    front: int = 0  # first tokens, before the first message that is not the system's; 0: unknown
    ending: int = 0  # last tokens, from the last message on; 0: unknown
    rules: TokenRules | None = None  # of the only sample
    observation: AttentionObservation | None = None  # of the prompt's attention, wanted instead of an answer
    opening: int = 0  # last tokens that begin the answer, which may be missing when it is sent back

    @cached_property
    def task(self) -> bytes | None:
        """The form that answers must have, for the compiler; None for any text. Raises `RequestError`."""
        return FormatTask.pickled_of(self.format, self.reading)


def sequences_of(
    request: Generate | Embed,
    sink: Sink,
    loaded: LoadedModel,
    context: int,
    compiler: Compiler,
    prompt: FittedPrompt | None,
) -> Items[Sequence]:
    """Return the sequences of `request`; `prompt` is its rendered prompt if that is a chat.

    Raises `RequestError`, `ContextLengthError`, `UnavailableError`.
    """
    uses = _adapters_of(request, loaded, prompt)
    sequences: Items[Sequence]
    if isinstance(request, Embed):
        ranks = request.query is not None
        sequences = (_pairs if ranks else _texts)(request, sink, loaded, context)
    elif not loaded.generates:
        raise RequestError(f"{loaded.path.name} does not generate text; it embeds texts")
    else:
        sequences = _samples(request, sink, loaded, context, compiler, prompt)
    for sequence in sequences:
        sequence.adapters = uses
    return sequences


def prompt_blocks(request: Generate, prompt: FittedPrompt, loaded: LoadedModel, context: int) -> list[int]:
    """Return the digests of a prompt's blocks (`puna.prefix_blocks`), by which the cache will know it.

    There are none of a prompt that is too long for `context`. Raises `RequestError`.
    """
    inputs = prompt.inputs or [Input(token) for token in checked(prompt.tokens, loaded.tokenizer)]
    if len(inputs) > context:
        return []
    return block_digests(marked([key_of(item) for item in inputs], _adapters_of(request, loaded, prompt)))


def _adapters_of(request: Generate | Embed, loaded: LoadedModel, prompt: FittedPrompt | None) -> Uses:
    """Return the adapters of `request`. Raises `RequestError` for an adapter the model does not have."""
    if loaded.adapters is not None:
        inputs = (prompt and prompt.inputs) or []
        hears = any(isinstance(item.payload, ImagePart) and item.payload.image.heard for item in inputs)
        return loaded.adapters.uses(request.lora, hears=hears)
    if request.lora:
        raise RequestError("lora: the model has no adapters; load it with some, or leave the field out")
    return ()


# --- generating --------------------------------------------------------------------------------------


def _samples(
    request: Generate,
    sink: Sink,
    loaded: LoadedModel,
    context: int,
    compiler: Compiler,
    prompt: FittedPrompt | None,
) -> list[Generation]:
    """Return a sequence for each sample of `request`.

    Raises `RequestError`, and `ContextLengthError` when the prompt is too long and must not be cut.
    """
    if not 1 <= request.samples <= MAX_SAMPLES:
        raise RequestError(f"{request.samples} samples of one prompt: it must be 1 to {MAX_SAMPLES}")
    if request.prompt_logprobs and loaded.model.encodes_prompts:
        raise UnavailableError("this model's encoder reads the prompt: its tokens have no log-probabilities")
    options, tokenizer = request.options, loaded.tokenizer
    _check_resumed(request, tokenizer)
    prompt = prompt or _plain(request, tokenizer, context)
    inputs, keep, truncated = _cut_prompt(request, prompt, tokenizer, context)
    read = [item.token for item in inputs if item.payload is None]
    if loaded.model.encodes_prompts:
        inputs = loaded.model.inputs(read)
        keep = len(inputs)  # or a full context would forget the prompt
        if context <= keep:
            raise ContextLengthError(
                f"num_ctx is {context}, which leaves no room for an answer: set a larger"
            )
    limit = _limit(request, context) if prompt.observation is None else 0
    sequences = []
    for sample in range(request.samples):
        seed = options.seed if options.seed < 0 else options.seed + sample
        sampler = Sampler(
            msgspec.structs.replace(options, seed=seed),
            tokenizer.vocab_size,
            loaded.ops,
            tokenizer,
            keeps_distribution=request.sampled_logprobs,
            rules=prompt.rules,
        )
        for token in read:
            sampler.accept(token)
        text = TextStream(prompt.stop, prompt.reading)
        sequences.append(
            Generation(
                request=request,
                sink=sink,
                inputs=list(inputs),
                context=context,
                limit=limit,
                keep=keep,
                sampler=sampler,
                text=text,
                thinking=ThoughtLimit(text, prompt.reading, tokenizer, prompt.budget),
                constraint=None if prompt.task is None else compiler.constraint_of(prompt.task, request.id),
                sample=sample,
                truncated=prompt.dropped + truncated,
                front=prompt.front,
                ending=prompt.ending,
                opening=prompt.opening,
                resumed=request.resumed[sample] if sample < len(request.resumed) else [],
                observation=prompt.observation,
            )
        )
    return sequences


def _check_resumed(request: Generate, tokenizer: Tokenizer) -> None:
    """Raise `RequestError` unless the answers that `request` resumes can be repeated."""
    if len(request.resumed) > request.samples:
        raise RequestError(f"resumed: {len(request.resumed)} answers, and samples is {request.samples}")
    for tokens in request.resumed:
        tokenizer.check(tokens)
    if any(request.resumed) and request.options.seed == -1 and request.options.temperature > 0:
        raise RequestError("resumed: an answer can be repeated only with the seed it was begun with")


def _cut_prompt(
    request: Generate, prompt: FittedPrompt, tokenizer: Tokenizer, context: int
) -> tuple[list[Input], int, int]:
    """Return at most `context` inputs of a prompt, how many of them to keep, and how many were dropped."""
    tokens = checked(prompt.tokens, tokenizer)
    inputs = prompt.inputs or [Input(token) for token in tokens]
    num_keep = request.options.num_keep
    keep = min(len(tokens) if num_keep < 0 else num_keep + tokenizer.add_bos, context - 1)
    if len(inputs) <= context:
        return inputs, keep, 0
    if not request.truncate:
        raise too_long(len(inputs), context)
    inputs, truncated = truncate(inputs, context, keep)
    return inputs, keep, truncated


def _limit(request: Generate, context: int) -> int:
    """Return the number of tokens after which the answer ends; 0 to score the prompt only."""
    longest, wanted = _LIMIT_CONTEXTS * context, request.options.num_predict
    scores_only = request.prompt_logprobs and wanted == 0
    return min(wanted, longest) if wanted > 0 or scores_only else longest


def _plain(request: Generate, tokenizer: Tokenizer, context: int) -> FittedPrompt:
    """Return the prompt of a request that has text or tokens."""
    if not isinstance(request.prompt, str | list):
        raise RequestError("a chat becomes a prompt by a model's template: give the engine text or tokens")
    tokens = tokenised(request.prompt, tokenizer, context)
    return FittedPrompt(tokens, stop=request.options.stop or (), format=request.format)


def tokenised(
    prompt: str | list[int], tokenizer: Tokenizer, context: int, *, add_special: bool = True
) -> list[int]:
    """Return the tokens of `prompt`. Raises `ContextLengthError` for more text than `max_text`."""
    check_size(text_size(prompt), tokenizer, context)
    if isinstance(prompt, str):
        return tokenizer.encode(prompt, add_special=add_special)
    return prompt


def checked(tokens: list[int], tokenizer: Tokenizer) -> list[int]:
    """Return `tokens`. Raises `RequestError` if there are none, or one is not in the vocabulary."""
    if not tokens:
        raise RequestError("the prompt is empty: it has no tokens, and the model has no begin token")
    tokenizer.check(tokens)
    return tokens


def text_size(prompt: str | list[int]) -> int:
    """Return the bytes of a text as UTF-8; a token counts as one."""
    if isinstance(prompt, list) or prompt.isascii():
        return len(prompt)
    return len(prompt.encode(errors="surrogatepass"))


def max_text(tokenizer: Tokenizer, context: int) -> int:
    """Return the most bytes of text read for one prompt: as many as could fit, and at least 1 MiB."""
    return max(context * tokenizer.longest_bytes, _ALWAYS_BYTES)


def check_size(size_bytes: int, tokenizer: Tokenizer, context: int) -> None:
    """Raise `ContextLengthError` for more bytes than `max_text`."""
    if size_bytes > (most := max_text(tokenizer, context)):
        raise ContextLengthError(
            f"the prompt has {size_bytes} bytes of text, and at most {most} are read with a context of "
            f"{context} tokens: send less text, or set a larger num_ctx"
        )


def too_long(count: int, context: int) -> ContextLengthError:
    """Return the error for a prompt of `count` tokens that must not be cut."""
    return ContextLengthError(
        f"the input length exceeds the context length: {count} tokens > {context} maximum (num_ctx)"
    )


class Placing(Protocol[_Shown_contra]):
    """Towers, for the images or recordings that they place in a prompt."""

    def place(self, image: _Shown_contra, /) -> list[Input]:
        """Return the prompt inputs of an image: its rows, and the tokens around them."""


def read_text(
    text: str,
    images: Items[_Shown],
    tokenizer: Tokenizer,
    tower: Placing[_Shown] | None,
    *,
    add_special: bool = True,
) -> list[Input]:
    """Return the inputs of `text`, with `[img-N]` replaced by those of image or recording N.

    Without images such a tag is ordinary text. The model's begin and end tokens are added around the whole
    text only, never beside an image in its middle. Raises `RequestError` for a number without an image.
    """
    if tower is None or not images:
        return [Input(token) for token in tokenizer.encode(text, add_special=add_special)]
    pieces = _TAG.split(text)  # text, number, text, ..., text
    inputs: list[Input] = []
    for place in range(0, len(pieces), 2):
        begins, ends = place == 0, place == len(pieces) - 1
        ids = tokenizer.encode(pieces[place], add_special=add_special and begins)
        if add_special and tokenizer.add_eos and tokenizer.eos_id is not None and begins != ends:
            ids = [*ids, tokenizer.eos_id] if ends else ids[:-1]
        inputs += map(Input, ids)
        if not ends:
            inputs += tower.place(_numbered(images, int(pieces[place + 1])))
    return inputs


def _numbered(images: Items[_Shown], number: int) -> _Shown:
    if number >= len(images):
        numbers = "0" if len(images) == 1 else f"0 to {len(images) - 1}"
        raise RequestError(
            f"invalid image index: the prompt has [img-{number}], and images are numbered {numbers}"
        )
    return images[number]


# --- embedding and ranking ---------------------------------------------------------------------------


def _texts(request: Embed, sink: Sink, loaded: LoadedModel, context: int) -> list[EmbeddingInput]:
    """Return a sequence for each input to embed.

    Raises `RequestError`, `UnavailableError` for a model that cannot embed, and `ContextLengthError` when an
    input is too long and must not be cut.
    """
    tokenizer, pooling = loaded.tokenizer, loaded.pooling
    if request.pooling is not None:
        try:
            pooling = Pooling(request.pooling)
        except ValueError:
            known = ", ".join(Pooling)
            raise RequestError(f"pooling '{request.pooling}' is not supported; use one of {known}") from None
    if pooling is None:
        raise UnavailableError("this model does not support embeddings")
    sequences = []
    for number, text in enumerate(request.inputs):
        tokens = checked(tokenised(text, tokenizer, context), tokenizer)
        excess = len(tokens) - context
        if excess > 0:
            if not request.truncate:
                raise too_long(len(tokens), context)
            tokens = _cut_text(tokens, context, tokenizer if isinstance(text, str) else None)
        sequences.append(
            EmbeddingInput(
                request=request,
                sink=sink,
                inputs=[Input(token) for token in tokens],
                pooling=pooling,
                whole=not loaded.generates,
                sample=number,
                truncated=max(excess, 0),
            )
        )
    return sequences


def _cut_text(tokens: list[int], context: int, tokenizer: Tokenizer | None) -> list[int]:
    """Return the first `context` tokens at most, with the begin and end tokens that `tokenizer` adds."""
    end = int(tokenizer is not None and tokenizer.add_eos and tokenizer.eos_id is not None)
    begin = int(tokenizer is not None and tokenizer.add_bos and tokenizer.bos_id is not None)
    if context <= begin + end:
        raise ContextLengthError("input after truncation exceeds maximum context length")
    return tokens[: context - end] + tokens[len(tokens) - end :]


def _pairs(request: Embed, sink: Sink, loaded: LoadedModel, context: int) -> list[EmbeddingInput]:
    """Return a sequence for each document to rank.

    Raises `RequestError`, `UnavailableError` for a model that is not a reranker, and `ContextLengthError`
    when a pair is too long and must not be cut, or the query leaves no room for a document.
    """
    if loaded.ranking is None or loaded.model.classifier is None:
        raise UnavailableError("this model does not support reranking: it has no classifier")
    sequences = []
    for number, document in enumerate(request.inputs):
        if not isinstance(document, str):
            raise RequestError("documents to rank must be texts, not tokens")
        pair, excess = _fitted(request, document, loaded, context)
        sequences.append(
            EmbeddingInput(
                request=request,
                sink=sink,
                inputs=loaded.model.classifier.inputs(*pair),
                pooling=loaded.ranking,
                whole=not loaded.generates,
                score=loaded.model.classifier.score,
                sample=number,
                truncated=excess,
            )
        )
    return sequences


def _fitted(request: Embed, document: str, loaded: LoadedModel, context: int) -> tuple[Pair, int]:
    """Return the tokens of a pair, at most `context`, and how many tokens of the document were dropped."""
    tokenizer, query = loaded.tokenizer, request.query or ""
    check_size(text_size(query) + text_size(document), tokenizer, context)
    pair = _pair(query, document, tokenizer, loaded.rank_template)
    words = tokenizer.encode(document, add_special=False) if _size(pair) > context else []
    dropped = 0
    while (excess := _size(pair) - context) > 0:
        if not request.truncate:
            raise too_long(_size(pair), context)
        if excess > len(words):
            raise ContextLengthError(
                f"the query leaves no room for documents: without one there are {_size(pair) - len(words)} "
                f"tokens, and num_ctx is {context}"
            )
        dropped, words = dropped + excess, words[: len(words) - excess]
        pair = _pair(query, tokenizer.decode(words), tokenizer, loaded.rank_template)
    checked(pair[0] + pair[1], tokenizer)
    return pair, dropped


def _size(pair: Pair) -> int:
    return sum(map(len, pair))


def _pair(query: str, document: str, tokenizer: Tokenizer, template: str | None) -> Pair:
    """Return a query and a document as the model was trained to read them; a template joins their texts."""
    if template is not None:
        before, mark, after = template.partition("{document}")
        return tokenizer.encode(
            before.replace("{query}", query) + (mark and document) + after.replace("{query}", query),
            add_special=False,
        ), []
    begin = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    end = [tokenizer.eos_id] if tokenizer.add_eos and tokenizer.eos_id is not None else []
    # RoBERTa's kind has two separators between the texts.
    between = end * 2 if begin and tokenizer.token(begin[0]) == "<s>" else end
    first, second = (tokenizer.encode(t, add_special=False, parse_special=False) for t in (query, document))
    return begin + first + between, second + end
