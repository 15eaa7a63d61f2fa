"""The story rules detect broken stories."""

from __future__ import annotations

import random
import re

import pytest

from demo.corpus import stories
from demo.story_checks import problems

GOOD = stories.draw_story(random.Random(3)).text
KNOWN = frozenset(re.findall(r"[a-z']+", GOOD.lower())) | {"owl", "it", "was", "again"}


def test_a_good_story_breaks_no_rule() -> None:
    assert problems(GOOD, True, KNOWN) == []


@pytest.mark.parametrize(
    ("rule", "story"),
    [
        ("open quote", GOOD + ' "It was again.'),
        ("last sentence", GOOD + " It was"),
        ("a or an", GOOD + " It was a owl."),
        ("sentence start", GOOD + " it was again."),
        ("doubled word", GOOD + " It was was again."),
        ("repeated sentence", GOOD + " " + 2 * "It was an owl, and it was again an owl. "),
        ("length", "It was an owl."),
        ("unknown word", GOOD + " It was a flurbish."),
        ("too many names", GOOD + " It was Anna, Ben, Clara, Dora and Elliot."),
    ],
)
def test_each_rule_detects_its_mistake(rule: str, story: str) -> None:
    assert rule in problems(story, True, KNOWN | {"anna", "ben", "clara", "dora", "elliot", "and", "a", "an"})


def test_an_unfinished_story_is_detected() -> None:
    assert problems(GOOD, False, KNOWN) == ["does not end"]
