"""Multipart forms, valid and invalid, as clients send them."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from pydantic import Field
from starlette.requests import Request
from starlette.types import Message

from puna.errors import RequestError
from puna.server.http.forms import FormFields, FormFile, read_form


class Fields(FormFields):
    name: str = "nobody"
    number: float = 0.0
    wanted: bool = False
    several: list[str] = Field(default_factory=list)


FILE = ("sound.wav", b"RIFF\r\n\0")


def read(body: bytes, content_type: str) -> tuple[Fields, FormFile]:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"content-type", content_type.encode())]
    request = Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive)
    return asyncio.run(read_form(request, Fields, "file"))


def sent(data: dict[str, Any], **files: Any) -> tuple[Fields, FormFile]:
    """Return the form as it arrives from httpx."""
    request = httpx.Request("POST", "http://here/", data=data, files=files)
    return read(request.read(), request.headers["content-type"])


def test_fields_are_read_as_their_types() -> None:
    given = {"name": "Märchen", "number": "0.5", "wanted": "true", "several[]": ["a", "b"]}
    fields, upload = sent(given, file=FILE)
    assert (fields.name, fields.number, fields.wanted, fields.several) == ("Märchen", 0.5, True, ["a", "b"])
    assert upload == FormFile("sound.wav", b"RIFF\r\n\0")


def test_missing_and_empty_fields_have_their_defaults() -> None:
    fields, _ = sent({"name": "", "number": ""}, file=FILE)
    assert (fields.name, fields.number, fields.several) == ("nobody", 0.0, [])


def test_unknown_fields_are_reported() -> None:
    fields, _ = sent({"nmae": "x"}, file=FILE)
    assert any("nmae" in sentence for sentence in fields.ignored)


@pytest.mark.parametrize(
    ("data", "files", "complaint"),
    [
        ({}, {"other": FILE}, "field 'file' is missing"),
        ({"file": "text"}, {"other": FILE}, "field 'file' is missing: it is a file with a name"),
        ({}, {"file": FILE, "more": FILE}, "Too many files. Maximum number of files is 1"),
        ({f"f{number}": "x" for number in range(65)}, {"file": FILE}, "Too many fields"),
        ({"name": "x" * (1 << 21)}, {"file": FILE}, "Part exceeded maximum size of 1024KB"),
        ({"number": "much"}, {"file": FILE}, 'field "number": must be a valid number'),
    ],
)
def test_a_wrong_form_is_refused(data: Any, files: Any, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        sent(data, **files)


@pytest.mark.parametrize(
    ("body", "content_type", "complaint"),
    [
        (b"{}", "application/json", "the request must be multipart/form-data, with the field 'file'"),
        (b"", "", "the request must be multipart/form-data"),
        (b"x", "multipart/form-data", "not a valid form: Missing boundary"),
        (b"what is this", "multipart/form-data; boundary=b", "not a valid form"),
        (b"", "multipart/form-data; boundary=b", "field 'file' is missing"),
        (
            b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--",
            "multipart/form-data; boundary=b",
            "name",
        ),
    ],
)
def test_a_body_that_is_no_form_is_refused(body: bytes, content_type: str, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        read(body, content_type)
