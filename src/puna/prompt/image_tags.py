"""Where in a conversation its images are: tags in the text, which no template need know of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec.structs

from puna.prompt.messages import Message

#: Where an author of a message wants its next image.
PLACE: Final = "[img]"


def tag(number: int) -> str:
    """What stands in a text for the image with that number."""
    return f"[img-{number}]"


def tagged(messages: Sequence[Message]) -> tuple[list[Message], list[Any]]:
    """The messages with a tag for each of their images, and all images in the order of their numbers.

    An image stands where its message says `[img]`, or else before its text. In place of the images themselves
    the messages have their numbers, so that a template can still ask whether there are any.
    """
    images: list[Any] = []
    shown = []
    for message in messages:
        if not message.images:
            shown.append(message)
            continue
        content, before, numbers = message.content, "", range(len(images), len(images) + len(message.images))
        for number in numbers:
            if PLACE in content:
                content = content.replace(PLACE, tag(number), 1)
            else:
                before += tag(number)
        images += message.images
        shown.append(msgspec.structs.replace(message, content=before + content, images=list(numbers)))
    return shown, images
