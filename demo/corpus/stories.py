"""Short stories, with a hero, a place and a plot told in varied sentences, and requests for them."""

# ruff: noqa: SIM905 - long lists of words are easier to read and to edit as text

import random
from collections.abc import Sequence
from dataclasses import dataclass

from demo.corpus import words as w
from demo.corpus.plots import PLOTS
from demo.corpus.plots.plot import Plot
from demo.corpus.template import expand, polish

_OPENINGS = (
    "{Once upon a time|Once|Long ago|A long time ago|Many years ago}, there {was|lived} a <desc> "
    "{named|called} <n>. "
    "<He> lived <home>.",
    "{Once upon a time|Once upon a time|Long ago|Not so long ago|In the days when wishes still came true}, "
    "<home>, there "
    "{lived|was} a <desc> {named|called} <n>.",
    "<Home> {there lived|lived} a <desc> {named|called} <n>.",
    "There was once a <desc> {named|called} <n> who lived <home>.",
    "<n> was a <desc> who lived <home>.",
    "{Have you heard of|Do you know the story of|This is the story of|Let me tell you about} <n>? "
    "<He> was a <desc> who lived <home>.",
    "A <desc> {named|called} <n> lived <home>.",
)
_CHARACTER = (
    "<He> was <trait> and <trait2>{.|, and everyone liked <him>.}",
    "{Everyone knew|All the neighbours knew} <him>, because <he> was so <trait>.",
    "<He> was {rather|very|quite} <trait>, but also <trait2>.",
    "<He> {had a <trait> heart and <colour> {shoes|eyes|boots|socks}|always wore a <colour> "
    "{scarf|hat|ribbon|coat}}.",
    "<He> {liked {warm soup|sweet plums|old songs|long walks|rainy days|riddles|fresh bread} and {sunny "
    "mornings|quiet "
    "evenings|good stories|funny hats|strong tea}}.",
    "",
    "",
)
_COLOURS = "red blue green yellow brown grey purple orange white golden".split()


@dataclass(frozen=True)
class Hero:
    """A character: the noun for it, its name and pronouns."""

    kind: str
    name: str
    female: bool

    def slots(self, prefix: str) -> dict[str, str]:
        he, him, his, himself = (
            ("she", "her", "her", "herself") if self.female else ("he", "him", "his", "himself")
        )
        dot = "" if prefix == "n" else f"{prefix}."
        return {
            prefix: self.name,
            f"{dot}he": he,
            f"{dot}him": him,
            f"{dot}his": his,
            f"{dot}himself": himself,
        }


@dataclass(frozen=True)
class Story:
    """A story, with the details needed to ask for it and about it."""

    text: str
    plot: Plot
    slots: dict[str, str]
    hero: Hero
    friend: Hero

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.plot.name, self.hero.name, self.hero.kind)


def invented_name(rng: random.Random) -> str:
    """Draw an invented name, so that the model has to read names from the question."""
    return "".join(rng.choice(w.SYLLABLES) for _ in range(rng.choice((2, 2, 3)))).capitalize()


def draw_hero(rng: random.Random, avoid: Sequence[Hero] = (), name: str | None = None) -> Hero:
    """Draw a hero whose kind and first letter differ from those in `avoid`."""
    while True:
        kinds, weights = _KINDS
        if avoid:  # a friend is a person or an animal, not a thing
            kinds, weights = kinds[:-1], weights[:-1]
        kind, sex = rng.choice(rng.choices(kinds, weights)[0])
        female = rng.random() < 0.5 if sex == "" else sex == "f"
        if rng.random() < 0.05 and name is None and not avoid:
            chosen = invented_name(rng)
        else:
            chosen = name or rng.choice(w.GIRLS if female else w.BOYS)
        hero = Hero(kind, chosen, female)
        if all(h.kind != kind and h.name[0] != chosen[0] for h in avoid):
            return hero


_KINDS = (
    [
        [(k, "") for k in w.ANIMALS[:70]],
        [(k, "") for k in w.ANIMALS[70:]],
        [(k, "f") for k in w.SHE_PEOPLE] + [(k, "m") for k in w.HE_PEOPLE],
        [("girl", "f"), ("boy", "m"), ("princess", "f"), ("prince", "m"), ("cat", ""), ("dog", ""),
         ("fox", "")],
        [(k, "") for k in w.FANTASY],
        [(k, "") for k in w.THINGS],
    ],
    [38, 16, 12, 10, 14, 10],
)  # fmt: skip


def draw_story(rng: random.Random, plot: Plot | None = None, hero: Hero | None = None) -> Story:
    """Draw a new story, with a given plot and hero or with random ones."""
    plot = plot or rng.choice(PLOTS)
    hero = hero or draw_hero(rng)
    friend = draw_hero(rng, avoid=(hero,))
    elder, elder_he = rng.choice(w.ELDERS)
    home, place, spots = rng.choice(w.SETTINGS)
    s1, s2, s3 = rng.sample(spots, 3)
    trait, trait2 = rng.sample(w.TRAITS, 2)
    size = rng.choice(w.SIZES)
    grown = hero.kind.startswith(("old ", "grand", "giant", "king", "queen", "whale", "young"))
    desc = f"{'' if grown else size + ' '}{hero.kind}" if rng.random() < 0.7 else f"{trait} {hero.kind}"
    slots = {
        **hero.slots("n"), **friend.slots("f"), "kind": hero.kind, "fkind": friend.kind, "desc": desc.strip(),
        "e": elder, "e.he": elder_he, "e.his": "his" if elder_he == "he" else "her", "place": place,
        "s1": s1, "s2": s2, "s3": s3, "trait": trait, "trait2": trait2, "colour": rng.choice(_COLOURS),
        "weather": expand(rng.choice(w.WEATHER), {}, rng).strip(),
    }  # fmt: skip
    slots["home"] = expand(home, slots, rng)
    for choices in plot.picks.values():
        slots.update(rng.choice(choices))
    # A picked value is a template too, expanded once so that the story repeats it unchanged.
    for choices in plot.picks.values():
        for key in choices[0]:
            slots[key] = expand(slots[key], slots, rng)
    parts = [expand(rng.choice(_OPENINGS), slots, rng), expand(rng.choice(_CHARACTER), slots, rng)]
    paragraphs = [" ".join(p for p in parts if p)]
    for beat in plot.beats:
        if beat.startswith("?"):
            if rng.random() < 0.5:
                continue
            beat = beat[1:]
        paragraphs.append(expand(beat, slots, rng))
    if rng.random() < 0.12:
        paragraphs[-1] += " The end."
    return Story(_lay_out(paragraphs), plot, slots, hero, friend)


def _lay_out(beats: list[str]) -> str:
    """Join beats into paragraphs of two or three."""
    text = "\n\n".join(" ".join(beats[i : i + 2]) for i in range(0, len(beats), 2))
    for wrong, right in (("This is the story of", "?"), ("Let me tell you about", "?")):
        if text.startswith(wrong):
            text = text.replace(right, ".", 1)
    return "\n\n".join(polish(p) for p in text.split("\n\n"))


_ASK = (
    "{tell|write|give} me a <adj>story", "can you tell me a <adj>story",
    "please {tell|write} me a <adj>story",
    "write a <adj>story", "i want {to hear|to read|} a <adj>story", "make up a <adj>story",
    "could you tell me a <adj>story",
    "tell a <adj>story", "i would like {to hear|} a <adj>story", "a <adj>story", "do you know a <adj>story",
    "<adj>story",
    "create a <adj>story", "please tell a <adj>story", "let me hear a <adj>story", "invent a <adj>story",
    "write me a <adj>tale", "tell me a <adj>tale", "will you tell me a <adj>story",
)  # fmt: skip
_ADJ = ("", "", "", "", "short ", "short ", "little ", "nice ", "new ", "funny ", "happy ", "good ",
        "bedtime ", "fairy ", "sweet ",
        "beautiful ", "children's ")  # fmt: skip


def draw_request(story: Story, rng: random.Random) -> str:
    """Draw a way to ask for this story, without typing mistakes."""
    slots = dict(story.slots)
    adj = rng.choice(_ADJ)
    if story.plot.name == "sleep" and rng.random() < 0.5:
        adj = "bedtime "
    slots["adj"] = adj
    base = expand(rng.choice(_ASK), slots, rng)
    base = base.replace("fairy story", "fairy tale")
    about = rng.random()
    if about < 0.16:
        return polish(base) + rng.choice((".", "!", "?", "", "", ""))
    kind, fkind = slots["kind"], slots["fkind"]
    if about < 0.46:
        topic = f"a {rng.choice(('', '', '', rng.choice(w.TRAITS) + ' ', 'little '))}{kind}"
        if topic != f"a {kind}" and topic.split()[1] not in ("little", slots["trait"]):
            topic = f"a {slots['trait']} {kind}" if slots["trait"] in story.text else f"a {kind}"
    elif about < 0.58:
        topic = rng.choice(
            (f"a {kind} {rng.choice(('named', 'called'))} {story.hero.name}", f"{story.hero.name} the {kind}")
        )
    elif about < 0.64:
        topic = story.hero.name
    elif about < 0.74:
        topic = rng.choice(
            (
                f"a {kind} and a {fkind}",
                f"{story.hero.name} and {story.friend.name}",
                f"a {kind} and {_his(story.hero)} friend",
            )
        )
    elif about < 0.82:
        topic = f"a {kind} " + rng.choice((slots["home"], f"who lives {slots['home']}", slots["home"]))
    elif about < 0.92 and story.plot.about:
        topic = expand(rng.choice(story.plot.about), slots, rng)
        if rng.random() < 0.5 and topic.startswith(("a ", "an ")):
            topic = f"a {kind} and {topic}"
    else:
        topic = rng.choice(tuple(story.plot.themes))
    ending = rng.choice((".", ".", "!", "?", "", "", "", " please"))
    return polish(f"{base} {rng.choice(('about', 'about', 'about', 'of', 'with'))} {topic}") + ending


def _his(hero: Hero) -> str:
    """Return the possessive of a hero's kind."""
    return "her" if hero.female else "his"


# question templates, answer template; the held-out questions are for evaluation only
_QUESTIONS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("who was the story about", "who is the {hero|main character}", "who was the hero of the story",
      "what was the story about",
      "who was it about"), "The story was about <n>, a <kind>."),
    (("what was the name of the <kind>", "what was the <kind> called", "what is the <kind>'s name"),
     "The <kind> was called <n>."),
    (("what was the name of the <fkind>", "what was the <fkind> called", "who was the <fkind>"),
     "The <fkind> was called <f>."),
    (("where did <n> live", "where does <n> live", "where was <n>'s home"), "<n> lived <home>."),
    (("what did <n> want", "what was <n>'s wish", "what did the <kind> want"), "@want"),
    (("what was the problem", "what happened to <n>", "what went wrong"), "@problem"),
    (("how did it end", "how does the story end", "how was the problem solved", "who helped <n>"), "@solved"),
    (("who was <f>", "who is <f>", "what was <f>"), "<f> was a <fkind> and a friend of <n>."),
)  # fmt: skip


def draw_question(story: Story, rng: random.Random) -> tuple[str, str]:
    """Draw a question about the story just told, and its answer."""
    questions, answer = rng.choice(_QUESTIONS)
    if answer.startswith("@"):
        answer = getattr(story.plot, answer[1:])
    return (
        expand(rng.choice(questions), story.slots, rng) + rng.choice(("?", "?", "")),
        polish(expand(answer, story.slots, rng)),
    )
