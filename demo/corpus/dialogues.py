"""Conversations: careless typing, system messages, several turns, follow-up questions."""

import random

from demo.corpus import about, arithmetic, extras, facts, smalltalk, stories
from demo.corpus import words as w
from demo.corpus.template import polish

Message = dict[str, str]
Exchange = tuple[str, str, str]  # question, answer, answer in a word or two ("" when there is none)

_PREFIXES = (
    "hey, ", "hi, ", "hello, ", "ok, ", "so, ", "please ", "um, ", "well, ", "question: ", "now, ", "and ",
    "hi! ", "hello! ",
    "one more question: ", "quick question: ", "hey puna, ", "demo, ", "ok ", "so ",
)  # fmt: skip
_SYSTEM = (
    "You are a helpful assistant.", "You are Demo, a tiny model.", "You are a friendly assistant.",
    "Answer the user's questions.",
    "You are a helpful AI assistant.", "Be kind and polite.", "You are a storyteller.", "Help the user.",
    "You are an assistant for children.",
    "You are Puna's demo model.", "Be helpful.", "You are a chatbot.",
    "You are a helpful, respectful and honest assistant.",
)  # fmt: skip
_SHORT = ("Answer in one word.", "Give short answers.", "Answer as briefly as possible.", "Be brief.",
          "Keep your answers short.",
          "Reply with one word only.", "Short answers only, please.")  # fmt: skip
_PIRATE = ("You are a pirate.", "Talk like a pirate.", "Answer like a pirate.", "You are a friendly pirate.",
           "Pretend to be a pirate.")  # fmt: skip


def typed(text: str, rng: random.Random, question: bool = True) -> str:
    """Vary the text as people type it: case, punctuation, a friendly word before it, a typing mistake."""
    if rng.random() < 0.1:
        text = rng.choice(_PREFIXES) + text
    style = rng.random()
    if style < 0.52:
        text = text[:1].upper() + text[1:]
    elif style < 0.9:
        text = text.lower()
    elif style < 0.915:
        text = text.upper()
    if rng.random() < 0.05:
        text = _mistype(text, rng)
    if question and text[-1:] not in ".?!=":
        if rng.random() < 0.04:
            text += rng.choice((" please", ", please", " pls", " thanks"))
        text += rng.choice(("?", "?", "?", "", "", "", ".", "??", "!", " ?")) if rng.random() < 0.9 else "?"
    return text


def _mistype(text: str, rng: random.Random) -> str:
    places = [
        i
        for i in range(1, len(text) - 1)
        if text[i].isalpha() and text[i + 1].isalpha() and text[i - 1].isalpha()
    ]
    if len(places) < 6:
        return text
    i = rng.choice(places)
    kind = rng.random()
    if kind < 0.35:
        return text[:i] + text[i + 1 :]
    if kind < 0.7:
        return text[:i] + text[i + 1] + text[i] + text[i + 2 :]
    return text[:i] + text[i] + text[i:]


def plain_story(rng: random.Random) -> str:
    """Draw a story as plain text, so that the model also continues text outside of conversations."""
    return stories.draw_story(rng).text


def _chat(turns: list[Exchange], rng: random.Random, system: str | None = None) -> list[Message]:
    messages: list[Message] = []
    if system is None and rng.random() < 0.08:
        system = rng.choice(_SYSTEM)
    if system:
        messages.append({"role": "system", "content": system})
    for question, answer, _ in turns:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return messages


def story_chat(rng: random.Random) -> list[Message]:
    """Draw a request for a story, perhaps with questions about it or a request for another one."""
    story = stories.draw_story(rng)
    turns = [_ask_for(story, rng)]
    if rng.random() < 0.3:
        for _ in range(rng.choice((1, 1, 2, 3))):
            question, answer = stories.draw_question(story, rng)
            turns.append((typed(question, rng, question=False), answer, ""))
    if rng.random() < 0.08:
        if rng.random() < 0.5:
            turns.append((*_talk(rng), ""))
        second = stories.draw_story(rng)
        if rng.random() < 0.5:
            ask = rng.choice(("another one", "tell me another story", "one more", "another story please",
                              "a different story", "more",
                              "now another one", "tell me one more", "again", "another story"))  # fmt: skip
            turns.append((typed(ask, rng), second.text, ""))
        else:
            turns.append(_ask_for(second, rng))
    elif rng.random() < 0.06:
        turns.insert(0, (*_talk(rng), ""))
    return _chat(turns, rng)


def _ask_for(story: stories.Story, rng: random.Random) -> Exchange:
    if rng.random() < 0.02:
        return typed("once upon a time", rng), story.text, ""
    return typed(stories.draw_request(story, rng), rng, question=False), story.text, ""


def _talk(rng: random.Random) -> tuple[str, str]:
    ask, answer = smalltalk.draw_talk(rng)
    return typed(ask, rng), answer


def fact(rng: random.Random) -> Exchange:
    """Draw one of the facts, asked in one of the ways for training."""
    item = rng.choice(facts.all_facts())
    return typed(rng.choice(item.questions), rng), item.answer, item.short


def calculation(rng: random.Random) -> Exchange:
    """Draw a sum, or (one in seven) another question about numbers."""
    if rng.random() < 0.15:
        ask, answer = arithmetic.draw_other(rng)
        return typed(ask, rng), answer, ""
    op, a, b = arithmetic.draw_pair(rng)
    ask = arithmetic.question(op, a, b, rng)
    return (
        typed(ask, rng, question=not ask.endswith(("=", "?"))),
        arithmetic.answer(op, a, b),
        str(arithmetic.result(op, a, b)),
    )


def small_calculation(rng: random.Random) -> Exchange:
    """Draw a sum or difference of small numbers, including those `calculation` omits."""
    op, a, b = arithmetic.draw_small_pair(rng)
    ask = arithmetic.question(op, a, b, rng)
    value = str(arithmetic.result(op, a, b))
    return typed(ask, rng, question=not ask.endswith(("=", "?"))), arithmetic.answer(op, a, b), value


def extra(rng: random.Random) -> Exchange:
    """Draw a question people often ask a new model first."""
    questions, answers = rng.choice(extras.PAIRS)
    return typed(rng.choice(questions), rng), rng.choice(answers), ""


def talk(rng: random.Random) -> Exchange:
    """Draw small talk, a question about Puna, a joke, or a question outside the model's world."""
    kind = rng.random()
    if kind < 0.3:
        ask, answers = rng.choice(about.PAIRS)
        return typed(rng.choice(ask), rng), rng.choice(answers), ""
    if kind < 0.56:
        return (*_talk(rng), "")
    if kind < 0.66:
        ask_text, answer = smalltalk.draw_fun(rng)
        return typed(ask_text, rng), answer, ""
    ask_text, answer = smalltalk.draw_unknown(rng)
    return typed(ask_text, rng), answer, ""


def chat_of(kind: str, rng: random.Random) -> list[Message]:
    """Draw a conversation of one kind: "facts", "sums", "small", "talk", "extra" or "mixed"."""
    draw = {"facts": fact, "sums": calculation, "talk": talk, "small": small_calculation, "extra": extra}
    count = rng.choice((1, 1, 2, 3, 4, 5))
    style = rng.random()
    turns = [
        rng.choice((fact, calculation, talk))(rng) if kind == "mixed" else draw[kind](rng)
        for _ in range(count)
    ]
    if kind in ("mixed", "talk") and rng.random() < 0.25:
        told, asked = smalltalk.draw_name_talk(rng)
        turns.insert(0, (typed(told[0], rng, question=False), told[1], ""))
        turns.append((typed(asked[0], rng), asked[1], ""))
    if kind == "mixed" and rng.random() < 0.25:
        turns.insert(rng.randint(0, len(turns)), _ask_for(stories.draw_story(rng), rng))
    if style < 0.03 and all(short for _, _, short in turns):
        return _chat([(q, polish(s) + ".", s) for q, _, s in turns], rng, rng.choice(_SHORT))
    if style < 0.05 and kind != "mixed":
        return _chat([(q, f"Arr! {a}", s) for q, a, s in turns], rng, rng.choice(_PIRATE))
    if style < 0.07 and kind == "talk":
        name = rng.choice((rng.choice(w.GIRLS), rng.choice(w.BOYS), stories.invented_name(rng)))
        ask = rng.choice(("what is your name", "who are you", "what's your name", "what are you called"))
        turns.insert(0, (typed(ask, rng), f"My name is {name}.", ""))
        return _chat(
            turns,
            rng,
            rng.choice(
                (f"Your name is {name}.", f"You are {name}.", f"You are {name}, a helpful assistant.")
            ),
        )
    return _chat(turns, rng)
