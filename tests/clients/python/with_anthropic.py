"""Anthropic's own client."""

from typing import Any

import anthropic
from asked import ASKED, MODEL, URL, Trip, errors, get_weather, report

client = anthropic.Anthropic(base_url=URL, api_key="any")
TOOL = {
    "name": ASKED["tool"]["name"],
    "description": ASKED["tool"]["description"],
    "input_schema": ASKED["tool"]["parameters"],
}


def ask(text: Any, model: str = MODEL, **more: Any) -> Any:
    messages = text if isinstance(text, list) else [{"role": "user", "content": text}]
    return client.messages.create(model=model, max_tokens=400, messages=messages, **more)


def chat() -> Any:
    return ask(ASKED["chat"]).content[0].text


def stream() -> Any:
    messages = [{"role": "user", "content": ASKED["chat"]}]
    with client.messages.stream(model=MODEL, max_tokens=400, messages=messages) as events:
        return list(events.text_stream)


def schema() -> Any:
    format = {"type": "json_schema", "schema": ASKED["schema"]}
    answer = ask(ASKED["schema_question"], output_config={"format": format})
    return Trip.model_validate_json(answer.content[0].text).model_dump()


def tools() -> Any:
    answer = ask(ASKED["tool_question"], tools=[TOOL])
    calls, results = [], []
    for block in answer.content:
        if block.type == "tool_use":
            calls.append([block.name, block.input])
            result = get_weather(**block.input)
            results.append({"type": "tool_result", "tool_use_id": block.id, "content": result})
    messages = [
        {"role": "user", "content": ASKED["tool_question"]},
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": results},
    ]
    return {"calls": calls, "answer": ask(messages, tools=[TOOL]).content[0].text}


report(
    chat=chat,
    stream=stream,
    schema=schema,
    tools=tools,
    errors=lambda: errors(lambda model: ask("Hello", model)),
)
