"""The markup of calls, from the texts that a template writes around them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from puna.markup.parts import Tags

#: What is longer is no tag, and would be compared with every end of an answer.
_LONGEST: Final = 256


def tags_around(texts: Iterable[str]) -> Tags:
    """The tags around calls written as JSON objects: empty where there are none.

    `texts` are those that the template writes for a message with calls, in their order. The opening tag is
    what comes before the first bracket, the closing tag what comes after the last.
    """
    written = [text for text in texts if text.strip()]
    opening = written[0].partition("{")[0].strip().rstrip("[").strip() if written else ""
    if not 0 < len(opening) <= _LONGEST or opening.isalnum():
        return Tags("", "")
    closing = written[-1].rpartition("}")[2].strip().lstrip("]").strip().split("\n")[0].strip()
    return Tags(opening, closing if len(closing) <= _LONGEST and closing != opening else "")
