"""Tools through the clients of every API: calls, their results, and what only looks like a call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai
import pytest

from tests.e2e.servers import Server, add_model, scripted
from tests.scripted import pieces_of, random_sizes, trigger, write_scripted

pytestmark = pytest.mark.e2e

TEMPLATE = """\
{% if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call a tool as <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}\
{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

GREEDY = {"temperature": 0}
FIRST = {"city": "Zürich", "days": 2}
SECOND = {"days": 1.0, "city": "Lima"}


def call(arguments: dict[str, Any], name: str = "get_weather") -> str:
    written = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"


BROKEN = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Par'
SCRIPTS = [
    f"<think>\nLet me look.\n</think>\n\nI look.\n{call(FIRST)}\n{call(SECOND)}",
    "It is sunny.",
    BROKEN,
    call(FIRST),
]
#: Which of them is said: the first unless a message says otherwise.
ANSWER, BREAK, ONE = trigger(1), trigger(2), trigger(3)

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "number"}},
    "required": ["city"],
}
FUNCTION = {"name": "get_weather", "description": "Weather of a city", "parameters": SCHEMA}
TOOLS: list[Any] = [{"type": "function", "function": FUNCTION}]
FLAT: list[Any] = [{"type": "function", "strict": False, **FUNCTION}]
ANTHROPIC: list[Any] = [{"name": "get_weather", "description": "Weather", "input_schema": SCHEMA}]


@pytest.fixture(scope="module")
def server(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with scripted(server, "scripted", tmp_path_factory.mktemp("scripted"), SCRIPTS, TEMPLATE):
        yield server


@pytest.fixture(scope="module")
def chat(server: Server) -> Any:
    client = openai.OpenAI(base_url=server.url + "/v1/", api_key="unused", max_retries=0, timeout=120)

    def create(content: str | list[Any] = "weather?", **more: Any) -> Any:
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        return client.chat.completions.create(
            **{"model": "scripted", "messages": messages, "tools": TOOLS, "temperature": 0, **more}
        )

    return create


@pytest.fixture(scope="module")
def responses(server: Server) -> Any:
    client = openai.OpenAI(base_url=server.url + "/v1/", api_key="unused", max_retries=0, timeout=120)

    def create(given: Any, *, stream: bool = False, **more: Any) -> Any:
        act = client.responses.stream if stream else client.responses.create
        return act(model="scripted", input=given, tools=FLAT, temperature=0, **more)  # type: ignore[operator]

    return create


@pytest.fixture(scope="module")
def messages(server: Server) -> Any:
    client = anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0, timeout=120)

    def create(given: list[Any], *, stream: bool = False, **more: Any) -> Any:
        act = client.messages.stream if stream else client.messages.create
        fields = {"model": "scripted", "max_tokens": 400, "tools": ANTHROPIC, "extra_body": GREEDY, **more}
        return act(messages=given, **fields)  # type: ignore[operator]

    return create


def user(content: str = "weather?") -> Any:
    return [{"role": "user", "content": content}]


def ordered(arguments: Any) -> str:
    """Arguments in a form that tells the order of their keys and the kinds of their numbers."""
    return json.dumps(json.loads(arguments) if isinstance(arguments, str) else arguments, ensure_ascii=False)


CALLED = [("get_weather", ordered(FIRST)), ("get_weather", ordered(SECOND))]


# --- Ollama's API ---


def native(server: Server, content: str = "weather?", **more: Any) -> ollama.ChatResponse:
    options = {"temperature": 0, **more.pop("options", {})}
    return server.client.chat("scripted", user(content), tools=TOOLS, options=options, **more)


def native_calls(message: ollama.Message) -> list[tuple[str, str]]:
    return [(one.function.name, ordered(one.function.arguments)) for one in message.tool_calls or []]


def test_ollamas_client_is_told_of_whole_calls(server: Server) -> None:
    answer = native(server)
    assert (answer.message.thinking, answer.message.content) == ("Let me look.\n", "I look.")
    assert native_calls(answer.message) == CALLED
    assert answer.done_reason == "stop"
    parts = list(server.client.chat("scripted", user(), tools=TOOLS, options=GREEDY, stream=True))
    assert [one for part in parts for one in native_calls(part.message)] == CALLED
    assert "".join(part.message.content or "" for part in parts) == "I look."
    assert "".join(part.message.thinking or "" for part in parts) == "Let me look.\n"
    body = {"model": "scripted", "messages": user(), "tools": TOOLS, "stream": False, "options": GREEDY}
    raw = server.http.post("/api/chat", json=body).json()["message"]["tool_calls"]
    assert [one["function"]["index"] for one in raw] == [0, 1]
    assert len({one["id"] for one in raw}) == 2
    assert all(one["id"].startswith("call_") for one in raw)


def test_a_parser_that_the_author_names_decides_what_a_call_is(server: Server) -> None:
    body = {"model": "unread", "from": "scripted", "parser": "ministral", "stream": False}
    assert server.http.post("/api/create", json=body).json() == {"status": "success"}
    answer = server.client.chat("unread", user(ONE), tools=TOOLS, options=GREEDY)
    assert (answer.message.content, answer.message.tool_calls) == (call(FIRST), None)
    server.client.delete("unread")


def test_ollamas_client_sends_results_back(server: Server) -> None:
    asked: list[Any] = user()
    answer = server.client.chat("scripted", asked, tools=TOOLS, options=GREEDY)
    asked += [answer.message, {"role": "tool", "content": f"sunny {ANSWER}", "tool_name": "get_weather"}]
    assert (
        server.client.chat("scripted", asked, tools=TOOLS, options=GREEDY).message.content == "It is sunny."
    )


# --- OpenAI's chats ---


def chat_calls(message: Any) -> list[tuple[str, str]]:
    return [(one.function.name, ordered(one.function.arguments)) for one in message.tool_calls or []]


def test_openais_chats_have_calls_with_their_arguments_as_text(chat: Any) -> None:
    (choice,) = chat().choices
    assert chat_calls(choice.message) == CALLED
    assert (choice.message.content, choice.finish_reason) == ("I look.", "tool_calls")
    assert choice.message.reasoning == choice.message.reasoning_content == "Let me look.\n"
    assert {one.type for one in choice.message.tool_calls} == {"function"}
    assert len({one.id for one in choice.message.tool_calls}) == 2


def test_the_first_delta_of_a_call_has_its_name_and_the_others_its_arguments(chat: Any) -> None:
    found: dict[int, list[Any]] = {}
    reasons, text, thinking = [], "", ""
    for chunk in chat(stream=True):
        (choice,) = chunk.choices
        reasons.append(choice.finish_reason)
        text += choice.delta.content or ""
        thinking += getattr(choice.delta, "reasoning_content", "")
        for delta in choice.delta.tool_calls or []:
            found.setdefault(delta.index, []).append(delta)
    assert (text, thinking) == ("I look.", "Let me look.\n")
    assert list(found) == [0, 1]
    assert reasons[-1] == "tool_calls"
    assert set(reasons[:-1]) == {None}
    for (name, arguments), (first, *rest) in zip(CALLED, found.values(), strict=True):
        assert (first.type, first.function.name) == ("function", name)
        assert first.id
        assert [(one.id, one.type, one.function.name) for one in rest] == [(None, None, None)] * len(rest)
        assert ordered("".join(one.function.arguments for one in (first, *rest))) == arguments


def test_openais_chats_send_results_back(chat: Any) -> None:
    asked: list[Any] = user()
    (choice,) = chat(asked).choices
    asked.append(choice.message)
    asked += [
        {"role": "tool", "tool_call_id": one.id, "content": "sunny"} for one in choice.message.tool_calls
    ]
    asked[-1]["content"] += ANSWER
    (choice,) = chat(asked).choices
    assert (choice.message.content, choice.finish_reason) == ("It is sunny.", "stop")
    assert choice.message.tool_calls is None


def test_several_samples_call_each_for_itself(chat: Any) -> None:
    answer = chat(n=2)
    assert [chat_calls(choice.message) for choice in answer.choices] == [CALLED, CALLED]
    ids = [one.id for choice in answer.choices for one in choice.message.tool_calls]
    assert len(set(ids)) == 4


def test_functions_are_what_tools_were_before(chat: Any) -> None:
    (choice,) = chat(ONE, tools=openai.omit, functions=[FUNCTION]).choices
    assert choice.finish_reason == "function_call"
    assert choice.message.tool_calls is None
    assert ordered(choice.message.function_call.arguments) == ordered(FIRST)
    asked = [*user(), choice.message, {"role": "function", "name": "get_weather", "content": ANSWER}]
    (choice,) = chat(asked, tools=openai.omit, functions=[FUNCTION]).choices
    assert choice.message.content == "It is sunny."


# --- OpenAI's responses ---


def items_of(response: Any) -> list[Any]:
    return [item for item in response.output if item.type == "function_call"]


def item_calls(response: Any) -> list[tuple[str, str]]:
    return [(item.name, ordered(item.arguments)) for item in items_of(response)]


def test_responses_have_calls_as_items_and_go_on_with_their_outputs(responses: Any) -> None:
    answer = responses("weather?")
    assert [item.type for item in answer.output] == [
        "reasoning", "message", "function_call", "function_call",
    ]  # fmt: skip
    assert (answer.output_text, answer.status) == ("I look.", "completed")
    assert item_calls(answer) == CALLED
    outputs = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
        for item in items_of(answer)
    ]
    outputs[-1]["output"] = ANSWER
    done = responses(outputs, previous_response_id=answer.id)
    assert done.output_text == "It is sunny."
    by_hand = [*user(), *[item.model_dump() for item in answer.output], *outputs]
    assert responses(by_hand).output_text == "It is sunny."


def test_responses_stream_arguments(responses: Any) -> None:
    with responses("weather?", stream=True) as stream:
        events = list(stream)
        assert item_calls(stream.get_final_response()) == CALLED
    assert item_calls(events[-1].response) == CALLED
    deltas: dict[str, str] = {}
    for event in events:
        if event.type == "response.function_call_arguments.delta":
            deltas[event.item_id] = deltas.get(event.item_id, "") + event.delta
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert [(event.item_id, event.arguments) for event in done] == list(deltas.items())
    assert [ordered(text) for text in deltas.values()] == [arguments for _, arguments in CALLED]


# --- Anthropic's messages ---


def block_calls(message: Any) -> list[tuple[str, str]]:
    return [(one.name, ordered(one.input)) for one in message.content if one.type == "tool_use"]


def test_anthropics_messages_have_calls_as_blocks_and_take_their_results(messages: Any) -> None:
    answer = messages(user(), thinking={"type": "adaptive"})
    assert [one.type for one in answer.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert (answer.content[0].thinking, answer.content[1].text) == ("Let me look.\n", "I look.")
    assert block_calls(answer) == CALLED
    assert answer.stop_reason == "tool_use"
    results = [
        {"type": "tool_result", "tool_use_id": one.id, "content": f"sunny {ANSWER if last else ''}"}
        for last, one in enumerate(one for one in answer.content if one.type == "tool_use")
    ]
    asked = [*user(), {"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
    done = messages(asked)
    assert [one.text for one in done.content] == ["It is sunny."]
    assert done.stop_reason == "end_turn"


def test_anthropics_messages_stream_arguments(messages: Any) -> None:
    with messages(user(), stream=True) as stream:
        events = list(stream)
        final = stream.get_final_message()
    assert [one.type for one in final.content] == ["text", "tool_use", "tool_use"]
    assert block_calls(final) == CALLED
    assert final.stop_reason == "tool_use"
    begun = [event.content_block for event in events if event.type == "content_block_start"]
    assert [one.input for one in begun if one.type == "tool_use"] == [{}, {}]
    parts = [
        event for event in events
        if event.type == "content_block_delta" and event.delta.type == "input_json_delta"
    ]  # fmt: skip
    assert {part.index for part in parts} == {1, 2}


# --- what is no call ---


def test_a_call_that_breaks_off_comes_out_as_text(
    server: Server, chat: Any, responses: Any, messages: Any
) -> None:
    """By itself, before anything of it was told; `test_a_call_that_is_cut` is about the other case."""
    answer = native(server, BREAK)
    said = (answer.message.content or "") + "".join(
        name + text for name, text in native_calls(answer.message)
    )
    assert "get_weather" in said
    assert "Par" in said
    assert not answer.message.tool_calls
    (choice,) = chat(BREAK).choices
    assert "Par" in str(choice.message.content) + str(choice.message.tool_calls)
    response = responses(BREAK)
    assert "Par" in str(response.output)
    message = messages(user(BREAK))
    assert "Par" in str(message.content)
    assert message.stop_reason == "end_turn"


def test_a_call_that_is_cut_is_never_made(server: Server, chat: Any, messages: Any) -> None:
    whole = native(server, ONE)
    assert native_calls(whole.message) == CALLED[:1]
    counts = range(1, whole.eval_count or 0, 5)
    answers = [native(server, ONE, options={"num_predict": limit}) for limit in counts]
    found = [native_calls(answer.message) for answer in answers]
    without = found.count([])
    assert found == [[]] * without + [CALLED[:1]] * (
        len(found) - without
    )  # only the closing tag may be missing
    assert without > 3
    assert {answer.done_reason for answer in answers} == {"length"}
    limit = counts[without - 1]
    (choice,) = chat(ONE, max_tokens=limit).choices
    assert (choice.finish_reason, choice.message.tool_calls) == ("length", None)
    message = messages(user(ONE), max_tokens=limit)
    assert message.stop_reason == "max_tokens"
    assert [one.type for one in message.content] == ["text"]


def test_without_tools_markup_is_text(server: Server) -> None:
    answer = server.client.chat("scripted", user(ONE), options=GREEDY)
    assert answer.message.content == call(FIRST)
    assert not answer.message.tool_calls


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_that_must_be_is_one(chat: Any, choice: Any) -> None:
    """The model would rather say something else."""
    city = SCHEMA | {"properties": {"city": {"enum": ["Lima", "Rome"]}}, "additionalProperties": False}
    tools = [{"type": "function", "function": FUNCTION | {"parameters": city}}]
    more = {"tool_choice": choice, "parallel_tool_calls": False, "reasoning_effort": "none", "tools": tools}
    (found,) = chat(ANSWER, **more, max_tokens=400).choices
    ((name, arguments),) = chat_calls(found.message)
    assert name == "get_weather"
    assert json.loads(arguments)["city"] in ("Lima", "Rome")
    assert found.finish_reason == "tool_calls"


def test_a_request_without_parallel_calls_gets_the_first(
    server: Server, chat: Any, responses: Any, messages: Any
) -> None:
    """No grammar sees to it: the model says two calls, and its answer ends with the first."""
    assert chat_calls(chat().choices[0].message) == CALLED
    (found,) = chat(parallel_tool_calls=False).choices
    assert (chat_calls(found.message), found.finish_reason) == (CALLED[:1], "tool_calls")
    several = chat(parallel_tool_calls=False, n=2)
    assert [chat_calls(choice.message) for choice in several.choices] == [CALLED[:1]] * 2
    whole, first = (chat(**more).usage.completion_tokens for more in ({}, {"parallel_tool_calls": False}))
    assert first < whole
    response = responses("weather?", parallel_tool_calls=False)
    assert [item.name for item in response.output if item.type == "function_call"] == ["get_weather"]
    message = messages(user(), tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [part.name for part in message.content if part.type == "tool_use"] == ["get_weather"]
    assert message.stop_reason == "tool_use"


def test_none_is_called_when_none_may_be(chat: Any) -> None:
    (found,) = chat(ONE, tool_choice="none").choices
    assert not found.message.tool_calls
    assert found.finish_reason == "stop"


# --- templates ---


def test_a_model_without_a_template_chats_as_its_renderer_and_parser_say(
    server: Server, tmp_path: Path
) -> None:
    said = (
        "Let me see.</think>\n<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
    )
    path = write_scripted(tmp_path / "bare.gguf", [pieces_of(said, size=random_sizes(5))])
    add_model(server, "bare", path)
    names = {"model": "named", "from": "bare", "renderer": "qwen3.5", "parser": "qwen3.5"}
    assert server.http.post("/api/create", json={**names, "stream": False}).status_code == 200
    asked = {"model": "named", "messages": user(), "tools": TOOLS, "options": GREEDY, "stream": False}
    message = server.http.post("/api/chat", json=asked).json()["message"]
    assert (message["thinking"], message["content"]) == ("Let me see.", "")
    assert [ordered(one["function"]["arguments"]) for one in message["tool_calls"]] == [ordered(FIRST)]
    prompt = server.http.post("/api/chat", json={**asked, "_debug_render_only": True}).json()
    text = prompt["_debug_info"]["rendered_template"]
    assert text.startswith("<|im_start|>system\n# Tools\n")
    assert text.endswith("<|im_start|>assistant\n<think>\n")
    server.unload()
    for name in ("named", "bare"):
        server.client.delete(name)


def test_what_a_template_cannot_render_names_the_message_in_every_api(server: Server, tmp_path: Path) -> None:
    template = "{% for m in messages %}{% if m.role == 'tool' %}{{ m.nothing[0].id }}{% endif %}{% endfor %}"
    path = write_scripted(tmp_path / "narrow.gguf", [pieces_of("a")], template=template)
    add_model(server, "narrow", path)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chat: list[Any] = [*user(), {"role": "assistant", "tool_calls": [call]}]
    chat.append({"role": "tool", "tool_call_id": "c", "content": "x"})
    items = [*user(), {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]
    items.append({"type": "function_call_output", "call_id": "c", "output": "x"})
    blocks = [*user(), {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f"}]}]
    blocks.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "x"}]})
    for path_of, body in (
        ("/v1/chat/completions", {"messages": chat}),
        ("/v1/responses", {"input": items}),
        ("/v1/messages", {"messages": blocks, "max_tokens": 9}),
    ):
        for stream in (False, True):
            reply = server.http.post(path_of, json={"model": "narrow", "stream": stream, **body})
            assert reply.status_code == 400, reply.text
            told = reply.json()["error"]["message"]
            assert "has no attribute 'nothing' (about message 3 of the chat, role 'tool')" in told
    server.unload()
    server.client.delete("narrow")
