from __future__ import annotations

import json
import logging
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from puna.errors import PunaError
from puna.server.http.logs import (
    JsonFormatter,
    RequestFacts,
    TextFormatter,
    current,
    log_format,
    set_up_logging,
)


def record(message: str, fields: dict[str, Any] | None = None, exc_info: Any = None) -> logging.LogRecord:
    entry = logging.LogRecord("puna.server", logging.INFO, __file__, 1, message, (), exc_info)
    if fields is not None:
        entry.fields = fields
    return entry


def test_text_line_has_its_fields_after_the_message() -> None:
    line = TextFormatter().format(record("request", {"status": 200, "total_s": 0.25, "path": "/api/chat"}))
    assert line.endswith("INFO puna.server: request status=200 total_s=0.25 path=/api/chat")


@pytest.mark.parametrize(
    "value", ["/a\nforged line", 'a "b"', "a b", "x=y", "", "\x1b[31m", "a\x7f\x85b", "\x9b31m", "\u202e"]
)
def test_no_value_can_end_a_line_or_look_like_another_field(value: str) -> None:
    line = TextFormatter().format(record("request", {"path": value, "status": 404}))
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    written = line.split("path=", 1)[1].removesuffix(" status=404")
    assert json.loads(written) == value


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_no_message_and_no_traceback_can_forge_a_line(formatter: logging.Formatter) -> None:
    hostile = "\n2026-01-01 INFO forged\r\x1b[2J\x9b\u2028\ud800"
    try:
        raise ValueError(hostile)
    except ValueError:
        text = formatter.format(record(f"cannot read {hostile}", {"path": hostile}, sys.exc_info()))
    first, *others = text.splitlines()
    assert first.isprintable()
    assert all(line.startswith("  ") and line.isprintable() for line in others)
    assert text.encode()


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_long_values_from_clients_are_shortened(formatter: logging.Formatter) -> None:
    line = formatter.format(record("m" * 10**6, {"model": "n" * 10**6, "status": 404}))
    assert len(line) < 10_000
    assert "404" in line


def test_full_log_file_is_rotated_along_with_standard_error(tmp_path: Path) -> None:
    script = (
        "import logging, os, pathlib, sys\n"
        "from puna.server.http.logs import LogFile\n"
        "logging.basicConfig(handlers=[LogFile(pathlib.Path(sys.argv[1]), 1000)], level=logging.INFO)\n"
        "for number in range(100):\n"
        "    logging.info('%04d %s', number, 'x' * 90)\n"
        "os.write(2, b'last words')\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "log")], check=True, stderr=subprocess.PIPE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1", "log.2", "log.3"]
    assert all(path.stat().st_size <= 1100 for path in tmp_path.iterdir())
    text = (tmp_path / "log").read_text()
    assert " 0099 " in text.replace(":", " ")
    assert text.endswith("last words")


def test_unwritable_log_file_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PUNA_LOG_FILE", str(tmp_path / "missing" / "log"))
    with pytest.raises(PunaError, match=r"PUNA_LOG_FILE: cannot write to .*log: No such file"):
        set_up_logging()


def test_json_line_is_one_object() -> None:
    entry = record("two\nlines", {"status": 200, "model": "größer"})
    (line,) = JsonFormatter().format(entry).splitlines()
    value = json.loads(line)
    assert datetime.fromisoformat(value.pop("time")).timestamp() == pytest.approx(entry.created, abs=0.01)
    assert value == {
        "level": "INFO",
        "logger": "puna.server",
        "message": "two\nlines",
        "status": 200,
        "model": "größer",
    }


def test_json_line_includes_the_exception() -> None:
    try:
        raise ValueError("wrong")
    except ValueError:
        line = JsonFormatter().format(record("failed", exc_info=sys.exc_info()))
    assert "ValueError: wrong" in json.loads(line)["exception"]


def test_lines_logged_while_serving_a_request_have_its_id() -> None:
    token = current.set(RequestFacts("abc"))
    try:
        assert json.loads(JsonFormatter().format(record("x")))["request_id"] == "abc"
        assert TextFormatter().format(record("x")).endswith("x request_id=abc")
    finally:
        current.reset(token)
    assert "request_id" not in JsonFormatter().format(record("x"))


def test_log_format_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PUNA_LOG_FORMAT", raising=False)
    monkeypatch.delenv("OLLAMA_LOG_FORMAT", raising=False)
    assert log_format() == "text"
    monkeypatch.setenv("PUNA_LOG_FORMAT", "JSON")
    assert log_format() == "json"
    monkeypatch.setenv("PUNA_LOG_FORMAT", "xml")
    with pytest.raises(PunaError, match="PUNA_LOG_FORMAT: 'xml' is not a log format; use text or json"):
        log_format()
