"""A few short sentences about the same people and things.

A small model learns last to look back for a name: in whole stories the names are too far apart. Here they
come every few words, and the model learns it within a hundred steps.
"""

# ruff: noqa: SIM905 - long lists of words are easier to read and to edit as text

import random

from demo.corpus import words as w
from demo.corpus.stories import Hero, draw_hero
from demo.corpus.template import expand, polish

_THINGS = (
    "red scarf|silver bell|blue button|golden key|wooden flute|picture book|"
    "green hat|little lantern|toy boat|lucky stone|striped umbrella|music box|"
    "yellow kite|old map|big pear|warm blanket|small box|honey cake"
).split("|")
_OPENINGS = (
    "A <kind> named <n> lived here.",
    "A <kind> called <n> had a <thing>.",
    "A <kind> named <n> met <f>.",
    "<n> the <kind> met <f> the <fkind>.",
    "<n> was a <kind>. <His> friend was a <fkind> named <f>.",
    "<n> and <f> had a <thing>.",
    "<E> had a <thing>. <n> liked <e>.",
    "My name is <n>.",
)
_ONE = (
    "<n> said hello.", "<n> ran to the door.", "<n> sat down, and <he> laughed.", "<n> was happy.",
    "Then <n> slept.",
    '"Hello," said <n>.', "<n> looked up.", "And <n> went home.", "The <kind> was called <n>.",
    "<n> was a <kind>.",
    "<He> was <n>.", "<n>'s heart was beating.", "One day, <n> was hungry.",
)  # fmt: skip
_TWO = (
    "<f> said hello.", "<f> was a <fkind>.", "<n> smiled at <f>.", "<f> smiled at <n>.",
    '"Come in, <n>," said <f>.',
    '"Thank you, <f>," said <n>.', "<f> ran after <n>.", "<n> told <f.him> a story.", "The <fkind> was <f>.",
    "<f> sat down, and <f.he> laughed.", "<n> and <f> were friends.", "They were <n> and <f>.",
)  # fmt: skip
_THING = (
    "<n> took the <thing>.", "The <thing> was lost.", "Where was the <thing>?", "<n> loved the <thing>.",
    "<n> gave <f> the <thing>.", "It was the <thing>!", '"My <thing>!" cried <n>.',
)  # fmt: skip
_ELDER = ("<E> smiled.", '"Good," said <e>.', "<n> went to see <e>.", "<n> asked <e>.")


def draw_snippet(rng: random.Random) -> str:
    """Draw a snippet of about sixty words."""
    hero = draw_hero(rng)
    friend: Hero = draw_hero(rng, avoid=(hero,))
    elder, _ = rng.choice(w.ELDERS)
    slots = {
        **hero.slots("n"), **friend.slots("f"), "kind": hero.kind, "fkind": friend.kind, "e": elder,
        "thing": rng.choice(_THINGS),
    }  # fmt: skip
    opening = rng.choice(_OPENINGS)
    sentences = list(_ONE)
    for slot, more in (("<f>", _TWO), ("<thing>", _THING), ("<e>", _ELDER)):
        if slot in opening:
            sentences += more
    if "<f>" not in opening:
        sentences = [s for s in sentences if "<f" not in s]
    chosen = [opening, *rng.sample(sentences, 9)]
    return polish(" ".join(expand(s, slots, rng) for s in chosen))
