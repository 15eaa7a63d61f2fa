"""Jinja templates render as transformers renders them, errors included."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import pytest

from puna.chat.templates.jinja import JinjaTemplate
from puna.errors import TemplateError
from tests.chat.templates.conversations import CHATS, TOOLS

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

VARIANTS: list[dict[str, Any]] = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False},
    {"add_generation_prompt": True, "enable_thinking": False, "thinking": False},
    {"add_generation_prompt": True, "enable_thinking": True, "thinking": True, "reasoning_effort": "high"},
]

#: Templates that change their own lists, or write a filter's result as JSON, which transformers refuses.
FURTHER = ("Kimi-K2-Instruct", "llama-cpp-deepseek-r1")


def reference(template: str, chat: list[dict[str, Any]], tools: Any, values: dict[str, Any]) -> str:
    """Render with transformers, raising its errors."""
    from transformers.utils.chat_template_utils import render_jinja_template

    values = dict(values)
    rendered, _ = render_jinja_template(
        [chat],
        tools=tools,
        chat_template=template,
        add_generation_prompt=values.pop("add_generation_prompt"),
        **SPECIAL,
        **values,
    )
    return str(rendered[0])


def ours(template: str, chat: list[dict[str, Any]], tools: Any, values: dict[str, Any]) -> str:
    everything = {"messages": chat, "tools": tools, "documents": None, **SPECIAL, **values}
    return parsed(template).render(everything)


@lru_cache
def parsed(template: str) -> JinjaTemplate:
    return JinjaTemplate(template)


def outcome(render: Callable[..., str], *arguments: Any) -> str | Exception:
    try:
        return render(*arguments)
    except Exception as error:
        return error


def templates(folder: Path) -> list[Path]:
    return sorted((folder / "templates").glob("*.jinja"))


@pytest.mark.slow
def test_every_published_template_renders_as_in_transformers(test_data: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed: pip install '.[test]'")
    compared: set[str] = set()
    refused: set[str] = set()
    for path in templates(test_data):
        template = path.read_text()
        for name, chat in CHATS.items():
            for tools in (None, TOOLS):
                for values in VARIANTS:
                    where = f"{path.name}, chat {name}, tools {tools is not None}, {values}"
                    expected = outcome(reference, template, chat, tools, values)
                    found = outcome(ours, template, chat, tools, values)
                    if isinstance(expected, Exception):
                        if path.stem in FURTHER and isinstance(found, str):
                            continue
                        assert isinstance(found, TemplateError), where
                        assert str(expected) in str(found), where
                        refused.add(where)
                    else:
                        assert found == expected, where
                        compared.add(where)
    assert len(compared) > 1000
    assert len(refused) > 50


@pytest.mark.parametrize(
    "template",
    [
        "{% generation %}a{% endgeneration %}b",
        "{% for m in messages %}{% if loop.index0 == 1 %}{% continue %}{% endif %}{{ m.role }}\n{% endfor %}",
        "{% for m in messages %}{% break %}{% endfor %}done",
        "  {% if true %}\n  x\n  {% endif %}\n",
        "{{ messages | tojson }}\n{{ tools | tojson(indent=4) }}",
        "{{ {'b': 1, 'a': 'é<&>'} | tojson(sort_keys=true) }}",
        "{{ messages | tojson(separators=(',', ':')) }}",
        "{% set n = namespace(x=0) %}{% for m in messages %}{% set n.x = loop.index %}{% endfor %}{{ n.x }}",
        "{{ dict(a=1).a }}{{ messages[0]['nothing'] is defined }}{{ nothing }}",
        "{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(1) }}{{ '%s-%d' % ('a', 3) }}{{ 'ab' * 3 }}{{ 2 ** 8 }}",
        "{{ messages[0].content.split(' ')[0].strip(',').upper() }}{{ messages[::-1] | length }}",
        # Templates that must fail:
        "{{ raise_exception('no ' ~ messages[0].role) }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages.insert(0, 1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ nothing.more }}",
        "{% set ns = namespace(_x=1) %}",
        "{{ undefined_function() }}",
        "{{ set() | tojson }}",
        "{% if %}",
        "{% for x in y %}",
        "{{ 'a }}",
    ],
)  # fmt: skip
def test_each_feature_and_mistake_gives_the_same_as_in_transformers(template: str) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed: pip install '.[test]'")
    values = {"add_generation_prompt": True}
    try:
        expected = reference(template, CHATS["turns"], TOOLS, values)
    except Exception as error:
        with pytest.raises(TemplateError):
            ours(template, CHATS["turns"], TOOLS, values)
        if isinstance(error, jinja2.TemplateSyntaxError):
            with pytest.raises(TemplateError, match=f"line {error.lineno}"):
                JinjaTemplate(template)
        return
    assert ours(template, CHATS["turns"], TOOLS, values) == expected


def test_strftime_now_uses_todays_date() -> None:
    from datetime import datetime

    text = JinjaTemplate("{{ strftime_now('%Y-%m-%d') }}").render({})
    assert abs((datetime.now() - datetime.fromisoformat(text)).days) <= 1


def test_a_failure_names_the_line() -> None:
    with pytest.raises(TemplateError, match=r"line 3: can only concatenate str"):
        JinjaTemplate("a\nb\n{{ 'x' + y }}").render({"y": {"k": 1}})


def test_variables_and_literals_of_a_template_are_found() -> None:
    template = JinjaTemplate(
        "{% set x = 1 %}{{ messages[0]['reasoning_content'] }}{% if tools %}{{ '<think>' }}{% endif %}"
    )
    assert [template.reads(name) for name in ("messages", "tools", "x", "think")] == [
        True,
        True,
        False,
        False,
    ]
    assert template.literal("<think>")
    assert not template.literal("reasoning</think>")


@pytest.mark.parametrize("change", ["message.update({'role': 'x'})", "dict.update(message, {'role': 'x'})"])
def test_a_template_cannot_change_its_values(change: str) -> None:
    message = {"role": "user"}
    with pytest.raises(TemplateError):
        JinjaTemplate(f"{{{{ {change} }}}}").render({"message": message})
    assert message == {"role": "user"}


def test_rendering_does_not_change_the_messages() -> None:
    chat = json.loads(json.dumps(CHATS["turns"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        JinjaTemplate("{% for m in messages %}{{ m.content }}{% endfor %}").render({"messages": chat})
    assert chat == CHATS["turns"]
