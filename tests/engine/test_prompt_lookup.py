"""Prompt lookup against a search through the whole list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from puna.engine.drafting.speculation import MATCH_LENGTHS, PromptLookup
from puna.engine.prefix_tree import Key


def search(keys: list[Key], most: int) -> tuple[int, list[Key]]:
    """Find the longest run at the end of the list at its latest earlier place; return what followed it."""
    for length in MATCH_LENGTHS:
        for place in range(len(keys) - 1, length - 1, -1):
            if len(keys) > length and keys[place - length : place] == keys[-length:]:
                following = list(keys[place:])
                while len(following) < most:
                    following += keys[place:]
                return length, following[:most]
    return 0, []


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 8))
def test_the_longest_and_latest_match_is_found_however_the_list_grew(keys: list[int], most: int) -> None:
    grown: list[Key] = []
    lookup = PromptLookup(grown)
    for index, key in enumerate(keys):
        grown.append(key)
        if key != 2 or index == len(keys) - 1:  # not looked up after every input
            assert lookup.look_up(most) == search(grown, most)


def test_repetition_is_assumed_to_continue() -> None:
    assert PromptLookup([1, 2, 3, 1, 2, 3, 1, 2]).look_up(7) == (4, [3, 1, 2, 3, 1, 2, 3])


def test_parts_of_images_are_matched_but_never_drafted() -> None:
    image = (5, 99)
    assert PromptLookup([image, 1, 2, image, 7, image, 1]).look_up(4) == (2, [2])
    assert PromptLookup([image, 1, 2, 3, (6, 99), 1]).look_up(4) == (0, [])


def test_short_lists_have_no_match() -> None:
    assert (
        PromptLookup([]).look_up(4)
        == PromptLookup([1]).look_up(4)
        == PromptLookup([1, 2, 3]).look_up(4)
        == (0, [])
    )
