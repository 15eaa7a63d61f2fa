"""Draft tokens of a sequence, how many of its earlier ones were accepted, and drafts from its own text."""

from __future__ import annotations

from dataclasses import dataclass, field

from puna.engine.prefix_tree import Key

#: Numbers of newest tokens to match, longest first: the longer the match, the likelier its continuation.
MATCH_LENGTHS = (4, 3, 2)


class PromptLookup:
    """An n-gram index of a growing list of inputs, at a constant cost per input.

    `keys` is the caller's list, which may only grow.
    """

    def __init__(self, keys: list[Key]) -> None:
        self._keys = keys
        self._known = 0  # inputs indexed so far
        self._ends: dict[
            int, int
        ] = {}  # where an n-gram, by its hash, last ended; a collision only costs a rejected draft

    def look_up(self, most: int) -> tuple[int, list[int]]:
        """The length of the match and the up to `most` tokens that followed it; (0, []) without any.

        Where the continuation reaches the end of the list, it is assumed to repeat.
        """
        keys = self._keys
        end = len(keys)
        for place in range(
            max(self._known, MATCH_LENGTHS[-1]), end
        ):  # the newest n-gram would only find itself
            for length in MATCH_LENGTHS:
                if length <= place:
                    self._ends[hash(tuple(keys[place - length : place]))] = place
        self._known = max(self._known, end)
        for length in MATCH_LENGTHS:
            found = self._ends.get(hash(tuple(keys[end - length : end]))) if length <= end else None
            if found is not None:
                return length, self._continuation(found, most)
        return 0, []

    def _continuation(self, begin: int, most: int) -> list[int]:
        keys, period = self._keys, len(self._keys) - begin
        drafts: list[int] = []
        for step in range(most):
            key = keys[begin + step % period]
            if not isinstance(key, int):  # a part of an image
                break
            drafts.append(key)
        return drafts


#: The source of a draft: the length of the matched text, or this for what generates drafts.
GENERATED = 0
#: What the format of an answer leaves no choice about.
FORCED = -1

#: The share of draft tokens that are accepted, by source.
AcceptanceRates = dict[int, float]


@dataclass(eq=False)
class Drafting:
    """How one sequence drafts tokens, and how that has worked so far."""

    mode: str  # "prompt", that of a `Drafter`, or "format": only what is forced
    acceptance: AcceptanceRates
    drafted: int = 0
    accepted: int = 0
    lookup: PromptLookup | None = None  # index of the sequence; made when needed

    @property
    def generated(self) -> bool:
        """Whether a `Drafter` generates the drafts."""
        return self.mode not in ("prompt", "format")


@dataclass
class Draft:
    """Tokens that may follow a sequence's newest one."""

    source: int = 0
    tokens: list[int] = field(default_factory=list)
