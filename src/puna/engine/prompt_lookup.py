"""Prompt lookup: draft what followed the last occurrence of a sequence's newest tokens."""

from __future__ import annotations

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
