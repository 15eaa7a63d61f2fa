"""Messages between a renderer and its owner: frames of msgpack."""

from __future__ import annotations

from typing import Final

import msgspec

from puna.chat.templates.choose import ChatTemplate
from puna.chat.templates.jinja import OUTPUT_BYTES
from puna.chat.templates.messages import Chat, Insert, Think, Traits

#: Exit status of a renderer that has grown too large to continue.
OVERGROWN: Final = 0

#: Longer replies do not come from our code.
MAX_REPLY_BYTES: Final = 2 * OUTPUT_BYTES


class _Message(msgspec.Struct, tag=True, frozen=True):
    pass


class OpenTemplate(_Message, frozen=True):
    """Begin a request with its template and prompt. Answered by `Opened`."""

    template: ChatTemplate
    prompt: Chat | Insert | None = None
    think: Think = None


class RenderFrom(_Message, frozen=True):
    """Render the conversation as if it began with message `start`. Answered by `Rendered`.

    If not `whole`, the last message and the beginning of the answer are left out.
    """

    start: int = 0
    whole: bool = True


class Close(_Message, frozen=True):
    """End the request. Not answered."""


class RendererReady(_Message, frozen=True):
    """First message of the process, once it has started."""


class Opened(_Message, frozen=True):
    traits: Traits


class Rendered(_Message, frozen=True):
    """A prompt; `opening` is its end if that is missing in later turns (`ChatFormat.opening`)."""

    text: str
    opening: str = ""


class RendererFailure(_Message, frozen=True):
    """An error of the request; `kind` names its class in `puna.errors`."""

    kind: str
    message: str


ToRenderer = OpenTemplate | RenderFrom | Close
FromRenderer = RendererReady | Opened | Rendered | RendererFailure
