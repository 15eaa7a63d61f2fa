"""Documents within messages, in each API that has them."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.e2e.servers import Server
from tests.server.jobs.pdfs import pdf

pytestmark = pytest.mark.e2e

TEXT = base64.b64encode(b"the quick fox").decode()
PDF = base64.b64encode(pdf(["the quick fox"])).decode()


def anthropic_document(kind: str, data: str, **more: Any) -> dict[str, Any]:
    return {"type": "document", "source": {"type": "base64", "media_type": kind, "data": data}, **more}


def counted(server: Server, *content: Any) -> int:
    body = {"model": "tiny", "messages": [{"role": "user", "content": list(content)}]}
    reply = server.http.post("/v1/messages/count_tokens", json=body)
    assert reply.status_code == 200, reply.text
    return int(reply.json()["input_tokens"])


def plain(server: Server, text: str) -> int:
    return counted(server, {"type": "text", "text": text})


def test_document_becomes_text_after_its_title_and_context(server: Server) -> None:
    document = anthropic_document("text/plain", TEXT, title="Foxes", context="A story", citations=None)
    assert counted(server, document) == plain(server, "Foxes\n\nA story\n\nthe quick fox")
    result = {"type": "tool_result", "tool_use_id": "t", "content": [document]}
    assert counted(server, result) > 5


def test_pdf_becomes_its_text_in_every_api(server: Server) -> None:
    pytest.importorskip("pypdf")
    same = plain(server, "a.pdf\n\nthe quick fox")
    assert counted(server, anthropic_document("application/pdf", PDF, title="a.pdf")) == same
    data = f"data:application/pdf;base64,{PDF}"
    part = {"type": "file", "file": {"filename": "a.pdf", "file_data": data}}
    chat = {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": [part]}]}
    answer = server.http.post("/v1/chat/completions", json=chat).json()
    assert answer["usage"]["prompt_tokens"] == same
    item = {"type": "input_file", "filename": "a.pdf", "file_data": data}
    body = {"model": "tiny", "input": [{"role": "user", "content": [item]}]}
    assert server.http.post("/v1/responses/input_tokens", json=body).json()["input_tokens"] == same


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (anthropic_document("text/plain", "%"), "content[0]: the file's data must be base64"),
        (anthropic_document("text/plain", "/w=="), "must be UTF-8"),
        (anthropic_document("image/tiff", TEXT), "image/tiff"),
        (anthropic_document("text/plain", TEXT, citations={"enabled": True}), "citations are not supported"),
        ({"type": "document", "source": {"type": "url", "url": "https://x"}}, "by url are not supported"),
        ({"type": "document"}, "source must be"),
        ({"type": "search_result", "content": [], "citations": {"enabled": True}}, "citations are not"),
    ],
)
def test_wrong_documents_are_refused(server: Server, block: dict[str, Any], words: str) -> None:
    message = {"role": "user", "content": [block]}
    body = {"model": "tiny", "max_tokens": 1, "messages": [message]}
    reply = server.http.post("/v1/messages", json=body)
    assert (reply.status_code, words in reply.json()["error"]["message"]) == (400, True), reply.text


def test_too_many_files_are_refused(server: Server) -> None:
    message = {"role": "user", "content": [anthropic_document("text/plain", TEXT)] * 17}
    reply = server.http.post("/v1/messages", json={"model": "tiny", "max_tokens": 1, "messages": [message]})
    assert "may have 16 files" in reply.json()["error"]["message"]
