"""Replayed requests of Open WebUI's backend to an Ollama server or an OpenAI-compatible one.

The requests, and the way replies are read, follow its routers `ollama` and `openai` and its retrieval. The
program itself is a web application and is not started.
"""

import asyncio
import json
import re
from datetime import datetime
from typing import Any

import aiohttp
from asked import ASKED, EMBEDDER, MODEL, UNKNOWN, URL, WAY, get_weather, report

OLLAMA = WAY == "ollama"
HEADERS = {
    "Content-Type": "application/json",
    "Authorization": "Bearer any",
    "X-OpenWebUI-User-Name": "A User",
    "X-OpenWebUI-User-Id": "8c1d7e1e",
    "X-OpenWebUI-User-Email": "user@example.org",
    "X-OpenWebUI-User-Role": "admin",
    "X-OpenWebUI-Chat-Id": "5f0c",
}
FUNCTION = {"type": "function", "function": ASKED["tool"]}
#: A model's parameters, as Open WebUI passes them to each API.
SETTINGS: dict[str, Any] = (
    {"options": {"temperature": 0, "num_ctx": 8192, "stop": ["<|never|>"]}, "keep_alive": "5m"}
    if OLLAMA
    else {"temperature": 0, "stop": ["<|never|>"], "user": "8c1d7e1e"}
)


class RefusedError(Exception):
    """An error as shown to the user: the status, and `error` of the reply."""


async def request(method: str, path: str, body: Any = None) -> Any:
    async with aiohttp.ClientSession(trust_env=True) as session:
        data = None if body is None else json.dumps(body)
        async with session.request(method, URL + path, data=data, headers=HEADERS) as answer:
            if not answer.ok:
                raise RefusedError(f"{answer.status}: {(await answer.json())['error']}")
            return await answer.json()


async def streamed(path: str, body: Any) -> list[dict[str, Any]]:
    """Return the parts of a stream: JSON lines, or events up to `[DONE]`."""
    parts = []
    async with (
        aiohttp.ClientSession(trust_env=True) as session,
        session.post(URL + path, data=json.dumps(body), headers=HEADERS) as answer,
    ):
        kind = "application/x-ndjson" if OLLAMA else "text/event-stream"
        assert kind in answer.headers["Content-Type"]
        async for line in answer.content:
            text = line.decode().strip()
            if not OLLAMA:
                text = text.removeprefix("data:").strip()
            if text and text != "[DONE]":
                parts.append(json.loads(text))
    return parts


def get(path: str) -> Any:
    return asyncio.run(request("GET", path))


def post(path: str, body: Any) -> Any:
    return asyncio.run(request("POST", path, body))


def check_models() -> None:
    """Do what it does before the first question: check the connection, list models and those in memory."""
    if not OLLAMA:
        models = {model["id"]: model.get("name", model["id"]) for model in get("/v1/models")["data"]}
        assert f"{MODEL}:latest" in models
        return
    version = get("/api/version")["version"]
    assert tuple(map(int, re.sub(r"^v|-.*", "", version).split("."))) > (0, 0)
    models = {model["model"]: model for model in get("/api/tags")["models"]}
    assert {"name", "modified_at", "size", "digest", "details"} <= set(models[f"{MODEL}:latest"])
    shown = post("/api/show", {"model": f"{MODEL}:latest"})
    assert "tools" in shown["capabilities"]
    for model in get("/api/ps")["models"]:
        assert datetime.fromisoformat(model["expires_at"]).timestamp() > 0
        assert model["name"] in models


def body(messages: Any, *, stream: bool, model: str = MODEL, **more: Any) -> dict[str, Any]:
    asked = messages if isinstance(messages, list) else [{"role": "user", "content": messages}]
    name = f"{model}:latest" if OLLAMA else model
    return {"model": name, "messages": asked, "stream": stream, **SETTINGS, **more}


PATH = "/api/chat" if OLLAMA else "/v1/chat/completions"


def message(answer: Any) -> Any:
    return answer["message"] if OLLAMA else answer["choices"][0]["message"]


def chat() -> Any:
    """Return a whole reply, as for titles, tags and other background tasks."""
    check_models()
    return message(post(PATH, body(ASKED["chat"], stream=False)))["content"]


def stream() -> Any:
    more = {} if OLLAMA else {"stream_options": {"include_usage": True}}
    parts = asyncio.run(streamed(PATH, body(ASKED["chat"], stream=True, **more)))
    if OLLAMA:
        last = parts[-1]
        assert last["done"]
        # Open WebUI shows the speed.
        assert last["eval_count"] / last["eval_duration"] > 0
        assert last["prompt_eval_count"] / last["prompt_eval_duration"] > 0
        assert last["total_duration"] >= last["load_duration"]
        return [part["message"]["content"] for part in parts]
    assert parts[-1]["usage"]["total_tokens"] > 0
    return [part["choices"][0]["delta"].get("content") for part in parts if part["choices"]]


def tools() -> Any:
    """Join the parts of calls by index, run the calls and send their results, as it does."""
    parts = asyncio.run(streamed(PATH, body(ASKED["tool_question"], stream=True, tools=[FUNCTION])))
    found: dict[int, dict[str, Any]] = {}
    for part in parts:
        if OLLAMA:
            for call in part["message"].get("tool_calls", []):
                found[len(found)] = call
            continue
        for delta in part["choices"][0]["delta"].get("tool_calls") or []:
            if delta["index"] in found:
                found[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
            else:
                found[delta["index"]] = delta
    calls, results = [], []
    for call in found.values():
        given = call["function"]["arguments"]
        arguments = given if OLLAMA else json.loads(given)
        calls.append([call["function"]["name"], arguments])
        results.append({"role": "tool", "tool_call_id": call["id"], "content": get_weather(**arguments)})
    question = {"role": "user", "content": ASKED["tool_question"]}
    turn = {"role": "assistant", "content": "", "tool_calls": list(found.values())}
    done = post(PATH, body([question, turn, *results], stream=False, tools=[FUNCTION]))
    return {"calls": calls, "answer": message(done)["content"]}


def embeddings() -> Any:
    if OLLAMA:
        asked = {"input": ASKED["texts"], "model": EMBEDDER, "truncate": True}
        return post("/api/embed", asked)["embeddings"]
    answer = post("/v1/embeddings", {"input": ASKED["texts"], "model": EMBEDDER})
    return [item["embedding"] for item in answer["data"]]


def errors() -> Any:
    found = {}
    for name, model in (("unknown", UNKNOWN), ("refused", EMBEDDER)):
        try:
            post(PATH, body("Hello", stream=True, model=model))
        except RefusedError as error:
            found[name] = [type(error).__name__, str(error)]
    return found


report(chat=chat, stream=stream, tools=tools, embeddings=embeddings, errors=errors)
