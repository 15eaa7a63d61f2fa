"""Ollama's own client."""

from typing import Any

import ollama
from asked import ASKED, EMBEDDER, MODEL, URL, Trip, errors, get_weather, report

client = ollama.Client(host=URL)


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def chat() -> Any:
    return client.chat(MODEL, user(ASKED["chat"])).message.content


def stream() -> Any:
    return [part.message.content for part in client.chat(MODEL, user(ASKED["chat"]), stream=True)]


def schema() -> Any:
    answer = client.chat(MODEL, user(ASKED["schema_question"]), format=Trip.model_json_schema())
    return Trip.model_validate_json(answer.message.content or "").model_dump()


def tools() -> Any:
    messages = user(ASKED["tool_question"])
    answer = client.chat(MODEL, messages, tools=[get_weather])
    messages.append(answer.message)
    calls = []
    for call in answer.message.tool_calls or []:
        calls.append([call.function.name, call.function.arguments])
        result = get_weather(**call.function.arguments)
        messages.append({"role": "tool", "tool_name": call.function.name, "content": result})
    return {"calls": calls, "answer": client.chat(MODEL, messages, tools=[get_weather]).message.content}


def embeddings() -> Any:
    return client.embed(EMBEDDER, ASKED["texts"]).embeddings


report(
    chat=chat,
    stream=stream,
    schema=schema,
    tools=tools,
    embeddings=embeddings,
    errors=lambda: errors(lambda model: client.chat(model, user("Hello"))),
)
