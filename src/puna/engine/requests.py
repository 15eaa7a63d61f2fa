"""From a request to sequences: tokenised, checked, cut to the context, with its images in their places."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from puna.batch import Image, Input
from puna.chat.answers.family import Reading
from puna.engine.room import truncate
from puna.engine.sequence import Generation, Sink
from puna.engine.text import TextStream
from puna.errors import ContextLengthError, RequestError, UnavailableError
from puna.grammar.compiler.client import Compiler
from puna.model.load import LoadedModel
from puna.protocol import MAX_SAMPLES, Generate
from puna.sample import Sampler
from puna.tokenizer import Tokenizer

if TYPE_CHECKING:
    from puna.vision.tower import VisionTower

#: A generation ends after this many contexts, also where the request says no limit, or a higher one.
_LIMIT_CONTEXTS = 10

#: Text of this size is never refused, however short the context: what does not fit is cut.
_ALWAYS_BYTES = 1 << 20


@dataclass(frozen=True)
class FittedPrompt:
    """A prompt as tokens, and how to read what the model says to it."""

    tokens: list[int]  # at places of images, what stands for their parts
    text: str = ""
    stop: tuple[str, ...] = ()
    reading: Reading | None = None  # how thinking and calls are told from what is said
    dropped: int = 0  # tokens of messages that were left out to make the rest fit
    inputs: list[Input] | None = None  # where there are images


def prepare(
    request: Generate,
    sink: Sink,
    loaded: LoadedModel,
    context: int,
    compiler: Compiler,
    prompt: FittedPrompt | None = None,
) -> list[Generation]:
    """The sequences of `request`, one for each of its samples; `prompt` is what its own came to.

    Raises `RequestError`, and `ContextLengthError` when the prompt is too long and must not be cut.
    """
    if not 1 <= request.samples <= MAX_SAMPLES:
        raise RequestError(f"{request.samples} samples of one prompt: it must be 1 to {MAX_SAMPLES}")
    options, tokenizer = request.options, loaded.tokenizer
    if request.prompt_logprobs and loaded.model.encodes_prompts:
        raise UnavailableError("this model's encoder reads the prompt: its tokens have no log-probabilities")
    prompt = prompt or _plain(request, tokenizer, context)
    tokens = checked(prompt.tokens, tokenizer)
    inputs, truncated = prompt.inputs or [Input(token) for token in tokens], 0
    keep = len(tokens) if options.num_keep < 0 else options.num_keep + tokenizer.add_bos
    keep = min(keep, context - 1)
    if len(inputs) > context:
        if not request.truncate:
            raise too_long(len(inputs), context)
        inputs, truncated = truncate(inputs, context, keep)
    read = [item.token for item in inputs if item.payload is None]
    if loaded.model.encodes_prompts:
        inputs = loaded.model.inputs(read)
        keep = len(inputs)  # else a full context would forget the prompt
        if context <= keep:
            raise ContextLengthError(
                f"num_ctx is {context}, which leaves no room for an answer: set a larger"
            )
    longest = _LIMIT_CONTEXTS * context
    nothing = request.prompt_logprobs and options.num_predict == 0  # only the prompt is scored
    limit = min(options.num_predict, longest) if options.num_predict > 0 or nothing else longest
    sequences = []
    for sample in range(request.samples):
        seed = options.seed if options.seed < 0 else options.seed + sample
        sampler = Sampler(
            msgspec.structs.replace(options, seed=seed),
            tokenizer.vocab_size,
            loaded.ops,
            tokenizer,
            keeps_distribution=request.sampled_logprobs,
        )
        for token in read:
            sampler.accept(token)
        sequences.append(
            Generation(
                request=request,
                sink=sink,
                inputs=list(inputs),
                context=context,
                limit=limit,
                keep=keep,
                sampler=sampler,
                text=TextStream(prompt.stop, prompt.reading),
                constraint=compiler.constraint_of(request.format, prompt.reading, request.id),
                sample=sample,
                truncated=prompt.dropped + truncated,
            )
        )
    return sequences


def _plain(request: Generate, tokenizer: Tokenizer, context: int) -> FittedPrompt:
    """The prompt of a request that is text or tokens."""
    if not isinstance(request.prompt, str | list):
        raise RequestError("a chat becomes a prompt by a model's template: give the engine text or tokens")
    tokens = tokenised(request.prompt, tokenizer, context)
    return FittedPrompt(tokens, stop=request.options.stop or ())


def tokenised(
    prompt: str | list[int], tokenizer: Tokenizer, context: int, *, add_special: bool = True
) -> list[int]:
    """The tokens of `prompt`. Raises `RequestError`, and `ContextLengthError` for more than `max_text`."""
    check_size(text_size(prompt), tokenizer, context)
    if isinstance(prompt, str):
        return tokenizer.encode(prompt, add_special=add_special)
    return prompt


def checked(tokens: list[int], tokenizer: Tokenizer) -> list[int]:
    """`tokens`, which are at least one, all of the vocabulary. Raises `RequestError`."""
    if not tokens:
        raise RequestError("the prompt is empty: it has no tokens, and the model has no begin token")
    tokenizer.check(tokens)
    return tokens


def text_size(prompt: str | list[int]) -> int:
    """Bytes of a text as UTF-8; a token counts as one."""
    if isinstance(prompt, list) or prompt.isascii():
        return len(prompt)
    return len(prompt.encode(errors="surrogatepass"))


def max_text(tokenizer: Tokenizer, context: int) -> int:
    """Bytes of text that are tokenised for one prompt: all that could ever fit, and at least 1 MiB."""
    return max(context * tokenizer.longest_bytes, _ALWAYS_BYTES)


def check_size(size_bytes: int, tokenizer: Tokenizer, context: int) -> None:
    """Raises `ContextLengthError` for more than `max_text`."""
    if size_bytes > (most := max_text(tokenizer, context)):
        raise ContextLengthError(
            f"the prompt has {size_bytes} bytes of text, and at most {most} are read with a context of "
            f"{context} tokens: send less text, or set a larger num_ctx"
        )


def too_long(count: int, context: int) -> ContextLengthError:
    """The error about a prompt of `count` tokens that must not be cut."""
    return ContextLengthError(
        f"the input length exceeds the context length: {count} tokens, and num_ctx is {context}"
    )


_TAG = re.compile(r"\[img-(\d{1,9})\]")


def read_text(
    text: str,
    images: list[Image],
    tokenizer: Tokenizer,
    tower: VisionTower | None,
    *,
    add_special: bool = True,
) -> list[Input]:
    """The inputs of `text`, in which `[img-N]` stands for the image with the number N.

    Without images such a tag is text like any other. Begin and end tokens are added as the model wants them
    around a whole text: never beside an image in the middle of one. Raises `RequestError` for a number that
    no image has.
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


def _numbered(images: list[Image], number: int) -> Image:
    if number >= len(images):
        numbers = "0" if len(images) == 1 else f"0 to {len(images) - 1}"
        raise RequestError(
            f"invalid image index: the prompt has [img-{number}], and images are numbered {numbers}"
        )
    return images[number]
