"""LiteLLM, with its providers ollama_chat, openai and anthropic."""

import json
from typing import Any

import litellm
from asked import ASKED, EMBEDDER, MODEL, URL, WAY, Trip, errors, get_weather, report

BASE = f"{URL}/v1" if WAY == "openai" else URL
PROVIDER = {"ollama": "ollama_chat"}.get(WAY, WAY)
FUNCTION = {"type": "function", "function": ASKED["tool"]}
litellm.suppress_debug_info = True


def ask(text: Any, model: str = MODEL, **more: Any) -> Any:
    messages = text if isinstance(text, list) else [{"role": "user", "content": text}]
    return litellm.completion(
        model=f"{PROVIDER}/{model}", api_base=BASE, api_key="any", messages=messages, max_tokens=400, **more
    )


def schema() -> Any:
    answer = ask(ASKED["schema_question"], response_format=Trip)
    return Trip.model_validate_json(answer.choices[0].message.content).model_dump()


def tools() -> Any:
    answer = ask(ASKED["tool_question"], tools=[FUNCTION])
    messages = [{"role": "user", "content": ASKED["tool_question"]}, answer.choices[0].message]
    calls = []
    for call in answer.choices[0].message.tool_calls or []:
        arguments = json.loads(call.function.arguments)
        calls.append([call.function.name, arguments])
        messages.append({"role": "tool", "tool_call_id": call.id, "content": get_weather(**arguments)})
    done = ask(messages, tools=[FUNCTION])
    return {"calls": calls, "answer": done.choices[0].message.content}


def embeddings() -> Any:
    provider = {"ollama": "ollama"}.get(WAY, WAY)
    got = litellm.embedding(
        model=f"{provider}/{EMBEDDER}", api_base=BASE, api_key="any", input=ASKED["texts"]
    )
    return [item["embedding"] for item in got.data]


columns = {
    "chat": lambda: ask(ASKED["chat"]).choices[0].message.content,
    "stream": lambda: [part.choices[0].delta.content for part in ask(ASKED["chat"], stream=True)],
    "schema": schema,
    "tools": tools,
    "errors": lambda: errors(lambda model: ask("Hello", model)),
}
report(**columns, **({} if WAY == "anthropic" else {"embeddings": embeddings}))
