"""Conversations with tools and small objects: nothing held out is taught, and nothing given is learned."""

from __future__ import annotations

import random
import re

from demo.corpus import calls, records
from demo.corpus.arithmetic import HELD_OUT_ASK
from demo.packing import segments


def test_held_out_questions_and_cities_are_never_taught() -> None:
    rng = random.Random(5)
    talks = [calls.tool_chat(rng) for _ in range(1500)] + [records.record_chat(rng) for _ in range(500)]
    text = "\n".join(message["content"] for talk in talks for message in talk).lower()
    phrases = [*calls.HELD_OUT_ASK, *calls.HELD_OUT_ASK_TWO, *HELD_OUT_ASK, *records.HELD_OUT_PERSON]
    for phrase in (*phrases, *records.HELD_OUT_THING):
        longest = max(re.split(r"\{\w\}", phrase), key=len).strip()
        assert longest.lower() not in text, longest
    assert not [city for city in calls.HELD_OUT_CITIES if city.lower() in text]


def test_what_is_given_of_an_answer_is_not_learned() -> None:
    document = {"messages": [{"role": "assistant", "content": '{"a": 1}', "given": '{"'}]}
    assert [text for text, learned in segments(document) if learned] == ['a": 1}<|im_end|>']
