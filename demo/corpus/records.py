"""Small JSON objects with the values of a sentence, as answers and as arguments of tools."""

# ruff: noqa: SIM905 - long lists of words are easier to read and to edit as text

import json
import random
from collections.abc import Sequence
from typing import Any

from demo.corpus import calls
from demo.corpus import words as w

Message = dict[str, str]
Fields = dict[str, Any]

COLOURS = "red blue green yellow black white brown orange purple pink grey".split()
THINGS = ("apples balls books cups hats stars flowers cars boats keys coins shells candles buttons socks "
          "stones balloons pencils birds cats dogs horses fish").split()  # fmt: skip
_WORDS = "two three four five six seven eight nine ten eleven twelve".split()
_TOOLS = (
    "save", "extract", "final_result", "answer", "record", "store", "Person", "Thing", "Output", "result",
    "submit", "User", "Item", "create", "add_item", "Answer", "save_person", "note",
)  # fmt: skip

_PERSON = (
    "{n} is {a} years old", "{n} is {a}", "my name is {n} and i am {a} years old", "i am {n}, {a} years old",
    "{n}, aged {a}", "{n} has just turned {a}", "her name is {n} and she is {a}", "this is {n}. she is {a}",
    "his name is {n} and he is {a} years old", "{n} will be {a} next week", "{n} ({a})",
    "my friend {n} is {a} years old", "{n} is a {a} year old girl", "meet {n}, who is {a} years old",
    "i know {n}. he is {a} years old", "my cat is called {n} and is {a} years old",
    "yesterday {n} turned {a}", "now {n} is {a} years old", "soon {n} will be {a} years old",
    "they say {n} is {a} years old", "in may {n} was {a} years old", "a girl named {n} is {a} years old",
    "at last {n} reached the age of {a}", "with {a} years, {n} is the oldest", "tomorrow {n} will be {a}",
)  # fmt: skip
HELD_OUT_PERSON = ("today {n} celebrates being {a} years old", "a boy called {n} who is {a} years old")
_LIVES = (" and lives in {c}", ". {n} lives in {c}", " and comes from {c}", ", from {c}")
_THING = (
    "there are {k} {c} {t}", "i have {k} {c} {t}", "i see {k} {c} {t}", "she bought {k} {c} {t}",
    "{k} {c} {t} are on the table", "we found {k} {c} {t} in the garden", "he has {k} {c} {t}",
    "give me {k} {c} {t}", "{k} {c} {t}", "in the box are {k} {c} {t}", "you can see {k} {c} {t} here",
    "the {t} are {c}. there are {k} of them", "i counted {k} {t}, all of them {c}",
    "my sister keeps {k} {c} {t}", "the shop sells {k} {c} {t}", "oh, {k} {c} {t} on the wall",
    "yesterday we lost {k} {c} {t}", "here, {k} {c} {t} for you", "our teacher brought {k} {c} {t}",
)  # fmt: skip
HELD_OUT_THING = ("my brother owns {k} {c} {t}", "look, {k} {c} {t} over there")
_AS_JSON = (
    "Answer in JSON.", "Answer as JSON.", "As JSON, please.", "Give me JSON.", "JSON:", "Reply in JSON.",
    "Return JSON.", "Write it as JSON.", "Respond with JSON.",
)  # fmt: skip
_OF = ("Give me the {k}.", "Extract the {k}.", "What is the {k}?", "Find the {k}.", "Read the {k}.")


def draw_record(rng: random.Random, held: bool = False) -> tuple[str, Fields]:
    """Draw a sentence, and an object with some of its values."""
    if rng.random() < 0.55:
        return _person(rng, held)
    return _thing(rng, held)


def _person(rng: random.Random, held: bool) -> tuple[str, Fields]:
    name = calls.unknown_name(rng) if rng.random() < 0.5 else rng.choice(rng.choice((w.GIRLS, w.BOYS)))
    age, fields = rng.randint(1, 99), [("name", name)]
    sentence = rng.choice(HELD_OUT_PERSON if held else _PERSON)
    values: list[tuple[str, Any]] = [*fields, ("age", age)]
    city = rng.choice(calls.CITIES)
    if rng.random() < 0.3:
        sentence += rng.choice(_LIVES)
        values.append((rng.choice(("city", "city", "town", "home")), city))
    return _sentence(sentence.format(n=name, a=age, c=city)), _some(values, rng)


def _thing(rng: random.Random, held: bool) -> tuple[str, Fields]:
    count, colour, thing = rng.randint(2, 99), rng.choice(COLOURS), rng.choice(THINGS)
    written = str(count)
    if rng.random() < 0.3:
        count = rng.randint(2, 12)
        written = _WORDS[count - 2]
    sentence = rng.choice(HELD_OUT_THING if held else _THING).format(k=written, c=colour, t=thing)
    values: list[tuple[str, Any]] = [
        (rng.choice(("colour", "color")), colour),
        (rng.choice(("count", "count", "number", "quantity", "how_many")), count),
    ]
    if rng.random() < 0.5:
        values.append((rng.choice(("thing", "object", "item", "what")), thing))
    return _sentence(sentence), _some(values, rng)


def _some(values: list[tuple[str, Any]], rng: random.Random) -> Fields:
    """Draw most or all of the values, in the usual order or another."""
    if rng.random() < 0.35:
        rng.shuffle(values)
    if rng.random() < 0.2:
        values = values[: rng.randint(1, len(values))]
    return dict(values)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def signature(fields: Fields) -> str:
    """Return the parameters of a tool that takes these fields."""
    return ", ".join(f"{key}: integer" if isinstance(value, int) else key for key, value in fields.items())


def schema(fields: Fields) -> dict[str, Any]:
    """Return the JSON schema of these fields."""
    types = {key: "integer" if isinstance(value, int) else "string" for key, value in fields.items()}
    properties = {key: {"type": kind} for key, kind in types.items()}
    return {"type": "object", "properties": properties, "required": list(fields)}


def listed(keys: Sequence[str]) -> str:
    """Join words, as in `name, age and city`."""
    *first, last = keys
    return f"{', '.join(first)} and {last}" if first else last


def record_chat(rng: random.Random, held: bool = False) -> list[Message]:
    """Draw a sentence that becomes an object: by a tool, by request, or because of a format.

    If only a format requires the object, its first brace is `given`, that is, not learned.
    """
    sentence, fields = draw_record(rng, held)
    kind = rng.random()
    if kind < 0.4:
        tool = (rng.choice(_TOOLS), signature(fields))
        tools = [tool] if rng.random() < 0.8 else [tool, calls.weather_tool(rng)[0]]
        return [
            calls.system(tools, rng),
            {"role": "user", "content": sentence},
            {"role": "assistant", "content": calls.call(tool[0], fields)},
        ]
    answer = {"role": "assistant", "content": json.dumps(fields, ensure_ascii=False)}
    if kind < 0.7:
        request = rng.choice(_OF).format(k=listed(list(fields)).replace("_", " "))
        asked = " ".join(
            rng.choice(((sentence, request, rng.choice(_AS_JSON)), (request, rng.choice(_AS_JSON), sentence)))
        )
        return [{"role": "user", "content": asked}, answer]
    if rng.random() < 0.3:
        sentence = f"{sentence} {rng.choice(_AS_JSON)}"
    elif rng.random() < 0.3:
        sentence = f"{rng.choice(('Extract', 'Read', 'Parse'))}: {sentence}"
    return [{"role": "user", "content": sentence}, answer | {"given": '{"'}]
