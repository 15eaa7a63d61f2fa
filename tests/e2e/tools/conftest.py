"""The server with the tool-calling model, and its clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.e2e.servers import Server, scripted
from tests.e2e.tools.calling import ANTHROPIC, FLAT, GREEDY, SCRIPTS, TEMPLATE, TOOLS


@pytest.fixture(scope="module")
def server(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with scripted(server, "scripted", tmp_path_factory.mktemp("scripted"), SCRIPTS, TEMPLATE):
        yield server


@pytest.fixture(scope="module")
def chat(server: Server) -> Any:
    client = openai.OpenAI(base_url=server.url + "/v1/", api_key="unused", max_retries=0, timeout=120)

    def create(content: str | list[Any] = "weather?", **extra: Any) -> Any:
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        return client.chat.completions.create(
            **{"model": "scripted", "messages": messages, "tools": TOOLS, "temperature": 0, **extra}
        )

    return create


@pytest.fixture(scope="module")
def responses(server: Server) -> Any:
    client = openai.OpenAI(base_url=server.url + "/v1/", api_key="unused", max_retries=0, timeout=120)

    def create(given: Any, *, stream: bool = False, **extra: Any) -> Any:
        method = client.responses.stream if stream else client.responses.create
        return method(model="scripted", input=given, tools=FLAT, temperature=0, **extra)  # type: ignore[operator]

    return create


@pytest.fixture(scope="module")
def messages(server: Server) -> Any:
    client = anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0, timeout=120)

    def create(given: list[Any], *, stream: bool = False, **extra: Any) -> Any:
        method = client.messages.stream if stream else client.messages.create
        fields = {"model": "scripted", "max_tokens": 400, "tools": ANTHROPIC, "extra_body": GREEDY, **extra}
        return method(messages=given, **fields)  # type: ignore[operator]

    return create
