"""Telling a model's thinking from its answer while both stream in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class Tags:
    """The texts around thinking, such as `<think>` and `</think>`."""

    opening: str
    closing: str


class _State(Enum):
    BEFORE = auto()  # nothing but white space so far
    OPENED = auto()  # right after the opening tag: white space is eaten
    THINKING = auto()
    CLOSED = auto()  # right after the closing tag: white space is eaten
    CONTENT = auto()


class ThinkingParser:
    """Splits one answer, fed in pieces of any size, into thinking and content.

    The opening tag counts only at the very start; anything else there means there is no thinking.
    White space after either tag is dropped. Text that may be the beginning of a tag is held back.
    The pieces' borders make no difference to what comes out altogether.
    """

    def __init__(self, tags: Tags, *, prompt: str = "") -> None:
        """`prompt` is what the answer follows: when it ends in the opening tag, thinking has begun."""
        self._tags = tags
        self._blanks: list[str] = []  # white space before anything else
        self._held = ""
        begun = prompt.rstrip().endswith(tags.opening)
        self._state = _State.OPENED if begun else _State.BEFORE

    def feed(self, text: str) -> tuple[str, str]:
        """What is now certain: more thinking, more content."""
        self._held += text
        thinking = ""
        if self._state is _State.BEFORE:
            self._look_for_opening()
        if self._state is _State.OPENED:
            self._skip_space(_State.THINKING)
        if self._state is _State.THINKING:
            thinking = self._take_thinking()
        if self._state is _State.CLOSED:
            self._skip_space(_State.CONTENT)
        content = ""
        if self._state is _State.CONTENT:
            content, self._held = self._held, ""
        return thinking, content

    def flush(self) -> tuple[str, str]:
        """What was held back, once the answer has ended: (thinking, content)."""
        rest, self._held = self._held, ""
        if self._state is _State.THINKING:
            return rest, ""
        return ("", "".join([*self._blanks, rest])) if self._state is _State.BEFORE else ("", "")

    def _look_for_opening(self) -> None:
        start = self._held.lstrip()
        self._blanks.append(self._held[: len(self._held) - len(start)])
        self._held = start
        if start.startswith(self._tags.opening):
            self._held = start[len(self._tags.opening) :]
            self._state = _State.OPENED
        elif not self._tags.opening.startswith(start):
            self._held = "".join([*self._blanks, start])
            self._state = _State.CONTENT

    def _skip_space(self, following: _State) -> None:
        self._held = self._held.lstrip()
        if self._held:
            self._state = following

    def _take_thinking(self) -> str:
        closing = self._tags.closing
        thinking, found, rest = self._held.partition(closing)
        if found:
            self._held = rest
            self._state = _State.CLOSED
            return thinking
        keep = _overlap(self._held, closing)
        self._held, thinking = self._held[len(self._held) - keep :], self._held[: len(self._held) - keep]
        return thinking


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that `tag` begins with."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)
