"""Tab completion of lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from puna.cli.attachments import take_files
from puna.cli.repl.loop import completions


def completed(line: str) -> list[str]:
    """Return the possible completions of `line`."""
    found = completions(line, lambda: ["demo", "demo-vision", "llama3.2"])
    return [line[: len(line) - len(word)] + whole for word, whole in found]


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        ("/l", ["/list", "/load"]),
        ("/sho", ["/show"]),
        ("/set pa", ["/set parameter"]),
        ("/set parameter top_", ["/set parameter top_k", "/set parameter top_p"]),
        ("/set think h", ["/set think high"]),
        ("/set format ", ["/set format json"]),
        ("/show t", ["/show template"]),
        ("/load d", ["/load demo", "/load demo-vision"]),
        ("/load demo ", []),
        ("/s", ["/save", "/set", "/show"]),
        ("hello", []),
        ("", []),
        ("what is ", []),
    ],
)
def test_commands_and_their_arguments_are_completed(
    line: str, lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert completed(line) == lines


def test_completed_path_is_escaped_as_messages_expect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of mine").mkdir()
    picture = tmp_path / "of mine" / "it's.png"
    picture.write_bytes(b"x")
    (tmp_path / ".hidden").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert completed("look at o") == [r"look at of\ mine/"]
    assert completed(r"look at of\ mine/") == [r"look at of\ mine/it\'s.png"]
    assert completed(f"{tmp_path}/.h") == [f"{tmp_path}/.hidden"]
    assert completed("./nothing/here") == []
    monkeypatch.setenv("HOME", str(tmp_path))
    (line,) = completed(r"look at ~/of\ mine/i")
    assert line == r"look at ~/of\ mine/it\'s.png"
    text, images = take_files(line, "sees", {"capabilities": ["vision"]})
    assert (text, len(images)) == ("look at", 1)
