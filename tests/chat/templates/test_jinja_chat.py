"""Chats through a model file's own template: its values, and alternatives when it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from puna.chat.answers.parts import Tags
from puna.chat.templates.jinja_chat import JinjaFormat
from puna.chat.templates.messages import SpecialTokens
from puna.errors import TemplateError
from tests.chat.templates.conversations import AGAIN, ANSWER, SYSTEM, TOOLS, USER

DUMP = "{{ messages | tojson }}"


def test_messages_reach_the_template_in_hugging_faces_shape() -> None:
    chat = [
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [
            {"id": "c1", "function": {"name": "f", "arguments": {"x": 1}}}]},
        {"role": "tool", "content": "r", "tool_name": "f", "tool_call_id": "c1"},
    ]  # fmt: skip
    assert JinjaFormat(DUMP).render(chat) == (
        '[{"role": "assistant", "content": "", "reasoning_content": "hm", "reasoning": "hm", '
        '"thinking": "hm", "tool_calls": '
        '[{"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]}, '
        '{"role": "tool", "content": "r", "name": "f", "tool_call_id": "c1"}]'
    )


@pytest.mark.parametrize(
    ("think", "text"),
    [(None, "--x"), (False, "FalseFalsex"), (True, "TrueTruemedium"), ("high", "TrueTruehigh")],
)
def test_thinking_is_left_to_the_template_by_default(think: Any, text: str) -> None:
    template = (
        "{{ enable_thinking | default('-') }}{{ thinking | default('-') }}"
        "{{ reasoning_effort | default('x') }}"
    )
    assert JinjaFormat(template).render([USER], think=think) == text


@pytest.mark.parametrize(
    ("accepted", "levels"),
    [
        (["no_think", "low", "high"], ["no_think", "high", "low", "high", "high"]),
        (["high", "no_think"], ["no_think", "high", "high", "high", "high"]),
        (["low", "medium"], ["-", "medium", "low", "medium", "medium"]),
        (["none", "max"], ["none", "max", "max", "max", "max"]),
        (["quick"], ["-", "medium", "low", "high", "max"]),
    ],
)
def test_a_template_gets_the_nearest_level_that_it_accepts(accepted: list[str], levels: list[str]) -> None:
    form = JinjaFormat(
        "{% set effort = reasoning_effort | default('-') %}"
        f"{{% if reasoning_effort is defined and reasoning_effort not in {accepted} %}}{{% endif %}}"
        "{{ effort }}"
    )
    asked: list[Any] = [False, True, "low", "high", "max"]
    assert [form.render([USER], think=think) for think in asked] == levels
    assert form.render([USER]) == "-"


@pytest.mark.parametrize(
    ("condition", "level"),
    [
        ('reasoning_effort | lower == "none"', "none"),
        ('reasoning_effort in ["low", "minimal"]', "minimal"),
        ('reasoning_effort not in ("no_think", "none")', "no_think"),
        ('reasoning_effort == "high"', "-"),
    ],
)
def test_without_thinking_a_template_gets_the_level_that_it_tells_apart(condition: str, level: str) -> None:
    form = JinjaFormat(f"{{% if {condition} %}}{{% endif %}}{{{{ reasoning_effort | default('-') }}}}")
    assert form.render([USER], think=False) == level
    assert form.render([USER]) == "-"


def test_a_template_gets_the_switches_of_cohere_and_seed() -> None:
    form = JinjaFormat("{{ reasoning | default('-') }} {{ thinking_budget | default('-') }}")
    said = {think: form.render([USER], think=think) for think in (None, False, True, "low")}
    assert said == {None: "- -", False: "False 0", True: "True -", "low": "True -"}


def test_no_think_is_added_to_the_system_message_where_only_that_stops_thinking() -> None:
    template = (
        "{% set thinks = namespace(on=true) %}{% for m in messages %}{% if m.role == 'system' %}"
        "{% set thinks.on = '/no_think' not in m.content %}"
        "{{ m.content.replace('/no_think', '').strip() ~ ';' }}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}{{ '<think>' if thinks.on else '<think></think>' }}"
    )
    form = JinjaFormat(template)
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}
    assert form.render([system, user], think=False) == "Be brief.;Hello<think></think>"
    assert form.render([user], think=False) == ";Hello<think></think>"
    for think in (None, True):
        assert form.render([system, user], think=think) == "Be brief.;Hello<think>"
    switched = JinjaFormat(template + "{{ enable_thinking | default('') }}")  # a variable decides
    assert switched.render([user], think=False) == "Hello<think>False"


def test_a_template_with_modes_of_thinking_gets_one() -> None:
    form = JinjaFormat("{{ thinking_mode | default('-') }}")
    modes = {None: "-", False: "disabled", True: "adaptive", "low": "enabled"}
    assert {think: form.render([USER], think=think) for think in modes} == modes


@pytest.mark.parametrize(
    ("template", "tags"),
    [
        (
            "{% set t = ':opensource' %}{{ '</think{}>'.format(t) }}",
            Tags("<think:opensource>", "</think:opensource>"),
        ),
        ("{% set t = '' %}{{ '</think{}>'.format(t) }}", Tags("<think>", "</think>")),
        ("</think:opensource>", Tags("<think:opensource>", "</think:opensource>")),
        ("{% set end = '</mm:think>' %}", Tags("<mm:think>", "</mm:think>")),
    ],
)
def test_tags_of_thinking_are_found_where_templates_put_them_together(template: str, tags: Tags) -> None:
    assert JinjaFormat(template).traits.thinking_tags == tags


@pytest.mark.parametrize(
    "read", ["message.tool_responses", "message['tool_responses']", "m.get('tool_responses')"]
)
def test_results_are_moved_only_for_templates_that_read_them_beside_calls(read: str) -> None:
    assert JinjaFormat(f"{{% for m in [] %}}{{{{ {read} }}}}{{% endfor %}}").wording.results_within
    assert not JinjaFormat("<tool_responses>{{ '</tool_responses{}>'.format('') }}").wording.results_within


@pytest.mark.parametrize(("adds", "text"), [(True, "hi<s></s>"), (False, "<s>hi<s></s>")])
def test_bos_is_left_out_if_the_tokenizer_adds_it(adds: bool, text: str) -> None:
    tokens = SpecialTokens({"bos_token": "<s>", "eos_token": "</s>"}, adds_bos=adds)
    assert JinjaFormat("{{ bos_token }}hi{{ bos_token + eos_token }}", tokens).render([USER]) == text


def test_a_last_assistant_message_is_continued() -> None:
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    form = JinjaFormat(template)
    assert form.render([USER]) == f"<user>{USER['content']}</user><assistant>"
    assert form.render([USER], add_generation_prompt=False) == f"<user>{USER['content']}</user>"
    begun = {"role": "assistant", "content": "I am "}
    assert form.render([USER, begun]) == f"<user>{USER['content']}</user><assistant>I am "


def test_a_template_without_a_system_role_gets_it_in_the_users_message(test_data: Path) -> None:
    form = JinjaFormat((test_data / "templates" / "google-gemma-2-2b-it.jinja").read_text())
    assert form.render([SYSTEM, USER]) == (
        "<start_of_turn>user\nYou are terse.\n\nHello, how are you?<end_of_turn>\n<start_of_turn>model\n"
    )
    assert form.render([USER, AGAIN]) == (
        f"<start_of_turn>user\nHello, how are you?\n\n{AGAIN['content']}<end_of_turn>\n<start_of_turn>model\n"
    )


def test_a_chat_refused_in_every_form_fails_with_the_templates_message() -> None:
    with pytest.raises(TemplateError, match="no chats today"):
        JinjaFormat("{{ raise_exception('no chats today') }}").render([SYSTEM, USER, ANSWER, AGAIN])


def test_templates_that_concatenate_arguments_get_them_as_text() -> None:
    template = (
        "{% for m in messages %}{% for c in m.tool_calls %}"
        "{{ '<' + c.function.arguments + '>' }}{% endfor %}{% endfor %}"
    )
    call = {"function": {"name": "f", "arguments": {"x": "é"}}}
    chat = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    assert JinjaFormat(template).render(chat) == '<{"x": "é"}>'


def test_templates_that_require_parts_get_content_in_parts() -> None:
    template = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    assert JinjaFormat(template).render([USER]) == USER["content"]


def test_another_template_may_be_used_for_tools() -> None:
    form = JinjaFormat("plain", with_tools="{{ tools | tojson }}")
    assert form.traits.takes_tools
    assert form.render([USER]) == "plain"
    assert form.render([USER], tools=[]) == "plain"
    assert "get_weather" in form.render([USER], tools=TOOLS)


@pytest.mark.parametrize(
    ("file", "tools", "tags"),
    [
        ("Qwen-Qwen3-0.6B", True, ("<think>", "</think>")),
        ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", False, ("<think>", "</think>")),
        ("ByteDance-Seed-OSS", True, ("<seed:think>", "</seed:think>")),
        ("mistralai-Ministral-3-14B-Reasoning-2512", True, ("[THINK]", "[/THINK]")),
        ("Qwen-Qwen2.5-7B-Instruct", True, None),
        ("google-gemma-2-2b-it", False, None),
        ("meta-llama-Llama-3.2-3B-Instruct", True, None),
    ],
)
def test_traits_of_published_templates_are_recognised(
    test_data: Path, file: str, tools: bool, tags: tuple[str, str] | None
) -> None:
    form = JinjaFormat((test_data / "templates" / f"{file}.jinja").read_text())
    assert form.traits.takes_tools == tools
    found = form.traits.thinking_tags
    assert (found and (found.opening, found.closing)) == tags
