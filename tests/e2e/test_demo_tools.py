"""The bundled model calls tools, reports their results and fills small objects, through the APIs' clients."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pydantic
import pytest

from tests.e2e.servers import Server

pytestmark = pytest.mark.e2e

GREEDY = {"temperature": 0}


class Person(pydantic.BaseModel):
    name: str
    age: int


def get_weather(city: str) -> str:
    """Tell the weather in a city.

    Args:
        city: its name
    """
    return f"sunny, {len(city)} degrees"


def calculator(expression: str) -> str:
    """Calculate.

    Args:
        expression: numbers and an operation
    """
    left, operation, right = expression.split()
    return str({"+": int(left) + int(right), "*": int(left) * int(right)}[operation])


TOOLS = {function.__name__: function for function in (get_weather, calculator)}


def description_of(function: Any, parameters: str) -> dict[str, Any]:
    (name,) = list(function.__annotations__)[:1]
    properties = {name: {"type": "string", "description": f"of {function.__name__}"}}
    schema = {"type": "object", "properties": properties, "required": [name]}
    return {"name": function.__name__, "description": function.__doc__, parameters: schema}


FUNCTIONS: list[Any] = [
    {"type": "function", "function": description_of(function, "parameters")} for function in TOOLS.values()
]
ANTHROPIC: list[Any] = [description_of(function, "input_schema") for function in TOOLS.values()]

WEATHER = (
    "What is the weather in Paris?",
    [("get_weather", {"city": "Paris"})],
    "It is sunny in Paris, 5 degrees.",
)
TWO = (
    "What is the weather in Rome and Madrid?",
    [("get_weather", {"city": "Rome"}), ("get_weather", {"city": "Madrid"})],
    "It is sunny in Rome, 4 degrees. It is sunny in Madrid, 6 degrees.",
)
SUM = ("What is 1234 * 56?", [("calculator", {"expression": "1234 * 56"})], "1234 × 56 = 69104.")
FACT = ("What is the capital of France?", [], "The capital of France is Paris.")
QUESTIONS = pytest.mark.parametrize(
    ("question", "calls", "answer"), [WEATHER, TWO, SUM, FACT], ids=["weather", "two", "sum", "fact"]
)


@pytest.fixture(scope="module")
def chat(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1/", api_key="unused", max_retries=0)


@pytest.fixture(scope="module")
def messages(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0)


@QUESTIONS
def test_demo_calls_tools_through_ollamas_client(
    server: Server, question: str, calls: list[Any], answer: str
) -> None:
    talk: list[Any] = [{"role": "user", "content": question}]
    reply = server.client.chat("demo", talk, tools=list(TOOLS.values()), options=GREEDY).message
    called = [(call.function.name, call.function.arguments) for call in reply.tool_calls or []]
    assert called == calls
    if calls:
        talk.append(reply)
        talk += [
            {"role": "tool", "tool_name": name, "content": TOOLS[name](**given)} for name, given in called
        ]
        reply = server.client.chat("demo", talk, tools=list(TOOLS.values()), options=GREEDY).message
    assert (reply.content, reply.tool_calls) == (answer, None)


@QUESTIONS
def test_demo_calls_tools_through_openais_client(
    chat: openai.OpenAI, question: str, calls: list[Any], answer: str
) -> None:
    def ask() -> Any:
        given: Any = {"model": "demo", "messages": talk, "tools": FUNCTIONS, "temperature": 0}
        return chat.chat.completions.create(**given).choices[0]

    talk: list[Any] = [{"role": "user", "content": question}]
    reply = ask()
    called = [(c.function.name, json.loads(c.function.arguments)) for c in reply.message.tool_calls or []]
    assert called == calls
    assert reply.finish_reason == ("tool_calls" if calls else "stop")
    if calls:
        talk.append(reply.message)
        talk += [
            {"role": "tool", "tool_call_id": call.id, "content": TOOLS[name](**given)}
            for call, (name, given) in zip(reply.message.tool_calls, called, strict=True)
        ]
        reply = ask()
    assert (reply.message.content, reply.finish_reason) == (answer, "stop")


@QUESTIONS
def test_demo_calls_tools_through_anthropics_client(
    messages: anthropic.Anthropic, question: str, calls: list[Any], answer: str
) -> None:
    def ask() -> anthropic.types.Message:
        with messages.messages.stream(
            model="demo", max_tokens=200, messages=talk, tools=ANTHROPIC, extra_body=GREEDY
        ) as stream:
            return stream.get_final_message()

    talk: list[Any] = [{"role": "user", "content": question}]
    reply = ask()
    used = [block for block in reply.content if block.type == "tool_use"]
    assert [(block.name, block.input) for block in used] == calls
    if calls:
        assert reply.stop_reason == "tool_use"
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": TOOLS[block.name](**block.input)}
            for block in used
        ]
        talk += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": results}]
        reply = ask()
    assert [(block.type, getattr(block, "text", "")) for block in reply.content] == [("text", answer)]


def test_demo_fills_a_schema(server: Server, chat: openai.OpenAI) -> None:
    talk: list[Any] = [{"role": "user", "content": "Anna is 7 years old."}]
    reply = server.client.chat("demo", talk, format=Person.model_json_schema(), options=GREEDY)
    assert Person.model_validate_json(reply.message.content or "") == Person(name="Anna", age=7)
    parsed = chat.chat.completions.parse(model="demo", messages=talk, response_format=Person, temperature=0)
    assert parsed.choices[0].message.parsed == Person(name="Anna", age=7)


def test_demo_passes_values_from_a_sentence_to_a_tool(
    chat: openai.OpenAI, messages: anthropic.Anthropic
) -> None:
    schema = Person.model_json_schema()
    talk: list[Any] = [{"role": "user", "content": "My name is Tom and I am 41 years old."}]
    reply = chat.chat.completions.create(
        model="demo",
        messages=talk,
        tools=[{"type": "function", "function": {"name": "Person", "parameters": schema}}],
        tool_choice="required",
        temperature=0,
    )
    (call,) = reply.choices[0].message.tool_calls or []
    assert isinstance(call, openai.types.chat.ChatCompletionMessageFunctionToolCall)
    assert Person.model_validate_json(call.function.arguments) == Person(name="Tom", age=41)
    tool: Any = {"name": "Person", "input_schema": schema}
    choice: Any = {"type": "tool", "name": "Person"}
    answer = messages.messages.create(
        model="demo", max_tokens=200, messages=talk, tools=[tool], tool_choice=choice, extra_body=GREEDY
    )
    (block,) = answer.content
    assert block.type == "tool_use"
    assert Person.model_validate(block.input) == Person(name="Tom", age=41)


def test_demo_lists_tools_among_its_capabilities(server: Server) -> None:
    assert "tools" in (server.client.show("demo").capabilities or [])
