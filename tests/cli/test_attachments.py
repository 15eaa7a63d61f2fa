"""Images and recordings named in a typed message."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from puna.cli.attachments import take_files

VISION = {"capabilities": ["completion", "vision"]}


@pytest.mark.parametrize(
    ("typed", "rest"),
    [
        ("what is in {0}", "what is in"),
        ("'{1}' what is this?", "what is this?"),
        ('compare "{1}" and {0}', "compare  and"),
        ("{2} dropped", "dropped"),
        ("file://{0} hm", "hm"),
        (
            "no image here, only https://example.com/notes.png",
            "no image here, only https://example.com/notes.png",
        ),
        ("see {0}x.txt", "see {0}x.txt"),
    ],
)
def test_paths_become_images(
    typed: str, rest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, spaced = tmp_path / "a.PNG", tmp_path / "with space.jpg"
    plain.write_bytes(b"plain")
    spaced.write_bytes(b"spaced")
    names = str(plain), str(spaced), str(spaced).replace(" ", r"\ ")
    expected = [
        content
        for place, content in sorted(
            (typed.index(mark), content)
            for mark, content in (("{0}", b"plain"), ("{1}", b"spaced"), ("{2}", b"spaced"))
            if mark in typed and mark + "x" not in typed
        )
    ]
    text, images = take_files(typed.format(*names), "sees", VISION)
    assert [base64.b64decode(image) for image in images] == expected
    assert text == rest.format(*names)
    said = capsys.readouterr()
    paths = {b"plain": plain, b"spaced": spaced}
    assert said.err.splitlines() == [f"Added image '{paths[content]}'" for content in expected]
    assert said.out == ""


@pytest.mark.parametrize("ending", ["jpg", "JPEG", "png", "webp", "gif", "bmp"])
@pytest.mark.parametrize("quote", ["", "'", '"'])
def test_image_files_are_recognised_by_extension(ending: str, quote: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{ending}"
    path.write_bytes(b"x")
    assert take_files(f"Look: {quote}{path}{quote}", "sees", VISION) == (
        "Look:",
        [base64.b64encode(b"x").decode()],
    )


def test_missing_image_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = tmp_path / "there.png"
    there.write_bytes(b"x")
    text, images = take_files(f"compare {there} and gone.png", "sees", VISION)
    assert (text, len(images)) == ("compare  and gone.png", 1)
    assert "there is no file 'gone.png'" in capsys.readouterr().err
    take_files("a.png, b.png and c.png", "sees", VISION)
    assert "there is no file 'a.png' (and 2 more)" in capsys.readouterr().err


def test_image_for_a_model_without_vision_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there.png"
    there.write_bytes(b"x")
    typed = f"what is in {there}?"
    assert take_files(typed, "blind", {"capabilities": ["completion"]}) == (typed, [])
    assert "model 'blind' takes no images" in " ".join(capsys.readouterr().err.split())
    assert take_files("rename a.png", "blind", {}) == ("rename a.png", [])
    assert capsys.readouterr().err == "", "a bare word is not taken for a file"
    take_files("what is in ./gone.png", "blind", {})
    assert "there is no file './gone.png'" in capsys.readouterr().err


HEARING = {"capabilities": ["completion", "audio"]}


@pytest.mark.parametrize("ending", ["wav", "MP3", "flac", "ogg", "opus", "m4a"])
def test_recordings_are_recognised_by_extension(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{ending}"
    path.write_bytes(b"x")
    assert take_files(f"Who speaks? {path}", "hears", HEARING) == (
        "Who speaks?",
        [base64.b64encode(b"x").decode()],
    )


def test_a_file_without_text_is_asked_about(tmp_path: Path) -> None:
    path = tmp_path / "talk.wav"
    path.write_bytes(b"x")
    assert take_files(str(path), "hears", HEARING)[0] == "What is said in this recording?"
    assert take_files(str(path.rename(tmp_path / "a.png")), "sees", VISION)[0] == "What is in this picture?"


def test_a_recording_for_a_model_that_only_sees_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "talk.wav"
    path.write_bytes(b"x")
    assert take_files(f"what is said in {path}", "sees", VISION)[1] == []
    assert "model 'sees' takes no recordings" in " ".join(capsys.readouterr().err.split())
    take_files("talk.mp3 and a.png", "hears", HEARING)
    assert "there is no file 'talk.mp3': the model gets the name, not a recording" in " ".join(
        capsys.readouterr().err.split()
    )
