"""Sums a tiny model can learn: + and - up to 99, the times table to 12, exact division.

A share of the pairs is never trained on (`held_out`), so that evaluation measures calculation, not memory.
"""

import random
import zlib

LIMIT = 99
TABLE = 12
SMALL = 12  # all sums of numbers up to this are taught in the last stage of the training

_SIGNS = {
    "+": ("+", "+", "+", "plus", " + "),
    "-": ("-", "-", "-", "minus", " - "),
    "*": ("*", "x", "times", "times", "×"),
    "/": ("/", "divided by", "divided by", ":", "÷"),
}
_ASK = (
    "what is {q}", "what's {q}", "{q}", "{q} =", "how much is {q}", "calculate {q}", "can you calculate {q}",
    "{q} = ?",
    "what does {q} make", "tell me what {q} is", "please calculate {q}", "what is the result of {q}",
    "solve {q}",
    "compute {q}", "whats {q}", "{q} is", "can you tell me what {q} is", "and {q}", "what about {q}",
    "do you know what {q} is",
    "how much does {q} make", "what do you get for {q}", "add up {q}", "work out {q}",
)  # fmt: skip
_WORDS = {
    "+": ("add {a} and {b}", "what is the sum of {a} and {b}", "the sum of {a} and {b}",
          "what do {a} and {b} make",
          "if i have {a} apples and get {b} more, how many apples do i have",
          "what do you get if you add {b} to {a}"),
    "-": ("subtract {b} from {a}", "take {b} away from {a}", "what is the difference between {a} and {b}",
          "if i have {a} apples and eat {b}, how many apples are left",
          "what is left if you take {b} from {a}"),
    "*": ("multiply {a} by {b}", "multiply {a} and {b}", "what is the product of {a} and {b}",
          "{a} multiplied by {b}"),
    "/": ("divide {a} by {b}", "share {a} among {b}", "how many times does {b} go into {a}"),
}  # fmt: skip
# Never in the training text.
HELD_OUT_ASK = ("could you work out {q} for me", "i need to know {q}", "quick, what is {q}")


def held_out(op: str, a: int, b: int) -> bool:
    """Whether the pair is kept for evaluation, as one in twelve is; the order does not matter for +."""
    if op not in "+-" or min(a, b) < 3:
        return False
    first, second = (max(a, b), min(a, b)) if op == "+" else (a, b)
    return zlib.crc32(f"{op} {first} {second}".encode()) % 12 == 0


def result(op: str, a: int, b: int) -> int:
    """Return the value of `a op b`."""
    return {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}[op]


def draw_pair(rng: random.Random, held: bool = False) -> tuple[str, int, int]:
    """Draw an operation and its numbers, from the training set or the held-out set."""
    while True:
        op = rng.choice("++--*/" if not held else "+-")
        if op in "+-":
            top = rng.choice((9, 20, LIMIT, LIMIT, LIMIT))
            a, b = rng.randint(0, top), rng.randint(0, top)
            if op == "-" and a < b:
                a, b = b, a
        else:
            a, b = rng.randint(0, TABLE), rng.randint(0, TABLE)
            if op == "/":
                b = max(b, 1)
                a *= b
        if held_out(op, a, b) == held and not (held and max(a, b) <= SMALL):
            return op, a, b


def draw_small_pair(rng: random.Random) -> tuple[str, int, int]:
    """Draw a sum or difference of two small numbers; none is held out."""
    op, a, b = rng.choice("+-"), rng.randint(0, SMALL), rng.randint(0, SMALL)
    return (op, max(a, b), min(a, b)) if op == "-" else (op, a, b)


def answer(op: str, a: int, b: int) -> str:
    """Return the whole answer, in which the sum comes first, with the digits where the model needs them."""
    sign = {"+": "+", "-": "-", "*": "×", "/": "÷"}[op]
    return f"{a} {sign} {b} = {result(op, a, b)}."


def question(op: str, a: int, b: int, rng: random.Random, templates: tuple[str, ...] = _ASK) -> str:
    """Draw a way to ask for `a op b`."""
    if templates is _ASK and rng.random() < 0.25:
        return rng.choice(_WORDS[op]).format(a=a, b=b)
    sign = rng.choice(_SIGNS[op])
    gap = " " if sign.isalpha() or " " in sign.strip() else rng.choice(("", "", " "))
    return rng.choice(templates).format(q=f"{a}{gap}{sign.strip()}{gap}{b}")


def draw_other(rng: random.Random) -> tuple[str, str]:
    """Draw a sum the model refuses, a comparison, counting, or even and odd numbers."""
    kind = rng.random()
    if kind < 0.28:
        a, b = rng.randint(100, 99999), rng.randint(2, 99999)
        if rng.random() < 0.5:
            a, b = b, a
        sign = rng.choice(("+", "-", "*", "x", "plus", "minus", "times", "/", "divided by"))
        gap = " " if sign.isalpha() or " " in sign else rng.choice(("", " "))
        return rng.choice(_ASK).format(
            q=f"{a}{gap}{sign}{gap}{b}"
        ), "I only learned to calculate with numbers up to 99."
    if kind < 0.38:
        a, b = sorted((rng.randint(0, 99), rng.randint(0, 99)))
        if a == b:
            b += 1
        return question(
            "-", a, b, rng
        ), f"{a} is smaller than {b}, so the result is below zero, and I have not learned that."
    if kind < 0.46:
        a, b = rng.randint(13, 99), rng.randint(13, 99)
        return question("*", a, b, rng), f"I only know the times table up to {TABLE} × {TABLE}."
    if kind < 0.66:
        a, b = rng.sample(range(100), 2)
        more = rng.random() < 0.5
        word = rng.choice(("bigger", "larger", "greater", "more") if more else ("smaller", "less", "lower"))
        ask = rng.choice(
            (
                f"which is {word}, {a} or {b}",
                f"what is {word}, {a} or {b}",
                f"which number is {word}: {a} or {b}",
            )
        )
        return (
            ask,
            f"{max(a, b)} is bigger than {min(a, b)}."
            if more
            else f"{min(a, b)} is smaller than {max(a, b)}.",
        )
    if kind < 0.82:
        a = rng.randint(0, 99)
        ask = rng.choice((f"is {a} even or odd", f"is {a} an even number", f"is {a} odd", f"is {a} even"))
        return ask, f"{a} is {'odd' if a % 2 else 'even'}."
    start = rng.choice((1, 1, 1, rng.randint(1, 30)))
    end = start + rng.choice((4, 9, 9, rng.randint(2, 12)))
    down = rng.random() < 0.2
    numbers = list(range(start, end + 1))
    if down:
        return (
            rng.choice((f"count down from {end} to {start}", f"count backwards from {end} to {start}")),
            ", ".join(map(str, reversed(numbers))) + ".",
        )
    to = f"count to {end}" if start == 1 else f"count from {start} to {end}"
    ask = rng.choice((to, f"can you {to}", f"please {to}", f"count from {start} to {end}"))
    return ask, ", ".join(map(str, numbers)) + "."
