"""`puna key`: its output and the keys it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from puna.cli import main
from puna.server.keys import digest, read_keys


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PUNA_HOME", str(tmp_path))
    return tmp_path / "keys.json"


def test_new_key_prints_only_the_key_to_standard_output(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["key", "new", "--name", "chat", "--scope", "generate, read", "--rate", "60/min"]
    assert main([*asked, "--concurrency", "4"]) == 0
    told = capsys.readouterr()
    (key,) = read_keys(path)
    assert digest(told.out.strip()) == key.sha256
    assert (key.name, key.scopes, key.rate, key.concurrency) == ("chat", ("read", "generate"), 60, 4)
    assert "It will not be shown again" in told.err
    assert main(["key", "list"]) == 0
    table = capsys.readouterr().out
    assert "chat    read,generate    60/min    4" in table
    assert key.sha256 not in table
    assert main(["key", "list", "--json"]) == 0
    (shown,) = json.loads(printed := capsys.readouterr().out)
    assert (shown["name"], shown["scopes"], shown["rate"]) == ("chat", ["read", "generate"], 60)
    assert key.sha256 not in printed


def test_revoking_removes_all_or_none(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b", "c"):
        assert main(["key", "new", "--name", name]) == 0
    assert main(["key", "revoke", "a", "nobody"]) == 1
    assert "there is no key 'nobody'" in capsys.readouterr().err
    assert main(["key", "revoke", "a", "c"]) == 0
    assert [key.name for key in read_keys(path)] == ["b"]
    assert capsys.readouterr().err == ""
    assert main(["key", "revoke", "b"]) == 0
    assert f"No key is left in {path}. A running server goes on to refuse" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--scope", "root"], "--scope must be one or more of read, generate, manage, not 'root'"),
        (["--scope", ","], "--scope must be one or more of"),
        (["--rate", "fast"], "--rate must be a number of requests a minute, such as 60/min, not 'fast'"),
        (["--rate", "9" * 40_000], "--rate must be"),
        (["--concurrency", "-1"], "Invalid value for '--concurrency'"),
        (["--name", "a b"], "'a b' is not a name"),
        (["--name", "taken"], "key 'taken' already exists"),
    ],
)
def test_impossible_keys_are_refused(
    options: list[str], error: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["key", "new", "--name", "taken"]) == 0
    capsys.readouterr()
    assert main(["key", "new", *options]) == 1
    printed = capsys.readouterr()
    assert error in printed.err
    assert printed.out == ""
    assert len(read_keys(path)) == 1
