"""Budgets of thinking by number and by level, and thinking in the library."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import puna
from puna.chat.answers.parts import Tags
from puna.chat.templates.choose import chat_format
from puna.chat.templates.messages import Chat, Message, Traits
from puna.chat.templates.model_facts import ModelFacts
from puna.conversation.chat_model import SHARES, reading_of, thinking_budget
from puna.errors import OptionError, RequestError
from puna.grammar.compiler.protocol import FormatTask
from puna.grammar.format import Format
from puna.options import Options
from puna.protocol import Generate
from tests.scripted import pieces_of, write_scripted
from tests.tiny.llama import tiny_llama_gguf

ROOT = Path(__file__).parents[2]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}<think>{% if false %}</think>{% endif %}"
#: A thought that no model ends, a token for each letter. After a closed thought it comes again.
LONG = "so_on_and_on_" * 20


@pytest.mark.parametrize(
    ("think", "own", "num_predict", "levels", "expected"),
    [
        (True, None, 1000, False, None),
        (None, None, 1000, False, None),
        ("max", None, 1000, False, None),
        ("low", None, 2400, False, 300),
        ("medium", None, 2400, False, 600),
        ("high", None, 2400, False, 1200),
        ("high", None, -1, False, 2048),
        ("high", None, 100_000, False, 2048),
        ("low", None, 10, False, 128),
        ("low", None, 2400, True, None),
        ("low", 7, 2400, True, 7),
        (False, 0, -1, False, 0),
    ],
)
def test_the_budget_is_the_requests_own_or_that_of_its_level(
    think: Any, own: int | None, num_predict: int, levels: bool, expected: int | None
) -> None:
    options = Options(num_predict=num_predict)
    request = Generate(think=think, think_budget=own, options=options)
    assert thinking_budget(request, Traits(takes_levels=levels), 4096) == expected


def test_the_page_lists_the_shares() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    rows = re.findall(r"^\| `(\w+)`.* \| (1/\d) \| (\d+) tokens \|$", page, re.MULTILINE)
    assert {level: (float(Fraction(share)), int(least)) for level, share, least in rows} == SHARES


@pytest.mark.parametrize(
    ("template", "takes"),
    [
        ("{% if reasoning_effort %}{{ reasoning_effort }}{% endif %}", True),
        ("{{ .Messages }} {{ .ThinkLevel }}", True),
        ("{% if enable_thinking %}{% endif %}", False),
        ("{{ .Messages }} {{ .Think }}", False),
    ],
)
def test_templates_with_levels_are_recognised(template: str, takes: bool) -> None:
    assert chat_format(ModelFacts(), template).traits.takes_levels == takes


@pytest.mark.parametrize(
    ("think", "prompt", "keeps"),
    [(True, "Say", True), (False, "Say", False), (None, "Say", False), (False, "Say<think>", True)],
)
def test_a_format_keeps_the_thought_where_the_model_thinks(think: Any, prompt: str, keeps: bool) -> None:
    chat = Chat(messages=[Message(role="user", content="Say")])
    request = Generate(prompt=chat, think=think, format=Format.json_object())
    reading = reading_of(request, Traits(thinking_tags=Tags("<think>", "</think>")), "llama", prompt)
    assert reading is not None
    assert reading.thinking is not None
    task = FormatTask.of(request.format, reading)
    assert task is not None
    assert task.reading is not None
    assert (task.reading.thinking is not None) == keeps


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[puna.Model]:
    path = tmp_path_factory.mktemp("thinker") / "thinker.gguf"
    with puna.load(write_scripted(path, [pieces_of(LONG)], template=TEMPLATE), num_ctx=2048) as model:
        yield model


HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize("options", [{"think": 9}, {"think_budget": 9}, {"think": 30, "think_budget": 9}])
def test_the_library_keeps_to_a_budget(thinker: puna.Model, options: Any) -> None:
    done = thinker.chat(HELLO, temperature=0, **options)
    assert (done.thinking, done.text, done.thinking_tokens) == (LONG[:9], LONG, 9)
    level = thinker.chat(HELLO, temperature=0, think="low", num_predict=1000)
    assert level.thinking_tokens == 128


@pytest.mark.slow
def test_the_library_ends_thinking_at_once(thinker: puna.Model) -> None:
    with thinker.chat(HELLO, temperature=0, stream=True, ignore_eos=True, num_predict=1800) as stream:
        next(stream)
        stream.finish_thinking()
        done = stream.completion()
    assert 0 < done.thinking_tokens < 1800
    assert done.text
    stream.finish_thinking()  # after the end, which changes nothing

    async def answer() -> int:
        other = await thinker.achat(HELLO, temperature=0, stream=True, ignore_eos=True, num_predict=1800)
        await anext(other)
        other.finish_thinking()
        return (await other.completion()).thinking_tokens

    assert asyncio.run(answer()) < 1800


def test_the_library_warns_of_a_model_that_cannot_think(tmp_path: Path) -> None:
    with puna.load(tiny_llama_gguf(tmp_path / "tiny.gguf"), num_ctx=128) as model:
        with pytest.warns(UserWarning, match="does not support thinking"):
            assert model.chat(HELLO, think=True, temperature=0, num_predict=2).text
        for wrong in ({"think": "deep"}, {"think": -1}, {"think_budget": 2**40}):
            with pytest.raises(RequestError, match="think"):
                model.chat(HELLO, **wrong)  # type: ignore[call-overload]
        with pytest.raises(OptionError, match="number of tokens"):
            model.chat(HELLO, think_budget="many")  # type: ignore[call-overload]
