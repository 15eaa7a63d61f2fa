"""Request bodies of the embedding endpoints, and their replies."""

from __future__ import annotations

import base64
import struct
from typing import Any, Final

import msgspec
from pydantic import Field

from puna.errors import RequestError
from puna.server.wire import Body, texts_or_tokens

Input = str | list[int]

_ENCODINGS: Final = ("float", "base64")


class EmbedRequest(Body):
    """`/api/embed`"""

    model: str = ""
    input: Any = None
    truncate: bool = True
    dimensions: int = 0
    options: dict[str, Any] = Field(default_factory=dict)
    keep_alive: Any = None

    @property
    def inputs(self) -> list[Input]:
        """None for an empty text, and one for an empty text in a list. Raises RequestError."""
        given = [] if self.input in (None, "") else self.input
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise RequestError("invalid input type")
        return list(texts)


class EmbeddingsRequest(Body):
    """`/api/embeddings`, of older clients"""

    model: str = ""
    prompt: str = ""
    options: dict[str, Any] = Field(default_factory=dict)
    keep_alive: Any = None


class OpenAIEmbeddingRequest(Body):
    """`/v1/embeddings`"""

    model: str = ""
    input: Any = None
    dimensions: int = 0
    encoding_format: str = "float"

    @property
    def inputs(self) -> list[Input]:
        """A text, several, the token ids of one, or those of several. Raises RequestError."""
        given = self.input
        if given is None or given == []:
            raise RequestError("invalid input")
        inputs = texts_or_tokens(given)
        if inputs is None:
            raise RequestError("invalid input type")
        return inputs

    @property
    def encoding(self) -> str:
        """Raises RequestError."""
        if (encoding := self.encoding_format.lower()) not in _ENCODINGS:
            raise RequestError(
                f"Invalid value for 'encoding_format' = {self.encoding_format}. "
                f"Supported values: {list(_ENCODINGS)}."
            )
        return encoding


class EmbedReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reply of `/api/embed`. Durations in nanoseconds.

    `truncated` is Puna's own: tokens of the texts that were cut off because they were too long.
    """

    model: str
    embeddings: list[tuple[float, ...]]
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0
    truncated: int = 0


def floats(vector: bytes) -> tuple[float, ...]:
    """The values of little-endian float32."""
    return struct.unpack(f"<{len(vector) // 4}f", vector)


def encoded(vector: bytes, encoding: str) -> str | tuple[float, ...]:
    """A vector as OpenAI's clients ask for it."""
    return base64.b64encode(vector).decode() if encoding == "base64" else floats(vector)
