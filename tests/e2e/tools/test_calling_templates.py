"""Calls of models with an unusual template, renderer or parser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.servers import Server, add_model
from tests.e2e.tools.calling import FIRST, GREEDY, ONE, TOOLS, call, ordered, user
from tests.scripted import pieces_of, random_sizes, write_scripted

pytestmark = pytest.mark.e2e


def test_parser_named_by_the_author_decides_what_counts_as_a_call(server: Server) -> None:
    body = {"model": "unread", "from": "scripted", "parser": "ministral", "stream": False}
    assert server.http.post("/api/create", json=body).json() == {"status": "success"}
    answer = server.client.chat("unread", user(ONE), tools=TOOLS, options=GREEDY)
    assert (answer.message.content, answer.message.tool_calls) == (call(FIRST), None)
    server.unload()
    server.client.delete("unread")


def test_model_without_a_template_uses_its_renderer_and_parser(server: Server, tmp_path: Path) -> None:
    script = (
        "Let me see.</think>\n<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
    )
    path = write_scripted(tmp_path / "bare.gguf", [pieces_of(script, size=random_sizes(5))])
    add_model(server, "bare", path)
    names = {"model": "named", "from": "bare", "renderer": "qwen3.5", "parser": "qwen3.5"}
    assert server.http.post("/api/create", json={**names, "stream": False}).status_code == 200
    request = {"model": "named", "messages": user(), "tools": TOOLS, "options": GREEDY, "stream": False}
    message = server.http.post("/api/chat", json=request).json()["message"]
    assert (message["thinking"], message["content"]) == ("Let me see.", "")
    assert [ordered(one["function"]["arguments"]) for one in message["tool_calls"]] == [ordered(FIRST)]
    prompt = server.http.post("/api/chat", json={**request, "_debug_render_only": True}).json()
    text = prompt["_debug_info"]["rendered_template"]
    assert text.startswith("<|im_start|>system\n# Tools\n")
    assert text.endswith("<|im_start|>assistant\n<think>\n")
    server.unload()
    for name in ("named", "bare"):
        server.client.delete(name)


def test_template_error_names_the_message_in_every_api(server: Server, tmp_path: Path) -> None:
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
            error = reply.json()["error"]["message"]
            assert "has no attribute 'nothing' (about message 3 of the chat, role 'tool')" in error
    server.unload()
    server.client.delete("narrow")
