"""Model files: the model names derived from file names, and digests."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puna.cli import create, manage
from puna.errors import RequestError
from puna.store.names import ModelName
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("file_name", "name"),
    [
        ("SmolLM2-135M-Instruct-Q8_0.gguf", "smollm2-135m-instruct-q8_0"),
        ("Llama 3.2 1B.Q4_K_M.GGUF", "llama-3.2-1b.q4_k_m"),
        ("(new).gguf", "new"),
        (".gguf", "model"),
        ("модель.gguf", "model"),
    ],
)
def test_a_model_is_named_after_its_file(file_name: str, name: str) -> None:
    assert create.derived_name(file_name) == name


@given(st.text(min_size=1, max_size=120).map(lambda stem: stem + ".gguf"))
def test_every_derived_name_is_valid(file_name: str) -> None:
    name = create.derived_name(file_name)
    assert ModelName.parse(f"{name}:0123456789ab").model == name


def test_files_and_model_names_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.gguf").touch()
    Path("demo").touch()
    assert manage.is_model_file("m.gguf")
    assert manage.is_model_file("./demo")
    assert manage.is_model_file("./nowhere")
    assert not manage.is_model_file("demo")
    assert not manage.is_model_file("other.gguf")
    assert not manage.is_model_file("library/demo:latest")
    assert manage.model_path("./demo") == Path("demo")
    for name, error in {"./nowhere": "nowhere does not exist", "./": "is a folder"}.items():
        with pytest.raises(RequestError, match=error):
            manage.model_path(name)


def test_a_digest_is_cached_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUNA_HOME", str(tmp_path / "home"))
    path = tmp_path / "m.gguf"
    path.write_bytes(b"first")
    first = "sha256:" + hashlib.sha256(b"first").hexdigest()
    assert create.file_digest(path) == first
    cache, before = tmp_path / "home" / "digests.json", path.stat()
    cache.write_text(cache.read_text().replace(first, "sha256:known"))
    assert create.file_digest(path) == "sha256:known", "the file was read again"

    def change() -> bool:
        """Rewrite the file with the same length and modification time; return whether its ctime advanced."""
        path.write_bytes(b"again")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        return path.stat().st_ctime_ns > before.st_ctime_ns

    wait_until(change, "a later time")
    assert create.file_digest(path) == "sha256:" + hashlib.sha256(b"again").hexdigest()


def test_a_damaged_digest_cache_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUNA_HOME", str(tmp_path))
    (tmp_path / "digests.json").write_text("{")
    path = tmp_path / "m.gguf"
    path.write_bytes(b"")
    assert create.file_digest(path) == "sha256:" + hashlib.sha256(b"").hexdigest()
