"""Questions and answers about a fixed set of facts, with some phrasings kept for evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from demo.corpus import facts_tables as t
from demo.corpus.facts_definitions import QUANTITIES, SINGLES, THINGS
from demo.corpus.template import polish


@dataclass(frozen=True)
class Fact:
    """A fact: ways to ask for training, ways to ask for evaluation, and the one answer.

    `short` is the answer in a word or two, used when a system message requests short answers.
    """

    relation: str
    questions: tuple[str, ...]
    held_out: tuple[str, ...]
    answer: str
    short: str = ""


def _facts(
    relation: str, rows: Sequence[tuple[dict[str, str], str, str]], train: Sequence[str], held: Sequence[str]
) -> list[Fact]:
    return [
        Fact(
            relation,
            tuple(q.format(**slots) for q in train),
            tuple(q.format(**slots) for q in held),
            polish(answer),
            short,
        )
        for slots, answer, short in rows
    ]


_PLACE = {"the beach": "on the beach", "the savanna": "on the savanna", "a lake": "on lakes",
          "a pond": "near ponds",
          "warm rocks": "among warm rocks", "a hole": "in holes", "a meadow": "on meadows"}  # fmt: skip


def _a(word: str) -> str:
    return ("an " if word[0] in "aeiou" else "a ") + word


def _cap(text: str) -> str:
    return text[:1].upper() + text[1:]


@lru_cache(maxsize=1)
def all_facts() -> tuple[Fact, ...]:
    """Return every fact, in a fixed order."""
    return (
        *_geography(),
        *_animals(),
        *_colours(),
        *_words(),
        *_calendar(),
        *_counts(),
        *_things(),
        *_singles(),
    )


def _geography() -> list[Fact]:
    facts = _facts(
        "capital",
        [({"x": c}, f"The capital of {c} is {k}.", k) for c, k, _ in t.COUNTRIES],
        ("what is the capital of {x}", "what's the capital of {x}", "what is {x}'s capital",
         "the capital of {x}",
         "capital of {x}", "name the capital of {x}", "which city is the capital of {x}",
         "tell me the capital of {x}",
         "can you tell me the capital of {x}", "do you know the capital of {x}",
         "what is the capital city of {x}",
         "what city is {x}'s capital", "what is the name of the capital of {x}", "i need the capital of {x}",
         "{x} has which capital", "what capital does {x} have", "where is the government of {x}"),
        ("which city is {x}'s capital", "please name the capital city of {x}",
         "what is the capital of the country {x}"),
    )  # fmt: skip
    facts += _facts(
        "capital of which country",
        [({"x": k}, f"{k} is the capital of {c}.", c) for c, k, _ in t.COUNTRIES],
        ("{x} is the capital of which country", "which country has the capital {x}",
         "what country is {x} the capital of",
         "of which country is {x} the capital", "where is {x}", "in which country is {x}",
         "what country is {x} in",
         "which country is {x} in", "tell me where {x} is", "{x} is in which country",
         "do you know where {x} is",
         "what is {x} the capital of"),
        ("{x} is the capital of what country", "where can i find {x}", "in what country is {x}"),
    )  # fmt: skip
    return facts + _facts(
        "continent",
        [({"x": c}, f"{c} is in {k}.", k) for c, _, k in t.COUNTRIES],
        ("which continent is {x} in", "what continent is {x} in", "on which continent is {x}",
         "{x} is on which continent",
         "where is {x}", "where is {x} located", "on what continent is {x}",
         "to which continent does {x} belong",
         "tell me the continent of {x}", "in which part of the world is {x}",
         "what continent does {x} belong to"),
        ("{x} is on what continent", "which continent does {x} belong to", "on which continent does {x} lie"),
    )  # fmt: skip


def _animals() -> list[Fact]:
    rows = t.ANIMALS
    facts = _facts(
        "sound",
        [({"a": _a(n), "n": n, "p": p}, f"{_a(n)} says {s}.", s) for n, p, s, *_ in rows if s],
        ("what sound does {a} make", "what does {a} say", "what noise does {a} make", "how does {a} sound",
         "what sound do {p} make", "what do {p} say", "which sound does {a} make", "tell me the sound of {a}",
         "what is the sound of {a}", "how do {p} sound", "what sound does the {n} make",
         "what does the {n} say"),
        ("which noise does {a} make", "what noise do {p} make", "which sound do {p} make"),
    )  # fmt: skip
    facts += _facts(
        "young",
        [({"a": _a(n), "n": n}, f"A baby {n} is called {_a(y)}.", y) for n, _, _, y, *_ in rows],
        ("what is a baby {n} called", "what is a baby {n}", "what do you call a baby {n}",
         "what is a young {n} called",
         "what is the name for a baby {n}", "how do you call a baby {n}", "what is the young of {a} called",
         "what's a baby {n} called", "what do we call a young {n}", "tell me what a baby {n} is called",
         "what is the baby of {a} called"),
        ("what do people call a baby {n}", "what is the word for a baby {n}", "what do you call a young {n}"),
    )  # fmt: skip
    facts += _facts(
        "home",
        [({"a": _a(n), "p": p, "n": n}, f"{p} live {_PLACE.get(h, 'in ' + h)}.", h)
         for n, p, _, _, h, *_ in rows],
        ("where does {a} live", "where do {p} live", "where is the home of {a}", "what is the home of {a}",
         "where does the {n} live", "tell me where {p} live", "in what place do {p} live",
         "what is the home of {p}",
         "do you know where {p} live", "where can you find {p}"),
        ("where can i find {p}", "where do most {p} live", "can you tell me where {p} live"),
    )  # fmt: skip
    facts += _facts(
        "food",
        [({"a": _a(n), "p": p, "n": n}, f"{p} eat {f}.", f) for n, p, _, _, _, f, *_ in rows],
        ("what does {a} eat", "what do {p} eat", "what is the food of {p}", "what do {p} like to eat",
         "what food do {p} eat",
         "tell me what {p} eat", "what does the {n} eat", "what does {a} like to eat", "what do you feed {a}",
         "do you know what {p} eat", "what can i feed {a}"),
        ("which food do {p} eat", "what kind of food does {a} eat", "can you tell me what {p} eat"),
    )  # fmt: skip
    facts += _facts(
        "legs",
        [({"a": _a(n), "p": p, "n": n}, f"{_a(n)} has {g} legs.", g) for n, p, _, _, _, _, g, _ in rows],
        ("how many legs does {a} have", "how many legs do {p} have", "how many legs has {a}",
         "how many legs has {a} got",
         "what number of legs does {a} have", "tell me how many legs {a} has",
         "how many legs does the {n} have",
         "count the legs of {a}", "how many feet does {a} have", "does {a} have legs"),
        ("how many legs are there on {a}", "how many legs do most {p} have",
         "do you know how many legs {a} has"),
    )  # fmt: skip
    return facts + _facts(
        "class",
        [({"a": _a(n), "p": p, "n": n}, f"{_a(n)} is {_a(c)}.", c) for n, p, _, _, _, _, _, c in rows],
        ("what kind of animal is {a}", "what is {a}", "what type of animal is {a}",
         "which kind of animal is {a}",
         "tell me what {a} is", "what sort of animal is {a}", "what kind of animals are {p}", "what are {p}",
         "what animal group does {a} belong to", "what's {a}", "is {a} a mammal or something else"),
        ("what kind of a animal is the {n}", "which type of animal is {a}",
         "to which animal group does {a} belong"),
    )  # fmt: skip


def _colours() -> list[Fact]:
    facts = _facts(
        "colour",
        [({"x": x, "is": "is"}, f"{_cap(x)} is {c}.", c) for x, c in t.COLOURS.items()],
        ("what colour is {x}", "what color is {x}", "which colour is {x}", "what is the colour of {x}",
         "what's the color of {x}",
         "tell me the colour of {x}", "which color does {x} have", "what colour does {x} have",
         "name the colour of {x}",
         "do you know the colour of {x}", "{x} has which colour", "the colour of {x}"),
        ("which color is {x}", "what is the color of {x}", "can you tell me the colour of {x}"),
    )  # fmt: skip
    rows = []
    for (x, y), c in t.MIXES.items():
        answer = f"If you mix {x} and {y}, you get {c}."
        rows += [({"x": x, "y": y}, answer, c), ({"x": y, "y": x}, answer, c)]
    return facts + _facts(
        "mix",
        rows,
        ("what do you get when you mix {x} and {y}", "what colour do {x} and {y} make", "mix {x} and {y}",
         "which colour do you get from {x} and {y}", "what happens if i mix {x} and {y}",
         "what is {x} and {y} mixed",
         "{x} and {y} make which colour", "what color do you get if you mix {x} with {y}",
         "what is {x} plus {y}",
         "what color does {x} and {y} make", "if i mix {x} and {y}, what colour do i get"),
        ("which color do {x} and {y} make", "what comes out when i mix {x} and {y}",
         "what do i get if i mix {x} and {y}"),
    )  # fmt: skip


def _words() -> list[Fact]:
    rows = []
    for x, y in t.OPPOSITES:
        rows += [({"x": x}, f"The opposite of {x} is {y}.", y), ({"x": y}, f"The opposite of {y} is {x}.", x)]
    facts = _facts(
        "opposite",
        rows,
        ("what is the opposite of {x}", "what's the opposite of {x}", "opposite of {x}",
         "the opposite of {x}",
         "tell me the opposite of {x}", "name the opposite of {x}", "which word is the opposite of {x}",
         "what is the opposite of the word {x}", "can you tell me the opposite of {x}",
         "do you know the opposite of {x}",
         "give me the opposite of {x}", "what word means the opposite of {x}"),
        ("which is the opposite of {x}", "please give me the opposite of {x}",
         "what would be the opposite of {x}"),
    )  # fmt: skip
    letters = [
        ({"x": x, "w": "after"}, f"The letter after {x} is {y}.", y)
        for x, y in zip(t.LETTERS, t.LETTERS[1:], strict=False)
    ]
    letters += [
        ({"x": y, "w": "before"}, f"The letter before {y} is {x}.", x)
        for x, y in zip(t.LETTERS, t.LETTERS[1:], strict=False)
    ]
    return facts + _facts(
        "letter",
        letters,
        ("which letter comes {w} {x}", "what letter comes {w} {x}", "what is the letter {w} {x}",
         "which letter is {w} {x}",
         "what comes {w} {x} in the alphabet", "what letter is {w} {x}", "name the letter {w} {x}",
         "the letter {w} {x}",
         "tell me the letter {w} {x}", "which letter is right {w} {x}"),
        ("which letter is there {w} {x}", "what is the letter that comes {w} {x}"),
    )  # fmt: skip


def _calendar() -> list[Fact]:
    train = (
        "which {u} comes {w} {x}", "what {u} comes {w} {x}", "what is the {u} {w} {x}", "what comes {w} {x}",
        "which {u} is {w} {x}", "what {u} is {w} {x}", "name the {u} {w} {x}", "tell me the {u} {w} {x}",
        "what {u} is it {w} {x}", "which is the {u} {w} {x}",
    )  # fmt: skip
    held = (
        "which {u} do we have {w} {x}",
        "what is the {u} that comes {w} {x}",
        "do you know which {u} comes {w} {x}",
    )
    facts = []
    for unit, names in (("day", t.DAYS), ("month", t.MONTHS), ("season", t.SEASONS)):
        rows = []
        for i, name in enumerate(names):
            after = names[(i + 1) % len(names)]
            rows.append(({"u": unit, "w": "after", "x": name}, f"The {unit} after {name} is {after}.", after))
            rows.append(
                ({"u": unit, "w": "before", "x": after}, f"The {unit} before {after} is {name}.", name)
            )
        facts += _facts(f"{unit} order", rows, train, held)
    facts += _facts(
        "days in month",
        [({"x": m}, f"{m} has {d} days{', and 29 in a leap year' if d == 28 else ''}.", str(d))
         for m, d in zip(t.MONTHS, t.MONTH_DAYS, strict=True)],
        ("how many days does {x} have", "how many days are in {x}", "how many days are there in {x}",
         "how long is {x}",
         "how many days has {x}", "tell me how many days {x} has", "number of days in {x}", "days in {x}",
         "how many days does the month of {x} have"),
        ("what number of days does {x} have", "how many days are there in the month of {x}"),
    )  # fmt: skip
    nth = [
        ({"n": o, "u": "month", "of": "of the year"}, f"The {o} month of the year is {m}.", m)
        for o, m in zip(t.ORDINALS, t.MONTHS, strict=True)
    ]
    nth += [
        ({"n": o, "u": "planet", "of": "from the sun"}, f"The {o} planet from the Sun is {p}.", p)
        for o, p in zip(t.ORDINALS, t.PLANETS, strict=False)
    ]
    nth += [
        ({"n": o, "u": "day", "of": "of the week"}, f"The {o} day of the week is {d}.", d)
        for o, d in zip(t.ORDINALS, t.DAYS, strict=False)
    ]
    return facts + _facts(
        "nth",
        nth,
        ("what is the {n} {u} {of}", "which {u} is the {n} {u} {of}", "what is the {n} {u}",
         "name the {n} {u} {of}",
         "which is the {n} {u} {of}", "tell me the {n} {u} {of}", "which {u} is the {n}",
         "what's the {n} {u} {of}",
         "which {u} is the {n} one {of}"),
        ("which {u} comes {n} {of}", "what is the name of the {n} {u} {of}"),
    )  # fmt: skip


def _counts() -> list[Fact]:
    facts = []
    for template, number, answer in QUANTITIES:
        # The alternatives of a quantity become separate questions, so that each is asked.
        phrases = _alternatives(template)
        train = tuple(
            f"{lead}{p}"
            for p in phrases
            for lead in ("how many ", "can you tell me how many ", "do you know how many ")
        )
        facts.append(
            Fact(
                "quantity",
                (
                    *train,
                    *(f"tell me how many {p}" for p in phrases),
                    *(f"what is the number: how many {p}" for p in phrases),
                ),
                tuple(
                    f"{lead} how many {p}" for p in phrases[:1] for lead in ("i would like to know", "say")
                ),
                answer,
                number,
            )
        )
    return facts


def _alternatives(template: str) -> list[str]:
    if "{" not in template:
        return [template]
    head, rest = template.split("{", 1)
    body, tail = rest.split("}", 1)
    return [" ".join(f"{head}{part}{end}".split()) for part in body.split("|") for end in _alternatives(tail)]


def _things() -> list[Fact]:
    return _facts(
        "definition",
        [({"x": x}, answer, "") for x, answer in THINGS.items()],
        ("what is {x}", "what's {x}", "explain {x}", "tell me about {x}", "tell me what {x} is",
         "can you explain what {x} is",
         "define {x}", "do you know what {x} is", "what do you know about {x}", "what does {x} mean",
         "explain to me what {x} is",
         "can you tell me what {x} is", "please explain {x}", "what exactly is {x}",
         "i want to know what {x} is"),
        ("could you explain {x}", "please tell me what {x} is", "how would you explain {x}"),
    )  # fmt: skip


def _singles() -> list[Fact]:
    return [Fact("single", questions, held, answer) for questions, held, answer in SINGLES]
