"""Training conversations with tools and small objects: held-out questions and given text are not learned."""

from __future__ import annotations

import random
import re

import pytest

from demo.call_checks import spoken
from demo.corpus import calls, records
from demo.corpus.arithmetic import HELD_OUT_ASK
from demo.packing import segments
from demo.vocabulary import CHAT_TEMPLATE, chat_prompt
from puna.chat.templates.jinja import JinjaTemplate
from puna.chat.templates.jinja_chat import JinjaFormat
from puna.chat.templates.messages import SpecialTokens


def test_held_out_questions_and_cities_are_never_taught() -> None:
    rng = random.Random(5)
    talks = [calls.tool_chat(rng) for _ in range(1500)] + [records.record_chat(rng) for _ in range(500)]
    text = "\n".join(message["content"] for talk in talks for message in talk).lower()
    phrases = [*calls.HELD_OUT_ASK, *calls.HELD_OUT_ASK_TWO, *HELD_OUT_ASK, *records.HELD_OUT_PERSON]
    for phrase in (*phrases, *records.HELD_OUT_THING):
        longest = max(re.split(r"\{\w\}", phrase), key=len).strip()
        assert longest.lower() not in text, longest
    assert not [city for city in calls.HELD_OUT_CITIES if city.lower() in text]


def test_given_beginning_of_an_answer_is_not_learned() -> None:
    document = {"messages": [{"role": "assistant", "content": '{"a": 1}', "given": '{"'}]}
    assert [text for text, learned in segments(document) if learned] == ['a": 1}<|im_end|>']


def test_the_chat_template_renders_the_training_format() -> None:
    rng = random.Random(6)
    template = JinjaFormat(CHAT_TEMPLATE, SpecialTokens())
    for _ in range(300):
        talk = calls.tool_chat(rng)
        messages, tools = spoken(talk)
        assert template.render(messages[:-1], tools=tools) == chat_prompt(talk[:-1])


@pytest.mark.parametrize(
    "parameters",
    [
        None,
        {},
        {"type": "object"},
        {"properties": {"a": True, "b": {"anyOf": []}, "c": {"type": ["string"]}}},
    ],
)
def test_the_chat_template_takes_any_parameters(parameters: object) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    values = {"messages": [{"role": "user", "content": "Hi"}], "tools": [tool]}
    # Rendered as other programs do, without Puna's retries when a template fails.
    assert JinjaTemplate(CHAT_TEMPLATE).render(values).startswith("<|im_start|>system\nTools:\nf(")
