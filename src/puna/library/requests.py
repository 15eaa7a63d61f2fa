"""From what the library is given to what the engine is asked: checked, with the model's defaults."""

from __future__ import annotations

import io
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec.structs
import numpy as np
import PIL.Image

from puna.chat.templates.author import Author
from puna.chat.templates.choose import check_capabilities
from puna.chat.templates.messages import Chat, Message, Think, as_messages
from puna.config import path_of
from puna.errors import ImageError, OptionError, RequestError, shown
from puna.library.functions import checked_tools
from puna.library.options import RequestOptions, checked_adapters, split_options
from puna.options import Options
from puna.protocol import Embed, Generate


def image_file(image: Any) -> bytes:
    """The bytes of an image file: of a path, of bytes themselves, of a picture of Pillow, of pixels.

    Arrays are uint8 [height, width], [height, width, 3] or, with transparency, [height, width, 4]. Raises
    `ImageError` for anything else, and for a file that cannot be read.
    """
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, str | Path):
        try:
            return path_of(str(image)).read_bytes()
        except OSError as error:
            raise ImageError(f"the image {image} cannot be read: {error}") from error
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or not (image.ndim == 2 or (image.ndim == 3 and image.shape[2] in (3, 4))):
            raise ImageError(
                "an array of pixels is uint8 [height, width], [height, width, 3] or [height, width, 4], "
                f"not {image.dtype} {list(image.shape)}"
            )
        image = PIL.Image.fromarray(np.ascontiguousarray(image))
    if not isinstance(image, PIL.Image.Image):
        raise ImageError(
            "an image is a path, bytes of a file, a PIL.Image or an array of pixels, "
            f"not {type(image).__name__}"
        )
    written = io.BytesIO()
    with_modes = image if image.mode in ("L", "LA", "RGB", "RGBA", "P", "1", "I;16") else image.convert("RGB")
    with_modes.save(written, "PNG", compress_level=1, exif=image.getexif())
    return written.getvalue()


Prompt = str | Sequence[int]

ROLES: Final = ("system", "developer", "user", "assistant", "tool")


def checked_prompt(prompt: Any) -> str | list[int]:
    """A text, or token ids as a list. Raises `RequestError` for anything else."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, bytes | bytearray):
        raise RequestError("a prompt is a text or token ids, not bytes; decode it first")
    if isinstance(prompt, Mapping):
        raise RequestError("a prompt is a text or token ids, not a mapping; messages are for chat()")
    try:
        items = list(prompt)
    except TypeError:
        raise RequestError(
            f"a prompt is a text or token ids, not {type(prompt).__name__}: {prompt!r}"
        ) from None
    if items and isinstance(items[0], str):
        raise RequestError("a prompt is one text or its token ids; for a list of texts use generate_many()")
    if items and isinstance(items[0], Mapping):
        raise RequestError("a prompt is a text or token ids; messages are for chat()")
    return _token_ids(items)


def checked_prompts(prompts: Any, method: str, single: str) -> list[str | list[int]]:
    """A list of prompts, for `method`; `single` is what takes just one. Raises `RequestError`."""
    if isinstance(prompts, str | bytes | bytearray):
        raise RequestError(f"{method}() takes a list of prompts, not one text; use {single}")
    return [checked_prompt(prompt) for prompt in _items(prompts, f"{method}() takes a list of prompts")]


def checked_tokens(tokens: Any) -> list[int]:
    """Integers, whether or not they are tokens of a vocabulary. Raises `RequestError`."""
    if isinstance(tokens, str | bytes | bytearray | Mapping):
        raise RequestError(f"token ids are a list of integers, not {type(tokens).__name__}")
    return _token_ids(_items(tokens, "token ids are a list of integers"))


def checked_messages(messages: Any) -> list[Message]:
    """Messages of a chat. Raises `RequestError` that says which one is wrong."""
    if isinstance(messages, str | bytes | Mapping):
        raise RequestError(
            'a chat is a list of messages like {"role": "user", "content": "Hi!"}, '
            f"not {type(messages).__name__}; for a text use generate()"
        )
    items = _items(messages, 'a chat is a list of messages like {"role": "user", "content": "Hi!"}')
    if not items:
        raise RequestError("the chat has no messages: there must be at least one to answer")
    for number, item in enumerate(items, 1):
        if isinstance(item, Message):
            continue
        if not isinstance(item, Mapping):
            raise RequestError(f"message {number} of the chat must be a mapping, not {item!r}")
        if unknown := [key for key in item if key not in Message.__struct_fields__]:
            allowed = ", ".join(Message.__struct_fields__)
            raise RequestError(
                f"message {number} of the chat has an unknown key {unknown[0]!r}; there are {allowed}"
            )
        if not item.get("role"):
            raise RequestError(f"message {number} of the chat has no role; it is one of {', '.join(ROLES)}")
        if item["role"] not in ROLES:
            raise RequestError(
                f"message {number} of the chat has the unknown role {item['role']!r}; "
                f"use one of {', '.join(ROLES)}"
            )
    return [_with_files(message) for message in as_messages(items)]


def _with_files(message: Message) -> Message:
    """With the bytes of its images."""
    if not message.images:
        return message
    return msgspec.structs.replace(message, images=[image_file(image) for image in message.images])


def checked_choice(choice: Any, tools: bool) -> str:
    """Whether tools may or must be called, or which. Raises `RequestError`."""
    if choice not in ("auto", "none", "required") and not str(choice).startswith("function:"):
        raise RequestError(f'tool_choice is "auto", "none", "required" or "function:NAME", not {choice!r}')
    if choice not in ("auto", "none") and not tools:
        raise RequestError(f"tool_choice is {choice!r}, and there are no tools: give some")
    return str(choice)


def checked_number(name: str, value: Any, least: int, most: int) -> int:
    """`value` as an integer from `least` to `most`. Raises `OptionError`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or not least <= number <= most:
        raise OptionError(f"{name} must be an integer from {least} to {most}, not {value!r}")
    return number


def _items(given: Any, expected: str) -> list[Any]:
    try:
        return list(given)
    except TypeError:
        raise RequestError(f"{expected}, not {shown(given)}") from None


def _token_ids(items: list[Any]) -> list[int]:
    for place, item in enumerate(items):
        if isinstance(item, bool) or not hasattr(item, "__index__"):
            raise RequestError(f"token ids are integers; there is {item!r} at place {place}")
    return [operator.index(item) for item in items]


Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any] | Callable[..., Any]] | None

_MAX_LOGPROBS = 20


class Requests:
    """Makes the requests to a model. All methods raise `RequestError` for wrong arguments."""

    def __init__(self, author: Author) -> None:
        self._author = author
        self._ids = itertools.count(1)

    def prompt(
        self, prompt: Prompt, logprobs: int | None, options: RequestOptions, samples: int = 1
    ) -> Generate:
        """A request to continue `prompt` as it stands: without a template, and without its stop strings."""
        defaults = {"stop": []} | dict(self._author.options)
        return self._generate(checked_prompt(prompt), defaults, logprobs, options, samples=samples)

    def chat(
        self,
        messages: Messages,
        tools: Tools,
        tool_choice: str,
        think: Think,
        logprobs: int | None,
        options: RequestOptions,
    ) -> Generate:
        author = self._author
        described = checked_tools(tools)
        check_capabilities(author.name, author.capabilities, ["tools"] if described else [])
        chat = Chat(
            messages=checked_messages(messages),
            tools=described,
            tool_choice=checked_choice(tool_choice, bool(described)),
        )
        return self._generate(
            author.opened(chat),
            author.options,
            logprobs,
            options,
            template=author.template,
            parser=author.parser,
            think=author.think(think),
        )

    def score(self, prompt: Prompt, top_logprobs: int) -> Generate:
        """A request for nothing but the log-probabilities of `prompt`."""
        return Generate(
            id=next(self._ids),
            prompt=checked_prompt(prompt),
            options=Options(num_predict=0),
            truncate=False,
            prompt_logprobs=True,
            top_logprobs=checked_number("top_logprobs", top_logprobs, 0, _MAX_LOGPROBS),
        )

    def evaluate(self, tokens: list[int]) -> Generate:
        """A request that leaves `tokens` in the prefix cache."""
        return Generate(
            id=next(self._ids),
            prompt=tokens,
            options=Options(num_predict=1, temperature=0),
            truncate=False,
            ignore_eos=True,
        )

    def embed(
        self,
        inputs: Prompt | Sequence[Prompt],
        normalize: bool,
        dimensions: int | None,
        truncate: bool,
        pooling: str | None,
        lora: Mapping[str, float] | None = None,
    ) -> Embed:
        prompts = [inputs] if is_one(inputs) else inputs
        return Embed(
            id=next(self._ids),
            inputs=self._author.framed(checked_prompts(prompts, "embed", "a list with it")),
            normalize=normalize,
            dimensions=0 if dimensions is None else checked_number("dimensions", dimensions, 1, 2**31 - 1),
            truncate=truncate,
            pooling=pooling,
            lora=checked_adapters(lora),
        )

    def _generate(
        self,
        prompt: str | list[int] | Chat,
        defaults: Mapping[str, Any],
        logprobs: int | None,
        options: RequestOptions,
        **more: Any,
    ) -> Generate:
        sampling, treatment = split_options(options)
        return Generate(
            id=next(self._ids),
            prompt=prompt,
            options=Options.merge(defaults, sampling),
            logprobs=logprobs is not None,
            top_logprobs=checked_number("logprobs", logprobs or 0, 0, _MAX_LOGPROBS),
            **treatment,
            **more,
        )


def is_one(inputs: Any) -> bool:
    """Whether that is one text, or the tokens of one."""
    if isinstance(inputs, str | bytes | Mapping):
        return True
    if not hasattr(inputs, "__len__"):
        raise RequestError(f"what is embedded is a text, token ids or a list of them, not {shown(inputs)}")
    return len(inputs) > 0 and not isinstance(inputs[0], str | Sequence | np.ndarray)
