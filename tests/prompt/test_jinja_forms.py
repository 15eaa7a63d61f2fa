"""Chats in the forms that templates take, where they refuse the usual one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from puna.errors import TemplateError
from puna.prompt.format import SpecialTokens
from puna.prompt.jinja_chat import JinjaFormat
from puna.prompt.jinja_forms import simple_tool
from tests.prompt.conversations import TOOLS, USER

TOKENS = SpecialTokens({"bos_token": "<s>", "eos_token": "</s>"})

#: Templates that fail in transformers, too, whatever the tools.
BROKEN = ("MiroThinker", "llama-cpp-deepseek-r1")

#: What parameters of functions have for a type, beside what templates expect.
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
def test_templates_that_name_types_take_those_they_do_not_know(test_data: Path, name: str) -> None:
    form = form_of(test_data, name)
    odd = [{"type": kind, "description": "x"} for kind in ODD_TYPES]
    nested = [{"type": "array", "items": one} for one in odd] + [{}, {"type": "array"}, {"enum": [1, None]}]
    nested += [{"type": "object", "properties": {"inner": one}} for one in odd]
    for parameter in odd + nested:
        text = form.render([USER], tools=[tool(place=parameter)])
        assert "look" in text, parameter
        assert "place" in text, parameter


@pytest.mark.parametrize(
    "bare", [{"name": "look"}, {"name": "look", "parameters": {}}, {"name": "look", "description": "d"}]
)
def test_a_function_need_not_say_more_than_its_name(test_data: Path, bare: dict[str, Any]) -> None:
    for path in sorted((test_data / "templates").glob("*.jinja")):
        form = form_of(test_data, path.stem)
        if form.traits.takes_tools and path.stem not in BROKEN:
            assert "look" in form.render([USER], tools=[{"type": "function", "function": bare}]), path.name


def test_what_a_template_knows_is_left_as_it_is(test_data: Path) -> None:
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


def test_the_first_refusal_is_what_is_told() -> None:
    with pytest.raises(TemplateError, match="no tools today"):
        JinjaFormat("{% if tools %}{{ raise_exception('no tools today') }}{% endif %}").render(
            [USER], tools=[tool(place={"type": "null"})]
        )
