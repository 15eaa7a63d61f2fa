"""Alternative forms of chats, for templates that refuse the usual one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2.sandbox
import pytest

from puna.chat.templates.go_chat import GoFormat
from puna.chat.templates.jinja_chat import JinjaFormat, simple_tool
from puna.chat.templates.messages import SpecialTokens, as_messages
from puna.errors import TemplateError, TemplateRefusalError, TemplateRenderError
from tests.chat.templates.conversations import TOOLS, USER

TOKENS = SpecialTokens({"bos_token": "<s>", "eos_token": "</s>"})

#: Templates that fail in transformers too, whatever the tools.
BROKEN = ("MiroThinker",)

#: Types of parameters besides those that templates expect.
ODD_TYPES: list[Any] = [
    "null", ["string", "null"], ["null"], [], ["string", "integer", "null"], None, "date", "any", "",
]  # fmt: skip


def tool(**parameters: Any) -> dict[str, Any]:
    described = {"type": "object", "properties": parameters}
    return {"type": "function", "function": {"name": "look", "description": "d", "parameters": described}}


def form_of(folder: Path, name: str) -> JinjaFormat:
    return JinjaFormat((folder / "templates" / f"{name}.jinja").read_text(), TOKENS)


@pytest.mark.parametrize(
    "name",
    [
        "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
        "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
        "CohereForAI-c4ai-command-r-plus-tool_use",
        "meetkai-functionary-medium-v3.2",
    ],
)
def test_templates_that_name_types_accept_unknown_ones(test_data: Path, name: str) -> None:
    form = form_of(test_data, name)
    odd = [{"type": kind, "description": "x"} for kind in ODD_TYPES]
    nested = [{"type": "array", "items": one} for one in odd] + [{}, {"type": "array"}, {"enum": [1, None]}]
    nested += [{"type": "object", "properties": {"inner": one}} for one in odd]
    for parameter in odd + nested:
        text = form.render([USER], tools=[tool(place=parameter)])
        assert "look" in text, parameter
        assert "place" in text, parameter


@pytest.mark.slow
@pytest.mark.parametrize(
    "bare",
    [
        {"name": "look"},
        pytest.param({"name": "look", "parameters": {}}, marks=pytest.mark.slow),
        pytest.param({"name": "look", "description": "d"}, marks=pytest.mark.slow),
    ],
)
def test_a_function_needs_only_a_name(test_data: Path, bare: dict[str, Any]) -> None:
    for path in sorted((test_data / "templates").glob("*.jinja")):
        form = form_of(test_data, path.stem)
        if form.traits.takes_tools and path.stem not in BROKEN:
            assert "look" in form.render([USER], tools=[{"type": "function", "function": bare}]), path.name


def test_tools_that_a_template_accepts_are_unchanged(test_data: Path) -> None:
    assert simple_tool(TOOLS[0])["function"]["name"] == "get_weather"
    form = JinjaFormat("{{ tools | tojson }}")
    assert '"null"' in form.render([USER], tools=[tool(place={"type": "null"})])


@pytest.mark.parametrize(
    "name", ["mistralai-Mistral-Nemo-Instruct-2407", "Mistral-Small-3.2-24B-Instruct-2506"]
)
@pytest.mark.parametrize("ids", [("call_abcdefgh", "toolu_01"), ("", "")])
def test_ids_of_calls_are_shortened_for_templates_that_insist(
    test_data: Path, name: str, ids: tuple[str, str]
) -> None:
    calls = [
        {"function": {"name": f"f{n}", "arguments": {"n": n}}, **({"id": one} if one else {})}
        for n, one in enumerate(ids)
    ]
    results = [
        {"role": "tool", "content": f"result {n}", **({"tool_call_id": one} if one else {})}
        for n, one in enumerate(ids)
    ]
    chat = [USER, {"role": "assistant", "content": "", "tool_calls": calls}, *results]
    text = form_of(test_data, name).render(chat, tools=TOOLS)
    assert all(f"result {n}" in text for n in range(2))
    assert not any(one in text for one in ids if one)
    good = [{**call, "id": f"abcdefgh{n}"} for n, call in enumerate(calls)]
    kept = [{**result, "tool_call_id": f"abcdefgh{n}"} for n, result in enumerate(results)]
    text = form_of(test_data, name).render([USER, {**chat[1], "tool_calls": good}, *kept], tools=TOOLS)
    assert text.count("abcdefgh0") >= 1


def test_each_result_has_the_short_id_of_its_call() -> None:
    template = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}"
        "{{ raise_exception('nine') }}{% endif %}<{{ c.function.name }}={{ c.id }}>{% endfor %}"
        "{% if m.role == 'tool' %}({{ m.content }}={{ m.tool_call_id }}){% endif %}{% endfor %}"
    )
    calls = [{"id": f"call_{n}", "function": {"name": f"f{n}", "arguments": {}}} for n in range(2)]
    results = [{"role": "tool", "content": f"r{n}", "tool_call_id": f"call_{n}"} for n in (1, 0)]
    text = JinjaFormat(template).render([{"role": "assistant", "content": "", "tool_calls": calls}, *results])
    first, second = (text.partition(f"<f{n}=")[2][:9] for n in range(2))
    assert first != second
    assert f"(r1={second})(r0={first})" in text


def test_documents_reach_the_template() -> None:
    form = JinjaFormat("{% for d in documents or [] %}[{{ d.title }}: {{ d.text }}]{% endfor %}")
    assert form.traits.takes_documents
    assert form.render([USER], documents=[{"title": "a", "text": "b"}]) == "[a: b]"
    assert form.render([USER]) == ""
    assert not JinjaFormat("{{ messages }}").traits.takes_documents


def test_values_of_a_template_reach_it_and_replace_nothing_else() -> None:
    form = JinjaFormat("{{ shape }}{{ enable_thinking }}{{ messages | length }}")
    assert form.traits.takes_values
    values = {"shape": "round", "enable_thinking": False, "messages": []}
    assert form.render([USER], think=True, values=values) == "roundFalse1"
    assert form.render([USER], think=True) == "True1"


def test_the_first_refusal_is_reported() -> None:
    with pytest.raises(TemplateError, match="no tools today"):
        JinjaFormat("{% if tools %}{{ raise_exception('no tools today') }}{% endif %}").render(
            [USER], tools=[tool(place={"type": "null"})]
        )


CALL = {"id": "call_abc123xyz", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
OTHER = {**CALL, "id": "call_2"}
RESULT = {"role": "tool", "content": "sunny", "tool_call_id": "call_abc123xyz", "tool_name": "get_weather"}
SECOND = {**RESULT, "tool_call_id": "call_2"}
UNNAMED = {"role": "tool", "content": "sunny"}
SYSTEM = {"role": "system", "content": "Be terse."}


def said(text: str = "", *calls: dict[str, Any], thinking: str = "") -> dict[str, Any]:
    return {"role": "assistant", "content": text, "thinking": thinking, "tool_calls": list(calls)}


#: Messages that agents send back: answers in pieces, some without text, and words of the user in between.
SENT_BACK: dict[str, list[dict[str, Any]]] = {
    "an empty answer": [USER, said(), USER],
    "thinking alone": [USER, said(thinking="Hm."), USER],
    "thinking apart from the call": [USER, said(thinking="Hm."), said("", CALL), RESULT],
    "all at once": [USER, said("I look.", CALL, thinking="Hm."), RESULT, said("Sunny."), USER],
    "text before the call": [USER, said("I look."), said("", CALL), RESULT],
    "text after the call": [USER, said("", CALL), said("I look."), RESULT],
    "calls in two answers": [USER, said("", CALL), said("", OTHER), RESULT, SECOND],
    "the user after a result": [USER, said("", CALL), RESULT, USER],
    "a call without an id": [USER, said("", {"function": CALL["function"]}), UNNAMED],
    "instructions in the middle": [USER, said("Yes."), SYSTEM, USER],
}  # fmt: skip
#: Templates of models without tool calls.
CALLS_NOTHING = ("google-gemma-2-2b-it",)


@pytest.mark.slow
@pytest.mark.parametrize(
    "tools", [pytest.param(None, marks=pytest.mark.slow), TOOLS], ids=["no tools", "tools"]
)
def test_every_template_renders_the_messages_of_agents(test_data: Path, tools: Any) -> None:
    rendered = 0
    for path in sorted((test_data / "templates").glob("*.jinja")):
        form = form_of(test_data, path.stem)
        for name, chat in SENT_BACK.items():
            calls = any("tool_calls" in message and message["tool_calls"] for message in chat)
            if path.stem in BROKEN or (path.stem in CALLS_NOTHING and calls):
                continue
            text = form.render(chat, tools=tools)
            where = f"{path.name}, {name}"
            assert chat[-1]["content"].strip() in text, where
            if name in ("thinking apart from the call", "the user after a result"):
                assert "tool_calls" not in form.template or "Paris" in text, where
            rendered += 1
    assert rendered > 390


def test_a_lone_system_text_becomes_a_user_message_without_a_system_role(test_data: Path) -> None:
    text = form_of(test_data, "google-gemma-2-2b-it").render([SYSTEM])
    assert text == "<s><start_of_turn>user\nBe terse.<end_of_turn>\n<start_of_turn>model\n"


def test_text_before_a_call_is_kept_with_the_thinking(test_data: Path) -> None:
    text = form_of(test_data, "openai-gpt-oss-120b").render(SENT_BACK["all at once"][:3], tools=TOOLS)
    assert "<|channel|>analysis<|message|>Hm.\n\nI look.<|end|>" in text
    assert '<|message|>{"city": "Paris"}<|call|>' in text


@pytest.mark.parametrize("name", ["all at once", "calls in two answers"])
def test_a_template_may_change_its_own_lists(test_data: Path, name: str) -> None:
    text = (test_data / "templates" / "Kimi-K2-Instruct.jinja").read_text()
    environment = jinja2.sandbox.SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value, **more: json.dumps(value, ensure_ascii=False, **more)
    form = JinjaFormat(text, TOKENS)
    values = {
        "messages": form.wording.chat(as_messages(SENT_BACK[name])),
        "tools": TOOLS,
        "add_generation_prompt": True,
    }
    assert JinjaFormat(text, TOKENS).render(SENT_BACK[name], tools=TOOLS) == environment.from_string(
        text
    ).render(values)


def test_an_error_names_the_message_that_causes_it(test_data: Path) -> None:
    form = form_of(test_data, "MiniMax-M2")
    with pytest.raises(
        TemplateRefusalError, match=r"no previous assistant .* message 4 of the chat, role 'tool'"
    ) as told:
        form.render([SYSTEM, USER, said("Yes."), RESULT, USER])
    assert told.value.status == 400
    form = JinjaFormat("{% for m in messages %}{{ m.tool_calls[0].id if m.role == 'assistant' }}{% endfor %}")
    with pytest.raises(TemplateRenderError, match=r"has no attribute 'tool_calls' .*message 2 of") as failed:
        form.render([USER, said("Yes."), USER])
    assert failed.value.status == 400


def test_a_go_template_that_fails_is_an_error_of_the_conversation() -> None:
    with pytest.raises(TemplateRenderError) as failed:
        GoFormat("{{ range .Messages }}{{ slice .Content 5 }}{{ end }}").render(
            [{"role": "user", "content": "a"}]
        )
    assert failed.value.status == 400
