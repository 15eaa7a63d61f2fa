"""From tokens to text that may be shown: the one place where output is held back.

Stop strings across token borders, whole characters only, thinking and tool calls told from what is said.
"""

from __future__ import annotations

import codecs
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from puna.engine.stop_search import stop_search
from puna.markup.answer import AnswerParser
from puna.markup.parts import Said, Thought

if TYPE_CHECKING:
    from collections.abc import Sequence

    from puna.engine.events import TokenLogprob
    from puna.markup.family import Reading
    from puna.markup.parts import Part

_utf8_decoder = codecs.getincrementaldecoder("utf-8")


@dataclass
class Piece:
    """A generated token and what belongs to it."""

    token: int
    text: bytes
    logprob: TokenLogprob | None = None


@dataclass
class Released:
    """Output that is final, with the pieces whose first byte is in it."""

    parts: list[Part] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    stop: str | None = None  # the stop string that was found; nothing follows
    cut: list[Piece] = field(default_factory=list)  # those of which nothing is shown, because of it

    def __bool__(self) -> bool:
        return bool(self.parts or self.pieces or self.stop)

    @property
    def text(self) -> str:
        """All of it that is said."""
        return "".join(part.text for part in self.parts if isinstance(part, Said))

    @property
    def thinking(self) -> str:
        """All of it that is thought."""
        return "".join(part.text for part in self.parts if isinstance(part, Thought))


class TextStream:
    """Holds text back while it could be the start of a stop string or of markup, or is half a character.

    `reading` says how thinking and calls are told from what is said; without it, all is said.
    """

    def __init__(self, stop: Sequence[str] = (), reading: Reading | None = None) -> None:
        self._stops = stop_search(tuple(stop))
        self._state = 0  # of `_stops`
        self._parser = AnswerParser(reading) if reading is not None else None
        self._held = bytearray()
        self._begin = 0  # bytes released before those held
        self._pieces: deque[tuple[int, Piece]] = deque()  # (place of its first byte in all bytes, piece)

    @property
    def enough(self) -> bool:
        """Whether the answer is over, whatever else comes: it has the one call that is wanted."""
        return self._parser is not None and self._parser.enough

    def feed(self, piece: Piece) -> Released:
        """Add a token's bytes; returns what can be shown now."""
        end = self._begin + len(self._held)
        self._pieces.append((end, piece))
        self._held += piece.text
        found = self._find_stop(piece.text, end)
        if found is not None:
            begin, stop = found
            return self._release(begin - self._begin, stop)
        undecided = self._stops.depth(self._state) if self._stops is not None else 0
        return self._release(len(self._held) - max(undecided, incomplete_tail(self._held)))

    def flush(self, *, complete: bool = False) -> Released:
        """Everything that was held, at the end of the generation; half a character is dropped.

        The answer is `complete` if the model has ended it.
        """
        released = self._release(len(self._held) - incomplete_tail(self._held))
        released.pieces += [piece for _, piece in self._pieces]
        self._pieces.clear()
        self._held.clear()
        if self._parser is not None:
            released.parts += self._parser.flush(complete=complete)
        return released

    def _find_stop(self, added: bytes, at: int) -> tuple[int, str] | None:
        """The stop string that begins first of those that end in `added`, the bytes from `at` on."""
        if self._stops is None:
            return None
        found: list[tuple[int, str]] = []
        for end, byte in enumerate(added, start=at + 1):
            self._state = self._stops.step(self._state, byte)
            if text := self._stops.found(self._state):
                found.append((end - len(text.encode()), text))
        return min(found, default=None)

    def _release(self, size: int, stop: str | None = None) -> Released:
        text = bytes(self._held[:size]).decode("utf-8", errors="replace")
        parts: list[Part] = [Said(text)] if text else []
        if self._parser is not None:
            parts = self._parser.feed(text)
        self._begin += size
        pieces: list[Piece] = []
        while self._pieces:
            begin, piece = self._pieces[0]
            # A piece without text of its own goes with what comes before it.
            if begin > self._begin or (begin == self._begin and piece.text):
                break
            pieces.append(piece)
            self._pieces.popleft()
        cut: list[Piece] = []
        if stop is not None:
            cut = [piece for _, piece in self._pieces]
            self._held.clear()
            self._pieces.clear()
        else:
            del self._held[:size]
        return Released(parts, pieces, stop, cut)


def incomplete_tail(data: bytes | bytearray) -> int:
    """How many bytes at the end of `data` begin a UTF-8 character and wait for the rest of it."""
    decoder = _utf8_decoder(errors="replace")
    decoder.decode(data[-3:])  # the longest such beginning; what it cuts in two before that does not count
    return len(decoder.getstate()[0])
