"""Questions about pictures, with answers that follow from the drawing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from demo.vision.scenes import COLOURS, SHAPES, Scene, Thing

CANNOT = "I cannot tell."
NO_PICTURE = "I see no picture."
_NUMBERS = ("None", "One", "Two", "Three", "Four", "Five", "Six")
_PLURALS = {"cross": "crosses"}
_THIRDS = (0.29, 0.38), (0.62, 0.71)  # between which no one place is right


@dataclass(frozen=True)
class Asked:
    """A question and its answer; the evaluation counts by `kind`."""

    kind: str
    question: str
    answer: str


Asking = Callable[[Scene, random.Random], "Asked | None"]

_PHRASES: dict[str, tuple[str, ...]] = {
    "describe": (
        "What is in this picture?", "What is in the picture?", "What do you see?", "Describe this picture.",
        "What is this?", "What is shown here?", "What's in this image?", "Describe the image.",
        "What can you see in this picture?", "What does the picture show?",
    ),
    "count": (
        "How many shapes are there?", "How many shapes do you see?", "How many shapes are in the picture?",
        "Count the shapes.",
    ),
    "count some": (
        "How many {} are there?", "How many {} do you see?", "How many {} are in the picture?",
        "Count the {}.",
    ),
    "colour": (
        "What colour is the {}?", "What color is the {}?", "Which colour does the {} have?",
        "What is the colour of the {}?", "What is the color of the {}?",
    ),
    "shape": (
        "What is {}?", "Which shape is {}?", "What shape is {}?", "What kind of shape is {}?",
        "What shape is the {} one?",
    ),
    "position": ("Where is the {}?", "Where in the picture is the {}?", "Where do you see the {}?"),
    "exists": ("Is there a {}?", "Do you see a {}?", "Is there a {} in the picture?", "Can you see a {}?"),
    "background": (
        "What colour is the background?", "What color is the background?", "What is the background colour?",
        "Which colour is behind it?",
    ),
    "number": (
        "What number is this?", "What is the number?", "Which number do you see?", "What number is shown?",
        "What number is in the picture?", "Read the number.",
    ),
    "word": (
        "What does it say?", "What is written here?", "Read the text.", "What word is this?",
        "What text is in the picture?", "Which word do you see?", "What is the word?",
    ),
    "bars": (
        "How many bars are there?", "How many bars do you see?", "Count the bars.",
        "How many bars does the chart have?",
    ),
    "tallest": (
        "Which bar is the {}?", "What colour is the {} bar?", "What color is the {} bar?",
        "What is the {} bar?",
    ),
}  # fmt: skip

#: Questions that such pictures cannot answer.
_UNKNOWABLE = (
    "Who is this?", "Who is in this picture?", "What is the man doing?", "What is the woman doing?",
    "How old is she?", "How old is he?", "Where was this taken?", "When was this taken?", "Is it raining?",
    "What is the weather like?", "What time is it?", "What is the dog doing?", "Is the person happy?",
    "Which city is this?", "Which country is this?", "What brand is the car?", "Who made this picture?",
    "What is her name?", "What is his name?", "What does it mean?", "Why is it there?",
    "How much does it cost?",
    "How heavy is it?", "What will happen next?", "Is this a famous place?", "What are they eating?",
    "What animal is this?", "Which season is it?", "What is behind the door?", "How far away is it?",
    "What does it smell like?", "Who wrote this?", "What language is this?", "Is it expensive?",
    "What is the person wearing?", "Which sport is this?", "Is it night or day?", "Who lives here?",
)  # fmt: skip
_ABSENT = ("dog", "cat", "person", "tree", "house", "car", "face", "bird", "flower", "boat", "man", "woman")


def typed(text: str, rng: random.Random) -> str:
    """Vary a text as people type it."""
    style = rng.random()
    if style < 0.1:
        text = text.lower()
    if 0.06 < style < 0.16:
        text = text.rstrip("?.")
    return text


def plural(kind: str) -> str:
    return _PLURALS.get(kind, f"{kind}s")


def article(words: str) -> str:
    return f"{'an' if words[0] in 'aeio' else 'a'} {words}"


def listed(parts: list[str]) -> str:
    """Join words, as in "a, b and c"."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _ask(kind: str, rng: random.Random, answer: str, *names: str) -> Asked:
    return Asked(kind, rng.choice(_PHRASES[kind]).format(*names), answer)


def _naming(scene: Scene, rng: random.Random) -> Iterator[tuple[str, list[Thing]]]:
    """Return ways to name shapes, by kind or by colour and kind, with the shapes so named."""
    names = [*SHAPES, *(f"{thing.colour} {thing.kind}" for thing in scene.things)]
    rng.shuffle(names)
    for name in names:
        colour, _, kind = name.rpartition(" ")
        yield name, [t for t in scene.things if t.kind == kind and colour in ("", t.colour)]


def _one(scene: Scene, rng: random.Random) -> tuple[str, Thing] | None:
    """Draw a name for exactly one of the shapes."""
    return next(((name, found[0]) for name, found in _naming(scene, rng) if len(found) == 1), None)


def describe(scene: Scene, rng: random.Random) -> Asked | None:
    things = sorted(scene.things, key=lambda thing: thing.x)
    if scene.style == "noise":
        answer = CANNOT
    elif scene.style == "empty":
        answer = f"Nothing. It is all {scene.background}."
    elif scene.style == "number":
        answer = f"The number {scene.text}."
    elif scene.style == "word":
        answer = "A word."
    elif scene.style == "chart":
        answer = f"A bar chart with {_NUMBERS[len(things)].lower()} bars."
    elif len(things) > 1 and len({(t.kind, t.colour) for t in things}) == 1:
        answer = f"{_NUMBERS[len(things)]} {things[0].colour} {plural(things[0].kind)}."
    elif any(b.x - a.x < 0.06 for a, b in pairwise(things)):
        return None
    else:
        answer = sentence(listed([article(f"{t.colour} {t.kind}") for t in things]))
    return _ask("describe", rng, answer)


def count(scene: Scene, rng: random.Random) -> Asked | None:
    return _ask("count", rng, f"{_NUMBERS[len(scene.things)]}.")


def count_some(scene: Scene, rng: random.Random) -> Asked | None:
    if rng.random() < 0.6:
        there = [thing.kind for thing in scene.things]
        kind = rng.choice([*there, rng.choice(SHAPES)])
        return _ask("count some", rng, f"{_NUMBERS[there.count(kind)]}.", plural(kind))
    there = [thing.colour for thing in scene.things]
    colour = rng.choice([*there, rng.choice(list(COLOURS))])
    return _ask("count some", rng, f"{_NUMBERS[there.count(colour)]}.", f"{colour} shapes")


def colour(scene: Scene, rng: random.Random) -> Asked | None:
    """Ask for the colour of the one shape of a kind; the answer says if there are none or several."""
    kinds = Counter(thing.kind for thing in scene.things)
    kind = rng.choice([*(thing.kind for thing in scene.things), rng.choice(SHAPES)])
    found = [thing for thing in scene.things if thing.kind == kind]
    if not found:
        return _ask("colour", rng, f"There is no {kind}.", kind)
    if len(found) > 1 and len({thing.colour for thing in found}) > 1:
        return _ask("colour", rng, f"There are {_NUMBERS[kinds[kind]].lower()} {plural(kind)}.", kind)
    return _ask("colour", rng, sentence(found[0].colour), kind) if len(found) == 1 else None


def shape(scene: Scene, rng: random.Random) -> Asked | None:
    """Ask for the shape that has a colour."""
    hue = rng.choice([*(thing.colour for thing in scene.things), _absent_colour(scene, rng)])
    found = [thing for thing in scene.things if thing.colour == hue]
    if len(found) > 1:
        return None
    answer = f"The {found[0].kind}." if found else f"Nothing is {hue}."
    return _ask("shape", rng, answer, hue)


def _absent_colour(scene: Scene, rng: random.Random) -> str:
    taken = {scene.background, *(thing.colour for thing in scene.things)}
    return rng.choice([name for name in COLOURS if name not in taken])


def place(thing: Thing) -> str | None:
    """Return the ninth of the picture that holds a thing; None near a border between ninths."""
    if any(low < value < high for value in (thing.x, thing.y) for low, high in _THIRDS):
        return None
    column = "left" if thing.x < 0.33 else "right" if thing.x > 0.66 else ""
    row = "top" if thing.y < 0.33 else "bottom" if thing.y > 0.66 else ""
    if row:
        return f"At the {row} {column}".rstrip() + "."
    return f"On the {column}." if column else "In the middle."


def position(scene: Scene, rng: random.Random) -> Asked | None:
    if rng.random() < 0.1:
        kind = rng.choice(SHAPES)
        if all(thing.kind != kind for thing in scene.things):
            return _ask("position", rng, f"There is no {kind}.", kind)
    found = _one(scene, rng)
    if found is None or (where := place(found[1])) is None:
        return None
    return _ask("position", rng, where, found[0])


def exists(scene: Scene, rng: random.Random) -> Asked | None:
    if rng.random() < 0.1:
        return _ask("exists", rng, "No.", rng.choice(_ABSENT))
    if rng.random() < 0.5 and scene.things and scene.style == "shapes":
        thing = rng.choice(scene.things)
        name = rng.choice((thing.kind, f"{thing.colour} {thing.kind}"))
        return _ask("exists", rng, "Yes.", name)
    name = rng.choice(SHAPES)
    if scene.things and scene.style == "shapes" and rng.random() < 0.5:
        name = f"{rng.choice(list(COLOURS))} {rng.choice(scene.things).kind}"  # the kind is right
    hue, _, kind = name.rpartition(" ")
    there = any(thing.kind == kind and hue in ("", thing.colour) for thing in scene.things)
    return _ask("exists", rng, "Yes." if there else "No.", name)


def background(scene: Scene, rng: random.Random) -> Asked | None:
    return _ask("background", rng, sentence(scene.background))


def number(scene: Scene, rng: random.Random) -> Asked | None:
    answer = f"{scene.text}." if scene.style == "number" else "There is no number."
    return _ask("number", rng, answer)


def word(scene: Scene, rng: random.Random) -> Asked | None:
    """Ask for the printed text; only numbers are told, since words are too hard."""
    known = {"number": f"{scene.text}.", "word": CANNOT}
    return _ask("word", rng, known.get(scene.style, "There is no text."))


def text_colour(scene: Scene, rng: random.Random) -> Asked | None:
    return _ask("colour", rng, sentence(scene.things[0].colour), rng.choice((scene.style, "text")))


def bars(scene: Scene, rng: random.Random) -> Asked | None:
    return _ask("bars", rng, f"{_NUMBERS[len(scene.things)]}.")


def tallest(scene: Scene, rng: random.Random) -> Asked | None:
    """Ask for the tallest bar, which the model cannot tell: comparing heights is too hard."""
    return _ask("tallest", rng, CANNOT, rng.choice(("tallest", "highest", "shortest", "lowest")))


def unknowable(scene: Scene, rng: random.Random) -> Asked | None:
    return Asked("cannot tell", rng.choice(_UNKNOWABLE), CANNOT)


def absent_shape(scene: Scene, rng: random.Random) -> Asked | None:
    """Ask about shapes in a picture without any."""
    kind = rng.choice(SHAPES)
    name = rng.choice(("colour", "position"))
    return _ask(name, rng, f"There is no {kind}.", kind)


_ABOUT: dict[str, tuple[tuple[Asking, float], ...]] = {
    "shapes": (
        (describe, 2), (count, 0.8), (count_some, 1.2), (colour, 1.2), (shape, 1), (position, 1.2),
        (exists, 1.2), (background, 0.6), (number, 0.15), (word, 0.15),
        (unknowable, 0.2),
    ),
    "number": (
        (describe, 1.2), (number, 2), (text_colour, 1), (background, 0.7), (exists, 0.2), (word, 0.5),
        (absent_shape, 0.2), (unknowable, 0.3),
    ),
    "word": (
        (describe, 1), (word, 1.5), (text_colour, 1), (background, 0.7), (exists, 0.2), (number, 0.2),
        (absent_shape, 0.2), (unknowable, 0.3),
    ),
    "chart": (
        (describe, 1.5), (bars, 1.5), (tallest, 0.7), (background, 0.5), (exists, 0.4),
        (absent_shape, 0.4), (unknowable, 0.3),
    ),
    "empty": (
        (describe, 1.5), (background, 1), (exists, 0.7), (absent_shape, 0.7), (count_some, 0.5), (count, 0.5),
        (number, 0.3), (word, 0.3), (unknowable, 0.4),
    ),
}  # fmt: skip


def ask(scene: Scene, rng: random.Random) -> Asked:
    """Draw a question about the picture, in words that people use."""
    if scene.style == "noise":
        pretended = Thing("circle", "red", (0.1, 0.1, 0.5, 0.5))
        made = ask(Scene("shapes", scene.picture, "white", (pretended,)), rng)
        return Asked("noise", made.question, CANNOT)
    askings = _ABOUT[scene.style]
    while True:
        asking = rng.choices([each for each, _ in askings], [share for _, share in askings])[0]
        asked = asking(scene, rng)
        if asked is not None:
            return Asked(asked.kind, typed(asked.question, rng), asked.answer)


def questions(scene: Scene, rng: random.Random, wanted: int) -> list[Asked]:
    """Draw up to `wanted` different questions about the picture."""
    found: dict[str, Asked] = {}
    for _ in range(3 * wanted):
        asked = ask(scene, rng)
        found.setdefault(asked.question, asked)
        if len(found) == wanted:
            break
    return list(found.values())


def blind(rng: random.Random) -> Asked:
    """Draw a question without a picture."""
    while True:
        phrase = rng.choice(_PHRASES[rng.choice(list(_PHRASES))])
        question = phrase.format(*(rng.choice(SHAPES) for _ in range(phrase.count("{}"))))
        return Asked("no picture", typed(question, rng), NO_PICTURE)
