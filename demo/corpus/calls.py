"""Conversations with tools for weather and sums: calls, their results, answers.

Calls have the format of Hermes and Qwen.
"""

# ruff: noqa: SIM905 - long lists of words are easier to read and to edit as text

import json
import random
from collections.abc import Sequence
from typing import Any

from demo.corpus import arithmetic, dialogues, stories
from demo.corpus import words as w
from demo.corpus.facts_tables import COUNTRIES

Message = dict[str, str]
Tool = tuple[str, str]  # its name, and its parameters as shown to the model

CITIES = tuple(capital for _, capital, _ in COUNTRIES) + tuple(
    "New York|Boston|Chicago|San Francisco|Los Angeles|Seattle|Miami|Toronto|Montreal|Milan|Naples|Venice|"
    "Munich|Hamburg|Cologne|Frankfurt|Barcelona|Valencia|Porto|Lyon|Marseille|Geneva|Zurich|Manchester|"
    "Liverpool|Glasgow|Oxford|Istanbul|Moscow|Prague|Sydney|Melbourne|Mumbai|Delhi|Shanghai|Hong Kong|"
    "Singapore|Kyoto|Osaka|Dubai|Lagos|Cape Town|Rio de Janeiro|Bergen|Rotterdam|Antwerp".split("|")
)
# Never in the training text of calls.
HELD_OUT_CITIES = ("Florence", "Bristol", "Dallas", "Manila", "Krakow", "Leipzig", "Turin", "Jakarta")
_PARTS = (
    *(word for city in CITIES for word in city.split()),
    *(country for country, _, _ in COUNTRIES if country.isalpha()),
    *w.GIRLS,
    *w.BOYS,
)
_TWO_WORDS = ("New {c}", "Port {c}", "San {c}", "{c} City", "Lake {c}", "{c} Falls", "Saint {c}", "{c} Beach",
              "Fort {c}", "{c} Bay", "North {c}", "{c} Hill", "Los {c}", "El {c}", "{c} Springs")  # fmt: skip
CONDITIONS = "sunny rainy cloudy windy foggy snowy stormy clear warm hot cold cool dry mild humid icy".split()

_ASK = (
    "what is the weather in {c}", "what's the weather in {c}", "how is the weather in {c}", "weather in {c}",
    "what is the weather like in {c}", "what's the weather like in {c}", "the weather in {c}", "{c} weather",
    "how's the weather in {c}", "tell me the weather in {c}", "is it raining in {c}", "is it sunny in {c}",
    "is it cold in {c}", "is it warm in {c} today", "what is the weather in {c} today", "weather in {c} now",
    "what's the weather in {c} right now", "how is the weather in {c} today", "how warm is it in {c}",
    "what is the temperature in {c}", "do i need an umbrella in {c}", "will it rain in {c}", "weather {c}",
    "can you tell me the weather in {c}", "please check the weather in {c}", "is it snowing in {c}",
    "what is the current weather in {c}", "i am in {c}, how is the weather", "does it rain in {c}",
    "use the tool to get the weather in {c}", "get the weather in {c}", "what about the weather in {c}",
)  # fmt: skip
_ASK_TWO = (
    "what is the weather in {c} and {d}", "what's the weather in {c} and in {d}", "weather in {c} and {d}",
    "how is the weather in {c} and {d}", "compare the weather in {c} and {d}", "the weather in {c} and {d}",
    "is it warmer in {c} or in {d}", "is it colder in {c} or {d}", "tell me the weather in {c} and {d}",
    "what is the weather like in {c} and {d}", "is it raining in {c} or {d}", "{c} and {d}: weather",
)  # fmt: skip
# Never in the training text.
HELD_OUT_ASK = ("could you look up the weather in {c}", "i want to know the weather in {c}",
                "what kind of weather does {c} have", "how does the weather look in {c}")  # fmt: skip
HELD_OUT_ASK_TWO = ("please tell me how the weather is in {c} and in {d}",)

_SAID = (
    "{s}, {t} degrees", "{s}, {t} °C", "{s}, {t}°C", "{t} degrees and {s}", "{s}, {t} degrees in {c}",
    "{s} in {c}, {t} degrees", "It is {s} in {c}, {t} degrees.", "{c}: {s}, {t} degrees", "{t}°C, {s}",
    "It is {t} degrees and {s}.", "{t}°C and {s}", "{s} {t}°C",
)  # fmt: skip
_WEATHER = (("get_weather", 6), ("weather", 8), ("get_current_weather", 2), ("current_weather", 1),
            ("check_weather", 1), ("weather_in", 1), ("get_forecast", 1))  # fmt: skip
_PLACE = (("city", 14), ("location", 4), ("place", 1), ("town", 1))
_CALCULATOR = (("calculator", 12), ("calculate", 3), ("calc", 1))
_NUMBER = ("number", "integer")
_WORDS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}
_SYSTEM = ("You are a helpful assistant.", "You can use tools.", "Use the tools.", "Be helpful.",
           "Use tools when they help.", "You are Demo, a tiny model.", "Answer briefly.",
           "You are a helpful assistant with tools.", "Be short and friendly.",
           "You know the weather.")  # fmt: skip


def weighted(choices: Sequence[tuple[str, int]], rng: random.Random) -> str:
    """Draw one of the texts, by their weights."""
    return rng.choices([text for text, _ in choices], [weight for _, weight in choices])[0]


def call(name: str, arguments: dict[str, Any]) -> str:
    """Return a call as the model writes it."""
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def system(tools: Sequence[Tool], rng: random.Random) -> Message:
    """Return the system message that offers tools, sometimes with something before them."""
    listed = "Tools:" + "".join(f"\n{name}({parameters})" for name, parameters in tools)
    before = f"{rng.choice(_SYSTEM)}\n" if rng.random() < 0.25 else ""
    return {"role": "system", "content": before + listed}


def typed(text: str, rng: random.Random, lower: bool = True) -> str:
    """Return the text as people type it, without mistakes, keeping the case of names to copy."""
    style = rng.random()
    if rng.random() < 0.08:
        text = rng.choice(("hi, ", "hello, ", "please, ", "ok, ", "so, ", "and ", "hey, ")) + text
    text = text.lower() if lower and style < 0.2 else text[:1].upper() + text[1:]
    return text if text[-1:] in ".?!=" else text + rng.choice(("?", "?", "?", "", "", "."))


def unknown_name(rng: random.Random) -> str:
    """Draw a name to copy: from invented syllables, or the start of one name and the end of another."""
    while True:
        if rng.random() < 0.3:
            name = stories.invented_name(rng)
        else:
            first, last = rng.choice(_PARTS), rng.choice(_PARTS)
            name = first[: rng.randint(1, len(first))] + last[rng.randint(1, len(last) - 1) :].lower()
        if 3 <= len(name) <= 12 and not any(held.lower() in name.lower() for held in HELD_OUT_CITIES):
            return name


def draw_city(rng: random.Random, held: bool = False) -> tuple[str, bool]:
    """Draw a city, and whether the model should know it in lower case."""
    if rng.random() < 0.5:
        return rng.choice(CITIES), True
    if held:
        return rng.choice(HELD_OUT_CITIES), False
    name = unknown_name(rng)
    return rng.choice(_TWO_WORDS).format(c=name) if rng.random() < 0.2 else name, False


def weather_result(city: str, rng: random.Random) -> tuple[str, str]:
    """Draw the result of a weather tool, and the answer made from it."""
    condition, degrees = rng.choice(CONDITIONS), str(rng.randint(-12, 39))
    kind, key = rng.random(), rng.choice(("condition", "weather", "conditions", "description", "sky"))
    sky, warm = f"It is {condition} in {city}.", f"It is {condition} in {city}, {degrees} degrees."
    if kind < 0.3:
        said = rng.choice(_SAID)
    elif kind < 0.55:
        fields = [(key, condition), (rng.choice(("temperature", "temp", "degrees")), int(degrees))]
        if rng.random() < 0.4:
            fields.reverse()
        if rng.random() < 0.4:
            fields.insert(0, ("city", city))
        return json.dumps(dict(fields), ensure_ascii=False), warm
    elif kind < 0.85:
        as_json = '{{"' + key + '": "{s}"}}'
        said = rng.choice(("{s}", "{s}", "{s} in {c}", "It is {s} in {c}.", "{c}: {s}", as_json))
    else:
        said = rng.choice(("{t} degrees", "{t}", "{t}°C", '{{"temperature": {t}}}', "{t} degrees in {c}"))
        return said.format(t=degrees, c=city), f"It is {degrees} degrees in {city}."
    shown = condition.capitalize() if said.startswith("{s}") and rng.random() < 0.3 else condition
    return said.format(s=shown, t=degrees, c=city), warm if "{t}" in said else sky


def weather_tool(rng: random.Random) -> tuple[Tool, str]:
    """Draw a weather tool, and the name of its parameter."""
    key = weighted(_PLACE, rng)
    return (weighted(_WEATHER, rng), key), key


def weather_turns(tool: Tool, rng: random.Random, again: bool = False, held: bool = False) -> list[Message]:
    """Draw a question about the weather (`held`: a held-out one), calls, their results, and the answer."""
    (name, key), (city, known) = tool, draw_city(rng, held)
    cities = [city]
    if again:
        ask = rng.choice(("and in {c}", "what about {c}", "and {c}", "and the weather in {c}")).format(c=city)
    elif rng.random() < 0.22:
        other, known_too = draw_city(rng, held)
        cities, known = [city, other], known and known_too
        ask = rng.choice(HELD_OUT_ASK_TWO if held else _ASK_TWO).format(c=city, d=other)
    else:
        ask = rng.choice(HELD_OUT_ASK if held else _ASK).format(c=city)
    turns = [{"role": "user", "content": typed(ask, rng, known)}]
    turns.append({"role": "assistant", "content": "\n".join(call(name, {key: c}) for c in cities)})
    results = [weather_result(c, rng) for c in cities]
    turns += [{"role": "tool", "content": said} for said, _ in results]
    return [*turns, {"role": "assistant", "content": " ".join(answer for _, answer in results)}]


def draw_numbers(rng: random.Random) -> tuple[str, int, int]:
    """Draw an operation and its numbers, which are small or too large for the model itself."""
    op = rng.choice("+-*/")
    a, b = rng.randint(2, rng.choice((99, 999, 9999))), rng.randint(2, rng.choice((12, 99, 999, 9999)))
    if op == "/" and rng.random() < 0.7:
        a, b = b * rng.randint(2, 99), b
    return (op, b, a) if op in "+*" and rng.random() < 0.5 else (op, a, b)


def value(op: str, a: int, b: int) -> str:
    """Format the result as a calculator does, with at most four decimals."""
    exact = {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[op]
    return str(int(exact)) if exact == int(exact) else str(round(exact, 4))


def calculator_tool(op: str, rng: random.Random) -> tuple[Tool, str]:
    """Draw a calculator for `op`, and its kind of arguments: "expression", "operation" or "numbers"."""
    kind = rng.choices(("expression", "operation", "numbers"), (6, 3, 2))[0]
    if kind == "expression":
        return (weighted(_CALCULATOR, rng), rng.choice(("expression",) * 8 + ("formula", "input"))), kind
    number = rng.choice(_NUMBER)
    pair = f"a: {number}, b: {number}"
    if kind == "numbers":
        return (_WORDS[op], pair), kind
    names = "|".join(_WORDS.values() if rng.random() < 0.75 else _WORDS)
    place = f"operation: {names}" if rng.random() < 0.85 else "operation"
    return (weighted(_CALCULATOR, rng), rng.choice((f"{pair}, {place}",) * 3 + (f"{place}, {pair}",))), kind


def calculation_call(tool: Tool, op: str, a: int, b: int) -> str:
    """Return the call of a calculator, with arguments in the order of its parameters."""
    name, parameters = tool
    arguments: dict[str, Any] = {}
    for parameter in parameters.split(", "):
        key, _, choices = parameter.partition(": ")
        if key in ("a", "b"):
            arguments[key] = a if key == "a" else b
        elif key == "operation":
            arguments[key] = op if choices.startswith("+") else _WORDS[op]
        else:
            arguments[key] = f"{a} {op} {b}"
    return call(name, arguments)


def calculation_turns(
    tool: Tool, op: str, a: int, b: int, rng: random.Random, held: bool = False
) -> list[Message]:
    """Draw a sum (`held`: in a held-out phrasing), the call, its result, and the answer."""
    ask = (
        arithmetic.question(op, a, b, rng, arithmetic.HELD_OUT_ASK)
        if held
        else arithmetic.question(op, a, b, rng)
    )
    result = value(op, a, b)
    if rng.random() < 0.15:  # the tool's result counts, even if wrong
        result = str(rng.randint(0, 9999))
    elif result.isdigit() and rng.random() < 0.1:
        result += ".0"
    sign = {"+": "+", "-": "-", "*": "×", "/": "÷"}[op]
    said = rng.choice((result,) * 6 + (f'{{"result": {result}}}',) * 3 + (f"{a} {op} {b} = {result}",))
    return [
        {"role": "user", "content": typed(ask, rng)},
        {"role": "assistant", "content": calculation_call(tool, op, a, b)},
        {"role": "tool", "content": said},
        {"role": "assistant", "content": f"{a} {sign} {b} = {result}."},
    ]


def tool_chat(rng: random.Random, held: bool = False) -> list[Message]:
    """Draw a conversation with tools: about the weather, a sum, or something that needs no tool."""
    weather, _ = weather_tool(rng)
    op, a, b = draw_numbers(rng)
    calculator, kind = calculator_tool(op, rng)
    wanted = rng.choices(("weather", "sum", "none"), (5, 5, 3))[0]
    tools = [weather, calculator]
    if rng.random() < 0.4:
        tools = [weather if wanted == "weather" else calculator] if wanted != "none" else [rng.choice(tools)]
    if kind == "numbers" and rng.random() < 0.4:
        other = rng.choice([word for word in _WORDS.values() if word != calculator[0]])
        tools.append((other, calculator[1]))
    rng.shuffle(tools)
    turns: list[Message] = []
    if wanted == "none" or rng.random() < 0.08:
        turns += _plain_turns(tools, rng, held)
    if wanted == "weather":
        turns += weather_turns(weather, rng, held=held)
        if rng.random() < 0.2:
            turns += weather_turns(weather, rng, again=True, held=held)
    elif wanted == "sum":
        turns += calculation_turns(calculator, op, a, b, rng, held)
    return [system(tools, rng), *turns]


def _plain_turns(tools: Sequence[Tool], rng: random.Random, held: bool) -> list[Message]:
    """Draw a question that no tool answers; each held-out one has exactly one answer."""
    weather = any(name in dict(_WEATHER) for name, _ in tools)
    kinds = [dialogues.fact, dialogues.fact, dialogues.talk, dialogues.extra]
    if weather and len(tools) == 1:
        kinds += [dialogues.small_calculation, dialogues.calculation]
    while True:
        draw = rng.choice(kinds)
        question, answer, _ = (dialogues.fact if held else draw)(rng)
        if not (weather and "weather" in answer) and "calculate" not in answer:
            return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def definition(tool: Tool) -> dict[str, Any]:
    """Describe a tool as clients do; the chat template turns it into a line of `system`."""
    name, parameters = tool
    properties: dict[str, Any] = {}
    for parameter in parameters.split(", "):
        key, _, kind = parameter.partition(": ")
        if "|" in kind:
            properties[key] = {"type": "string", "enum": kind.split("|")}
        else:
            properties[key] = {"type": kind or "string"}
    required = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": required}}
