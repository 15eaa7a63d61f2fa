"""The thinking of one answer: its tokens are counted, and it is closed when they have used up the budget."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from puna.chat.answers.family import Reading
    from puna.engine.text import TextStream
    from puna.tokenizer import Tokenizer


class ThoughtLimit:
    """Follower of the thinking in `text`, which is read as `reading`.

    A thought gets at most `budget` tokens, without those of its tags (None: any number). Then the text that
    ends it, in the words of the model's family, is `forced`: these tokens are used instead of drawn ones.
    """

    def __init__(
        self,
        text: TextStream,
        reading: Reading | None = None,
        tokenizer: Tokenizer | None = None,
        budget: int | None = None,
    ) -> None:
        self.forced: deque[int] = deque()
        self._text = text
        self._reading = reading
        self._tokenizer = tokenizer
        self._budget = budget
        self._inside = text.thinking
        self._counted = 0
        self._undecided = 0  # tokens at the end that may belong to the closing tag
        self._closed = False  # a thought was closed here
        self._close_if_due()

    @property
    def tokens(self) -> int:
        """Tokens of thinking so far, without tags."""
        return self._counted + self._undecided

    @property
    def is_limited(self) -> bool:
        """Whether there is a budget."""
        return self._budget is not None

    def finish(self) -> None:
        """End the thinking now, and any that follows at its beginning."""
        self._budget = 0
        self._close_if_due()

    def give_up(self) -> None:
        """Close nothing any more: the answer's format rules out the closing tag."""
        self.forced.clear()
        self._budget = None

    def follow(self, token: int) -> None:
        """Note that `text` got its next token."""
        if self._reading is None:
            return  # nothing in it is a thought
        was_forced = bool(self.forced) and self.forced[0] == token
        if was_forced:
            self.forced.popleft()
        else:
            self.forced.clear()  # it was drawn before
        was_inside, self._inside = self._inside, self._text.thinking
        if not (was_inside and self._inside):
            self._undecided = 0
        elif self._text.undecided:
            self._undecided += 1
        else:
            self._counted += 1 + self._undecided
            self._undecided = 0
        if was_forced and not self.forced:
            self._closed = True
            if was_inside and self._inside:
                self._budget = None  # the tokenizer cannot spell the tag
        self._close_if_due()

    def _close_if_due(self) -> None:
        if not self._inside or self.forced or self._budget is None or self.tokens < self._budget:
            return
        if self._reading is None or self._tokenizer is None:
            return
        closing = self._reading.family.closing(self._reading, again=self._closed)
        begun = self._text.undecided
        rest = closing.removeprefix(begun) if closing.startswith(begun) else closing
        self.forced.extend(self._tokenizer.encode(rest, add_special=False, first=False))
