"""Stop strings looked for in text as it comes, in time that does not depend on how many there are."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache


class StopSearch:
    """The automaton of Aho and Corasick (1975) over the UTF-8 bytes of `texts`; empty texts are ignored.

    A state is the longest end of what was read that begins a stop string. 0 is that of nothing.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._next: list[dict[int, int]] = [{}]
        #: By state: its length in bytes, the state of its next shorter end, and the longest text it ends in.
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
        """The state after one more byte."""
        while state and byte not in self._next[state]:
            state = self._shorter[state]
        return self._next[state].get(byte, 0)

    def depth(self, state: int) -> int:
        """How many bytes at the end of what was read may become a stop string."""
        return self._depth[state]

    def found(self, state: int) -> str:
        """The longest stop string that ends here; empty if none does."""
        return self._found[state]


@lru_cache(maxsize=16)
def stop_search(texts: tuple[str, ...]) -> StopSearch | None:
    """The automaton of `texts`, built once for all samples and requests with the same; None without any."""
    return StopSearch(texts) if any(texts) else None
