"""Prompt lookup: what followed the last time the same tokens occurred in a sequence."""

from __future__ import annotations

from puna.engine.prefix_tree import Key

#: So many tokens at the end are looked for, the most first: the longer a match, the surer its continuation.
MATCH_LENGTHS = (4, 3, 2)


class PromptLookup:
    """An index of a growing list of inputs. What it costs per input does not depend on how many there are.

    `keys` is the caller's list, which may only become longer.
    """

    def __init__(self, keys: list[Key]) -> None:
        self._keys = keys
        self._known = 0  # inputs that end no run still to be noted
        self._ends: dict[int, int] = {}  # where a run, by its hash, last ended: a wrong guess harms nobody

    def look_up(self, most: int) -> tuple[int, list[int]]:
        """The length of the match and the up to `most` tokens that followed it; (0, []) without any.

        Where what followed runs into the end of the list, it is taken to go on repeating itself.
        """
        keys = self._keys
        end = len(keys)
        for place in range(max(self._known, MATCH_LENGTHS[-1]), end):  # the end itself would only find itself
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
