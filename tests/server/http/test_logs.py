from __future__ import annotations

import json
import logging
import sys
from datetime import datetime
from typing import Any

import pytest

from puna.errors import PunaError
from puna.server.http.logs import JsonFormatter, TextFormatter, log_format
from puna.server.http.request_facts import RequestFacts, current


def record(message: str, fields: dict[str, Any] | None = None, exc_info: Any = None) -> logging.LogRecord:
    made = logging.LogRecord("puna.server", logging.INFO, __file__, 1, message, (), exc_info)
    if fields is not None:
        made.fields = fields
    return made


def test_a_text_line_has_its_fields_behind_the_message() -> None:
    line = TextFormatter().format(record("request", {"status": 200, "total_s": 0.25, "path": "/api/chat"}))
    assert line.endswith("INFO puna.server: request status=200 total_s=0.25 path=/api/chat")


@pytest.mark.parametrize("value", ["/a\nforged line", 'a "b"', "a b", "x=y", "", "\x1b[31m", "a\x7f\x85b"])
def test_no_value_can_end_a_line_or_look_like_another_field(value: str) -> None:
    line = TextFormatter().format(record("request", {"path": value, "status": 404}))
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    written = line.split("path=", 1)[1].removesuffix(" status=404")
    assert json.loads(written) == value


def test_a_json_line_is_one_object() -> None:
    made = record("two\nlines", {"status": 200, "model": "größer"})
    (line,) = JsonFormatter().format(made).splitlines()
    value = json.loads(line)
    assert datetime.fromisoformat(value.pop("time")).timestamp() == pytest.approx(made.created, abs=0.01)
    assert value == {
        "level": "INFO",
        "logger": "puna.server",
        "message": "two\nlines",
        "status": 200,
        "model": "größer",
    }


def test_an_exception_is_part_of_the_object() -> None:
    try:
        raise ValueError("wrong")
    except ValueError:
        line = JsonFormatter().format(record("failed", exc_info=sys.exc_info()))
    assert "ValueError: wrong" in json.loads(line)["exception"]


def test_what_is_logged_while_a_request_is_served_has_its_id() -> None:
    token = current.set(RequestFacts("abc"))
    try:
        assert json.loads(JsonFormatter().format(record("x")))["request_id"] == "abc"
        assert TextFormatter().format(record("x")).endswith("x request_id=abc")
    finally:
        current.reset(token)
    assert "request_id" not in JsonFormatter().format(record("x"))


def test_the_format_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PUNA_LOG_FORMAT", raising=False)
    monkeypatch.delenv("OLLAMA_LOG_FORMAT", raising=False)
    assert log_format() == "text"
    monkeypatch.setenv("PUNA_LOG_FORMAT", "JSON")
    assert log_format() == "json"
    monkeypatch.setenv("PUNA_LOG_FORMAT", "xml")
    with pytest.raises(PunaError, match="PUNA_LOG_FORMAT: 'xml' is no format of the log; use text or json"):
        log_format()
