"""Chats through Ollama's template layers. Expected prompts follow Ollama's documented rules."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest

from puna.chat.templates.go_chat import GoFormat
from puna.chat.templates.messages import Think
from puna.errors import NotSupportedError, RequestError, TemplateError
from tests.chat.templates.conversations import TOOLS

Chat = list[dict[str, Any]]

CHATML_TURNS = """{{ if .System }}<|im_start|>system
{{ .System }}<|im_end|>
{{ end }}{{ if .Prompt }}<|im_start|>user
{{ .Prompt }}<|im_end|>
{{ end }}<|im_start|>assistant
{{ .Response }}<|im_end|>
"""
CHATML_MESSAGES = """{{- range $i, $_ := .Messages }}<|im_start|>{{ .Role }}
{{ .Content }}<|im_end|>
{{ end }}<|im_start|>assistant
"""


def chat(*turns: str) -> Chat:
    """Make messages from `"u: text"`, with s, u, a and t for the roles."""
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": roles[turn[0]], "content": turn[3:]} for turn in turns]


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (
            chat("s: You are a wizard.", "u: Hello!", "a: Hi", "u: Bye"),
            "System: You are a wizard. User: Hello! Assistant: Hi User: Bye ",
        ),
        (chat("u: a", "s: b", "u: c"), "User: a System: b User: c "),
        (chat("u: a", "a: b", "s: c", "u: d"), "User: a Assistant: b System: c User: d "),
        (chat("u: a", "t: b"), "User: a "),  # the template has no place for a result
    ],
)
def test_a_template_without_messages_is_run_turn_by_turn(messages: Chat, text: str) -> None:
    template = (
        "{{ if .System }}System: {{ .System }} {{ end }}{{ if .Prompt }}User: {{ .Prompt }} {{ end }}"
        "{{ if .Response }}Assistant: {{ .Response }} {{ end }}"
    )
    assert GoFormat(template).render(messages) == text


@pytest.mark.parametrize("template", [CHATML_TURNS, CHATML_MESSAGES])
def test_both_ways_of_writing_chatml_give_the_same_prompt(template: str) -> None:
    text = GoFormat(template).render(chat("s: Be nice.", "u: Hello", "a: Hi", "u: Name?"))
    assert text == (
        "<|im_start|>system\nBe nice.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\nHi<|im_end|>\n<|im_start|>user\nName?<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    "template", ["[INST] {{ .Prompt }}[/INST] ", "[INST] {{ .Prompt }}[/INST] {{ .Response }}</s>"]
)
def test_a_last_assistant_message_is_continued(template: str) -> None:
    text = GoFormat(template).render(chat("u: Hello", "a: My name is"))
    assert text == "[INST] Hello[/INST] My name is"


def test_output_ends_where_the_response_is_printed_not_where_it_is_tested() -> None:
    template = "{{ if .Response }}R{{ else }}-{{ end }}{{ if true }}{{ .Response }}x{{ else }}y{{ end }}z"
    assert GoFormat(template).render(chat("u: q")) == "-"
    assert GoFormat(template).render(chat("u: q", "a: r", "u: s")) == "Rrxz-"


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (chat("u: a", "u: b"), "{user:a\n\nb}"),
        (chat("s: a", "s: b", "u: c"), "{system:a\n\nb}{user:c}"),
        (chat("u: a", "t: b", "t: c", "u: d"), "{user:a}{tool:b}{tool:c}{user:d}"),
        ([], ""),
    ],
)
def test_neighbours_of_one_role_are_merged(messages: Chat, text: str) -> None:
    assert (
        GoFormat("{{ range .Messages }}{{ `{` }}{{ .Role }}:{{ .Content }}}{{ end }}").render(messages)
        == text
    )


def test_all_system_texts_are_joined_in_system() -> None:
    form = GoFormat("{{ .System }}|{{ range .Messages }}{{ .Role }} {{ end }}")
    assert form.render(chat("s: a", "u: b", "s: c")) == "a\n\nc|system user system "


def test_tools_and_calls_print_as_json() -> None:
    form = GoFormat(
        "{{ .Tools }}\n{{ range .Tools }}{{ . }}\n{{ .Function }}\n{{ json .Function.Parameters }}\n{{ end }}"
        "{{ range .Messages }}{{ range .ToolCalls }}{{ .ID }} {{ .Function.Name }} {{ .Function.Arguments }} "
        "{{ json . }}{{ end }}{{ if .ToolName }}{{ .ToolName }}/{{ .ToolCallID }}{{ end }}{{ end }}"
    )
    call = {"id": "c1", "function": {"name": "f", "arguments": {"z": 1, "a": "<x>"}}}
    answer = {"role": "tool", "content": "r", "tool_name": "f", "tool_call_id": "c1"}
    messages = [{"role": "assistant", "content": "", "tool_calls": [call]}, answer]
    text = form.render(messages, tools=TOOLS)
    properties = (
        '{"city":{"type":"string","description":"the city \\u003cname\\u003e"},'
        '"days":{"type":"integer","description":"how many","enum":[1,2]}}'
    )
    parameters = f'{{"type":"object","required":["city"],"properties":{properties}}}'
    function = f'{{"name":"get_weather","description":"Weather of a city","parameters":{parameters}}}'
    tool = f'{{"type":"function","function":{function}}}'
    arguments = '{"a":"\\u003cx\\u003e","z":1}'
    call_json = f'{{"id":"c1","function":{{"index":0,"name":"f","arguments":{arguments}}}}}'
    assert text == f"[{tool}]\n{tool}\n{function}\n{parameters}\nc1 f {arguments} {call_json}f/c1"
    assert json.loads(tool)["function"]["name"] == "get_weather"


def test_properties_of_tools_are_iterated_in_sorted_order() -> None:
    form = GoFormat(
        "{{ range .Tools }}{{ range $n, $p := .Function.Parameters.Properties }}{{ $n }}:{{ $p.Type }}:"
        "{{ toTypeScriptType $p }}:{{ $p.Description }};{{ end }}{{ .Function.Parameters.Required }}{{ end }}"
        "{{ range .Messages }}{{ end }}"
    )
    schema = {
        "z": {"type": "array", "items": {"type": "string"}},
        "a": {"type": ["string", "null"], "description": "d", "default": 1},
        "m": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]},
        "o": {"type": "object"},
        "u": {},
    }
    tool = {
        "type": "function",
        "function": {"name": "f", "parameters": {"properties": schema, "required": ["z"]}},
    }
    assert form.render(chat("u: x"), tools=[tool]) == (
        "a:[string null]:string | null:d;m::number | boolean:;o:object:Record<string, any>:;"
        "u::any:;z:array:string[]:;[z]"
    )


@pytest.mark.parametrize(
    ("think", "text"),
    [(None, "false  false"), (False, "false  true"), (True, "true medium true"), ("high", "true high true")],
)
@pytest.mark.parametrize("extra", ["", "{{ range .Messages }}{{ end }}"])
def test_thinking_switches_reach_the_template(think: Think, text: str, extra: str) -> None:
    form = GoFormat("{{ .Think }} {{ .ThinkLevel }} {{ .IsThinkSet }}{{ .Response }}" + extra)
    assert form.render(chat("u: x"), think=think) == text


def test_a_suffix_makes_a_prompt_for_the_text_in_between() -> None:
    form = GoFormat(
        "{{- if .Suffix }}<PRE> {{ .Prompt }} <SUF>{{ .Suffix }} <MID>{{ else }}{{ .Prompt }}{{ end }}"
    )
    assert form.render_insert("def add(", "return x") == "<PRE> def add( <SUF>return x <MID>"
    assert form.render(chat("u: hello")) == "hello"
    with pytest.raises(NotSupportedError, match="does not support insert"):
        GoFormat("{{ .Prompt }}").render_insert("a", "b")


def test_dates_are_local_days() -> None:
    form = GoFormat("{{ currentDate }} {{ yesterdayDate `x` }}{{ range .Messages }}{{ end }}")
    today, yesterday = form.render(chat("u: x")).split()
    assert datetime.date.fromisoformat(today) - datetime.date.fromisoformat(yesterday) == datetime.timedelta(
        1
    )


@pytest.mark.parametrize(
    ("template", "tags"),
    [
        (
            "{{ range .Messages }}{{ if and .Thinking (eq .Role `a`) }}<think>\n{{ .Thinking }}</think>\n"
            "{{ end }}{{ .Content }}{{ end }}",
            ("<think>", "</think>"),
        ),
        (
            "{{- range $i, $m := .Messages }}x"
            "{{ if $m.Thinking -}} [T] {{ $m.Thinking }} [/T]{{ end }}y{{ end }}",
            ("[T]", "[/T]"),
        ),
        ("{{ range .Messages }}{{ if .Thinking }}{{ .Thinking }}{{ end }}{{ end }}", None),
        ("{{ range .Other }}{{ if .Thinking }}<t>{{ .Thinking }}</t>{{ end }}{{ end }}", None),
        ("{{ range .Messages }}{{ .Content }}{{ end }}", None),
    ],
)
def test_thinking_tags_are_found_in_the_template(template: str, tags: tuple[str, str] | None) -> None:
    found = GoFormat(template).traits.thinking_tags
    assert (found and (found.opening, found.closing)) == tags


def test_an_unknown_field_of_a_message_is_an_error() -> None:
    with pytest.raises(
        TemplateError, match=r"line 1, column 25: can't evaluate field Name in type api\.Message"
    ):
        GoFormat("{{ range .Messages }}{{ .Name }}{{ end }}").render(chat("u: x"))


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [1]},
        {"role": 3, "content": "x"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]},
        "text",
    ],
)
def test_a_malformed_message_is_the_callers_mistake(message: Any) -> None:
    with pytest.raises(RequestError):
        GoFormat("{{ range .Messages }}{{ end }}").render([message])


def test_calls_without_an_index_are_numbered() -> None:
    calls = [{"function": {"name": name, "arguments": {}}} for name in "ab"]
    each = "{{ range .ToolCalls }}{{ .Function.Index }}{{ .Function.Name }} {{ end }}"
    form = GoFormat("{{ range .Messages }}" + each + "{{ end }}")
    assert form.render([{"role": "assistant", "content": "", "tool_calls": calls}]) == "0a 1b "
    calls[0]["function"]["index"] = 7
    assert form.render([{"role": "assistant", "content": "", "tool_calls": calls}]) == "7a 1b "


def test_merging_keeps_calls_and_thinking() -> None:
    form = GoFormat(
        "{{ range .Messages }}{{ .Thinking }}|{{ range .ToolCalls }}{{ .Function.Name }}{{ end }}{{ end }}"
    )
    calls = [{"function": {"name": "f"}}]
    messages = [
        {"role": "assistant", "content": "a", "thinking": "t"},
        {"role": "assistant", "content": None, "thinking": "u", "tool_calls": calls},
    ]
    assert form.render(messages) == "t\n\nu|f"


def test_a_template_with_tools_thinking_and_last_turn_logic_is_rendered() -> None:
    template = """
{{- $lastUser := -1 -}}
{{- range $i, $m := .Messages -}}
{{- if eq $m.Role "user" }}{{ $lastUser = $i }}{{ end -}}
{{- end }}
{{- if or .System .Tools }}<|im_start|>system
{{ if .System }}{{ .System }}{{ end }}
{{- if .Tools }}
# Tools
{{- range .Tools }}
{"type": "function", "function": {{ .Function }}}
{{- end }}
{{- end }}<|im_end|>
{{ end }}
{{- range $i, $_ := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 -}}
{{- if eq .Role "user" }}<|im_start|>user
{{ .Content }}<|im_end|>
{{ else if eq .Role "assistant" }}<|im_start|>assistant
{{ if and .Thinking (or $last (gt $i $lastUser)) -}}
<think>{{ .Thinking }}</think>
{{ end -}}
{{ if .Content }}{{ .Content }}{{ end }}
{{- range .ToolCalls }}
<tool_call>{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}</tool_call>
{{- end }}{{ if not $last }}<|im_end|>
{{ end }}
{{- else if eq .Role "tool" }}<|im_start|>user
<tool_response>{{ .Content }}</tool_response><|im_end|>
{{ end }}
{{- if and (ne .Role "assistant") $last }}<|im_start|>assistant
{{ if and $.IsThinkSet (not $.Think) -}}
<think></think>
{{ end -}}
{{ end }}
{{- end }}"""
    form = GoFormat(template)
    tags = form.traits.thinking_tags
    assert tags is not None
    assert (tags.opening, tags.closing) == ("<think>", "</think>")
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    call = {"function": {"name": "f", "arguments": {}}}
    messages = [
        *chat("s: Be nice.", "u: q"),
        {"role": "assistant", "content": "old", "thinking": "forgotten"},
        *chat("u: r"),
        {"role": "assistant", "content": "", "thinking": "kept", "tool_calls": [call]},
        *chat("t: 42"),
    ]
    assert form.render(messages, tools=[tool], think=False) == (
        "<|im_start|>system\nBe nice.\n# Tools\n"
        '{"type": "function", "function": {"name":"f","parameters":{"type":"object","properties":{}}}}'
        "<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nold<|im_end|>\n"
        "<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n<think>kept</think>\n\n"
        '<tool_call>{"name": "f", "arguments": {}}</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>42</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think></think>\n"
    )


@pytest.mark.parametrize(
    "tool",
    [
        {"function": 1},
        {"function": {"parameters": "none"}},
        {"function": {"parameters": {"required": 5}}},
        {"function": {"parameters": {"properties": {"x": {"anyOf": 1}}}}},
    ],
)
def test_a_malformed_tool_is_the_requests_mistake(tool: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"tools\[1\] is malformed: "):
        GoFormat("{{ .Tools }}{{ .Messages }}").render(chat("u: x"), tools=[TOOLS[0], tool])
