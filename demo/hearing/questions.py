"""Questions about clips, with answers that follow from the words in them."""

from __future__ import annotations

import random

from demo.hearing.speech import COMMANDS, DIGITS, Said
from demo.vision.questions import CANNOT, Asked, typed

NOTHING_SAID = "Nothing."
NO_RECORDING = "I hear no recording."
_NUMBERS = ("None", "One", "Two", "Three", "Four", "Five")
_ORDER = {"first": 0, "last": -1}

_PHRASES: dict[str, tuple[str, ...]] = {
    "said": (
        "What was said?", "What did they say?", "What do you hear?", "What did you hear?", "What is said?",
        "What is said here?", "What is said in this recording?", "What is in this recording?",
        "Write down what was said.", "Transcribe this.", "Transcribe this recording.", "What does it say?",
        "What did I say?", "What is this?",
    ),
    "digits": (
        "Which digits?", "Which digits were said?", "What digits were said?", "Which digits do you hear?",
        "What number was said?", "Which number was said?", "What is the number?", "Which number is it?",
    ),
    "count": (
        "How many digits were said?", "How many digits are there?", "How many digits do you hear?",
        "Count the digits.",
    ),
    "order": ("What is the {} digit?", "What was the {} digit?", "Which digit was {}?", "Which digit is {}?"),
    "command": (
        "What is the command?", "Which command was given?", "Which command is it?", "What was the command?",
        "Which command do you hear?", "What should be done?", "What should I do?",
    ),
    "exists": (
        "Did they say {}?", "Did someone say {}?", "Was {} said?", "Do you hear {}?", "Did you hear {}?",
        "Did I say {}?",
    ),
    "anything": (
        "Was anything said?", "Is anyone speaking?", "Did anyone speak?", "Is somebody speaking?",
        "Does anybody speak?", "Do you hear anything?",
    ),
}  # fmt: skip
_SHARES = {
    "said": 4, "digits": 1.5, "count": 0.8, "order": 1, "command": 1.5, "exists": 1.2, "anything": 0.5,
    "cannot tell": 0.4,
}  # fmt: skip
#: Questions that such clips do not answer.
_UNKNOWABLE = (
    "Who is speaking?", "Who is this?", "How old is the speaker?", "Is it a man or a woman?",
    "Where was this recorded?", "When was this recorded?", "What language is this?", "Is the speaker happy?",
    "What is the speaker's name?", "Why was it said?", "Which city is the speaker from?",
    "What is the weather like?", "Is it raining?", "What time is it?", "Which song is playing?",
    "What animal is this?",
)  # fmt: skip


def sentence(words: str) -> str:
    """Return words as a sentence."""
    return f"{words[0].upper()}{words[1:]}."


def _answer(kind: str, said: Said, detail: str) -> str:
    """Return the answer to a question of a kind; `detail` is its word, or the place it asks for."""
    if kind == "anything":
        return "No." if said.kind == "nothing" else "Yes."
    if kind == "exists":
        return "Yes." if f" {detail} " in f" {said.text} " else "No."
    if kind == "cannot tell" or said.kind == "other":
        return CANNOT
    if kind == "count":
        return f"{_NUMBERS[len(said.words) if said.kind == 'digits' else 0]}."
    if said.kind == "nothing":
        return NOTHING_SAID
    if kind == "said" or kind == said.kind == "command":
        return sentence(said.text)
    if kind == "command":
        return "There is no command."
    if said.kind == "command":
        return "There are no digits."
    if kind == "digits":
        return f"{''.join(str(DIGITS.index(word)) for word in said.words)}."
    return sentence(said.words[_ORDER[detail]])


def ask(said: Said, rng: random.Random) -> Asked:
    """Draw a question about a clip, in words that people use."""
    kind = rng.choices(list(_SHARES), list(_SHARES.values()))[0]
    if kind == "cannot tell":
        return Asked(kind, typed(rng.choice(_UNKNOWABLE), rng), CANNOT)
    detail = rng.choice(list(_ORDER)) if kind == "order" else ""
    if kind == "exists":
        known = [said.text, *said.words] if said.kind in ("digits", "command") else []
        detail = rng.choice(known if known and rng.random() < 0.5 else [*DIGITS, *COMMANDS])
        if len(detail.split()) > 2:
            detail = rng.choice(said.words)
    question = rng.choice(_PHRASES[kind]).format(detail)
    return Asked(kind, typed(question, rng), _answer(kind, said, detail))


def questions(said: Said, rng: random.Random, wanted: int) -> list[Asked]:
    """Draw up to `wanted` different questions about a clip."""
    found: dict[str, Asked] = {}
    for _ in range(3 * wanted):
        asked = ask(said, rng)
        found.setdefault(asked.question, asked)
        if len(found) == wanted:
            break
    return list(found.values())


def blind(rng: random.Random) -> Asked:
    """Draw a question without a recording."""
    phrase = rng.choice(_PHRASES[rng.choice(list(_PHRASES))])
    question = phrase.format(rng.choice(list(_ORDER) if "digit" in phrase else (*DIGITS, *COMMANDS)))
    return Asked("no recording", typed(question, rng), NO_RECORDING)
