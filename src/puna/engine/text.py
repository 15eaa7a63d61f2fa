"""Text of generated tokens, held back until it is final.

Stop strings may span tokens, characters must be whole, and thinking and tool calls are separated from text.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from puna.chat.answers.family import AnswerParser
from puna.chat.answers.parts import Said, Thought

if TYPE_CHECKING:
    from puna.chat.answers.family import Reading
    from puna.chat.answers.parts import Part
    from puna.protocol import TokenLogprob


class StopSearch:
    """The automaton of Aho and Corasick (1975) over the UTF-8 bytes of `texts`; empty texts are ignored.

    A state stands for the longest end of the bytes read that begins a stop string; 0 for none.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._next: list[dict[int, int]] = [{}]
        #: By state: its length in bytes, the state of its next shorter end, the longest text it ends with.
        self._depth, self._shorter, self._found = [0], [0], [""]
        for text in filter(None, texts):
            self._insert(text)
        self._link()

    def _insert(self, text: str) -> None:
        state = 0
        for byte in text.encode():
            following = self._next[state].get(byte)
            if following is None:
                following = self._next[state][byte] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._shorter.append(0)
                self._found.append("")
            state = following
        self._found[state] = text

    def _link(self) -> None:
        pending = deque(self._next[0].values())
        while pending:
            state = pending.popleft()
            self._found[state] = self._found[state] or self._found[self._shorter[state]]
            for byte, following in self._next[state].items():
                self._shorter[following] = self.step(self._shorter[state], byte)
                pending.append(following)

    def step(self, state: int, byte: int) -> int:
        """Return the state after one more byte."""
        while state and byte not in self._next[state]:
            state = self._shorter[state]
        return self._next[state].get(byte, 0)

    def depth(self, state: int) -> int:
        """Return how many bytes at the end of the input may begin a stop string."""
        return self._depth[state]

    def found(self, state: int) -> str:
        """Return the longest stop string that ends in this state, or an empty string."""
        return self._found[state]


@lru_cache(maxsize=16)
def stop_search(texts: tuple[str, ...]) -> StopSearch | None:
    """Return the automaton of `texts`, shared by samples and requests with the same; None without texts."""
    return StopSearch(texts) if any(texts) else None


_utf8_decoder = codecs.getincrementaldecoder("utf-8")


@dataclass
class TokenText:
    """A generated token with its bytes and log-probability."""

    token: int
    text: bytes
    logprob: TokenLogprob | None = None


@dataclass
class Released:
    """Final output, and the tokens whose first byte is in it."""

    parts: list[Part] = field(default_factory=list)
    pieces: list[TokenText] = field(default_factory=list)
    stop: str | None = None  # the stop string found, after which nothing follows
    cut: list[TokenText] = field(default_factory=list)  # tokens dropped because of the stop string

    def __bool__(self) -> bool:
        return bool(self.parts or self.pieces or self.stop)

    @property
    def text(self) -> str:
        """The text in the output, without thinking."""
        return "".join(part.text for part in self.parts if isinstance(part, Said))

    @property
    def thinking(self) -> str:
        """The thinking in the output."""
        return "".join(part.text for part in self.parts if isinstance(part, Thought))


class TextStream:
    """Text of an answer, held back while it may begin a stop string or markup, or ends inside a character.

    `reading` separates thinking and calls from text; without it, everything is text.
    """

    def __init__(self, stop: Sequence[str] = (), reading: Reading | None = None) -> None:
        self._stops = stop_search(tuple(stop))
        self._state = 0  # of `_stops`
        self._parser = AnswerParser(reading) if reading is not None else None
        self._held = bytearray()
        self._begin = 0  # bytes released before those held
        self._pieces: deque[tuple[int, TokenText]] = deque()  # (place of its first byte in the answer, token)

    @property
    def enough(self) -> bool:
        """Whether the answer is complete, since it has the only call that the request allows."""
        return self._parser is not None and self._parser.enough

    @property
    def thinking(self) -> bool:
        """Whether the text so far ends inside a thought."""
        return self._parser is not None and self._parser.thinking

    @property
    def undecided(self) -> str:
        """The end of the text that may begin markup."""
        return self._parser.undecided if self._parser is not None else ""

    def feed(self, piece: TokenText) -> Released:
        """Add a token's bytes; return the output that became final."""
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
        """Return all held output at the end of the generation, without an incomplete character.

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
        """Return the place and text of the first stop string that ends in `added`, the bytes from `at` on."""
        if self._stops is None:
            return None
        found: list[tuple[int, str]] = []
        for end, byte in enumerate(added, start=at + 1):
            self._state = self._stops.step(self._state, byte)
            if text := self._stops.found(self._state):
                found.append((end - len(text.encode()), text))
        return min(found, default=None)

    def _release(self, size: int, stop: str | None = None) -> Released:
        text = self._held[:size].decode("utf-8", errors="replace")
        parts: list[Part] = [Said(text)] if text else []
        if self._parser is not None:
            parts = self._parser.feed(text)
        self._begin += size
        pieces: list[TokenText] = []
        while self._pieces:
            begin, piece = self._pieces[0]
            # A token without text belongs to the output before it.
            if begin > self._begin or (begin == self._begin and piece.text):
                break
            pieces.append(piece)
            self._pieces.popleft()
        cut: list[TokenText] = []
        if stop is not None:
            cut = [piece for _, piece in self._pieces]
            self._held.clear()
            self._pieces.clear()
        else:
            del self._held[:size]
        return Released(parts, pieces, stop, cut)


def incomplete_tail(data: bytes | bytearray) -> int:
    """Return how many bytes at the end of `data` are the beginning of a UTF-8 character."""
    if not data or data[-1] < 0x80:
        return 0
    decoder = _utf8_decoder(errors="replace")
    decoder.decode(data[-3:])  # the longest such beginning; a character cut in two before it is ignored
    return len(decoder.getstate()[0])
