"""From tokens to text that may be shown: the one place where output is held back.

Stop strings across token borders, whole characters only, thinking told from the answer.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from puna.prompt.thinking import ThinkingParser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from puna.engine.events import TokenLogprob
    from puna.prompt.thinking import Tags

_utf8_decoder = codecs.getincrementaldecoder("utf-8")


@dataclass
class Piece:
    """A generated token and what belongs to it."""

    token: int
    text: bytes
    logprob: TokenLogprob | None = None


@dataclass
class Released:
    """Text that is final, with the pieces whose first byte is in it."""

    text: str = ""
    thinking: str = ""  # before the text
    pieces: list[Piece] = field(default_factory=list)
    stop: str | None = None  # the stop string that was found; nothing follows
    cut: list[Piece] = field(default_factory=list)  # those of which nothing is shown, because of it

    def __bool__(self) -> bool:
        return bool(self.text or self.thinking or self.pieces or self.stop)


class TextStream:
    """Holds text back while it could be the start of a stop string or of a tag, or is half a character.

    Text between the `thinking` tags is told apart; it has begun already when `prompt` ends in the first.
    """

    def __init__(self, stop: Sequence[str] = (), thinking: Tags | None = None, prompt: str = "") -> None:
        self._stops = [(text, text.encode()) for text in stop if text]
        self._thinking = ThinkingParser(thinking, prompt=prompt) if thinking else None
        self._held = bytearray()
        self._pieces: list[tuple[int, Piece]] = []  # (offset in _held of its first byte, piece)

    def feed(self, piece: Piece) -> Released:
        """Add a token's bytes; returns what can be shown now."""
        self._pieces.append((len(self._held), piece))
        self._held += piece.text
        found = self._find_stop()
        if found is not None:
            begin, stop = found
            return self._release(begin, stop)
        return self._release(len(self._held) - max(self._stop_start(), incomplete_tail(self._held)))

    def flush(self) -> Released:
        """Everything that was held, at the end of the generation; half a character is dropped."""
        released = self._release(len(self._held) - incomplete_tail(self._held))
        released.pieces += [piece for _, piece in self._pieces]
        self._pieces.clear()
        self._held.clear()
        if self._thinking is not None:
            thinking, text = self._thinking.flush()
            released.thinking += thinking
            released.text += text
        return released

    def _find_stop(self) -> tuple[int, str] | None:
        """The earliest stop string in the held text."""
        found = [(begin, text) for text, data in self._stops if (begin := self._held.find(data)) >= 0]
        return min(found, default=None)

    def _stop_start(self) -> int:
        """How many bytes at the end could become a stop string."""
        longest = 0
        for _, data in self._stops:
            for length in range(min(len(data) - 1, len(self._held)), longest, -1):
                if self._held.endswith(data[:length]):
                    longest = length
                    break
        return longest

    def _release(self, end: int, stop: str | None = None) -> Released:
        text = bytes(self._held[:end]).decode("utf-8", errors="replace")
        thinking, text = self._thinking.feed(text) if self._thinking is not None else ("", text)
        # A piece without text of its own goes with what comes before it.
        pieces = [piece for begin, piece in self._pieces if begin < end or (begin == end and not piece.text)]
        cut: list[Piece] = []
        if stop is not None:
            cut = [piece for _, piece in self._pieces[len(pieces) :]]
            self._held.clear()
            self._pieces.clear()
        else:
            del self._held[:end]
            self._pieces = [(begin - end, piece) for begin, piece in self._pieces[len(pieces) :]]
        return Released(text, thinking, pieces, stop, cut)


def incomplete_tail(data: bytes | bytearray) -> int:
    """How many bytes at the end of `data` begin a UTF-8 character and wait for the rest of it."""
    decoder = _utf8_decoder(errors="replace")
    decoder.decode(data[-3:])  # the longest such beginning; what it cuts in two before that does not count
    return len(decoder.getstate()[0])
