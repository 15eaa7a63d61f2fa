"""Questions about clips, with answers that follow from the words in them."""

from __future__ import annotations

import random

from demo.hearing.speech import DIGITS, Said
from demo.vision.questions import CANNOT, Asked, typed

NOTHING_SAID = "Nothing."
NO_RECORDING = "I hear no recording."
_NUMBERS = ("None", "One", "Two", "Three", "Four", "Five")

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
    "command": (
        "What is the command?", "Which command was given?", "Which command is it?", "What was the command?",
        "Which command do you hear?", "What should be done?", "What should I do?",
    ),
    "anything": (
        "Was anything said?", "Is anyone speaking?", "Did anyone speak?", "Is somebody speaking?",
        "Does anybody speak?", "Do you hear anything?",
    ),
}  # fmt: skip
_SHARES = {"said": 5, "digits": 2, "count": 0.7, "command": 1.5, "anything": 0.5, "cannot tell": 0.4}
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


def _answer(kind: str, said: Said) -> str:
    if kind == "anything":
        return "No." if said.kind == "nothing" else "Yes."
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
    return f"{''.join(str(DIGITS.index(word)) for word in said.words)}."


def ask(said: Said, rng: random.Random) -> Asked:
    """Draw a question about a clip, in words that people use."""
    kind = rng.choices(list(_SHARES), list(_SHARES.values()))[0]
    question = rng.choice(_UNKNOWABLE if kind == "cannot tell" else _PHRASES[kind])
    return Asked(kind, typed(question, rng), _answer(kind, said))


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
    return Asked("no recording", typed(phrase, rng), NO_RECORDING)
