"""Turning tokens into text while they arrive."""

from __future__ import annotations

import codecs

from puna.model.tokenizer.tokenizer import Tokenizer


class StreamDecoder:
    """Text of a growing sequence of tokens, given out in whole characters.

    A token may end inside a character; its bytes wait until the rest comes. Bytes that can
    never become a character are given out as U+FFFD at once.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, id: int) -> str:
        """The text that is complete now that `id` has arrived; may be empty."""
        return self._decoder.decode(self._tokenizer.piece(id))

    def flush(self) -> str:
        """The end of the text. A character still incomplete is dropped, and the decoder starts afresh."""
        self._decoder.reset()
        return ""
