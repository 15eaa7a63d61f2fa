"""Folders are converted once and cached."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import puna
from puna.convert import cache
from puna.convert.cache import converted
from puna.errors import ConversionError, ModelNotFoundError
from tests.convert.checkpoints import saved
from tests.model.models.parity import original
from tests.tiny.llama import TinyLlama


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PUNA_HOME", str(tmp_path / "home"))
    return saved(tmp_path / "Tiny", original(TinyLlama()))


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that records the name of a folder at each conversion."""
    done: list[str] = []
    convert = cache.convert

    def counted(folder: Path, target: Path, **more: object) -> None:
        done.append(folder.name)
        convert(folder, target, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(cache, "convert", counted)
    return done


def test_folder_is_converted_once_and_again_after_a_change(folder: Path, conversions: list[str]) -> None:
    told: list[tuple[str, int, int]] = []
    first = converted(folder, lambda *progress: told.append(progress))
    made = first.model.read_bytes()
    assert told[-1][0] == "model"
    assert told[-1][1] == told[-1][2] > 0
    assert converted(folder) == first
    assert conversions == ["Tiny"]
    os.utime(folder / "config.json", ns=(0, 0))
    second = converted(folder)
    assert conversions == ["Tiny", "Tiny"]
    assert second.model.read_bytes() == made
    assert list(second.model.parent.parent.iterdir()) == [second.model.parent], (
        "files of the first conversion remain"
    )


def test_failed_conversion_leaves_no_files(folder: Path, tmp_path: Path) -> None:
    (folder / "config.json").write_text('{"architectures": ["NoSuchModel"]}')
    with pytest.raises(ConversionError, match="NoSuchModel"):
        converted(folder)
    assert [path for path in (tmp_path / "home").rglob("*") if path.is_file()] == []
    assert [path.name for path in (tmp_path / "home/converted").glob("*/*")] == []


def test_folder_without_a_checkpoint_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="has no safetensors files"):
        converted(tmp_path)
    (tmp_path / "a.gguf").write_bytes(b"")
    with pytest.raises(ConversionError, match=r"name the file in it, .*/a\.gguf"):
        converted(tmp_path)


def test_library_loads_a_folder_given_as_a_path(
    folder: Path, conversions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    for name in ("./Tiny", folder):
        with puna.load(name, num_ctx=32, parallel=1) as model:
            assert len(model.tokenize("hello")) > 0
    assert conversions == ["Tiny"]
    with pytest.raises(ModelNotFoundError, match=r"for the folder of that name, puna\.load\('\./Tiny'\)"):
        puna.load("Tiny")
