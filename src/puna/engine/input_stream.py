"""From a text with tags where images stand to the inputs of a model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.batch import Image, Input
from puna.errors import RequestError

if TYPE_CHECKING:
    from puna.model.tokenizer import Tokenizer
    from puna.model.vision.tower import VisionTower

_TAG = re.compile(r"\[img-(\d{1,9})\]")


def read_text(
    text: str,
    images: Sequence[Image],
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


def _numbered(images: Sequence[Image], number: int) -> Image:
    if number >= len(images):
        numbers = "0" if len(images) == 1 else f"0 to {len(images) - 1}"
        raise RequestError(
            f"invalid image index: the prompt has [img-{number}], and images are numbered {numbers}"
        )
    return images[number]
